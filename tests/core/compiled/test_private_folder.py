"""A folder that is gone afterwards, also where its process died."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from intarsia.core.compiled.private_folder import private_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks on folders")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_nobody_else_may_enter_and_nothing_is_left(temporary: Path) -> None:
    def fail() -> None:
        with private_folder() as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            (folder / "code").write_bytes(b"x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(temporary.iterdir()) == []


def test_what_a_dead_process_left_is_removed_and_what_is_used_stays(temporary: Path) -> None:
    code = "from intarsia.core.compiled.private_folder import private_folder as p\n"
    code += "import os, signal, sys\nwith p() as f:\n (f / 'code').touch()\n print(f, flush=True)\n sys.stdin.read()"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        os.utime(folder, (0, 0))
        with private_folder():
            assert (folder / "code").exists(), "another process uses it"
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert folder.exists()
    with private_folder():
        assert not folder.exists()


def test_only_folders_of_this_kind_are_removed(temporary: Path) -> None:
    kept = temporary / "else", temporary / "intarsia-link"
    kept[0].mkdir()
    kept[1].symlink_to(kept[0])
    for path in kept:
        os.utime(path, (0, 0), follow_symlinks=False)
    with private_folder():
        pass
    assert all(path.exists() for path in kept)
