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


@pytest.mark.parametrize("name", ["else", "intarsia-main", "intarsia-compiled-code-of-mine", "intarsia-compiled-code-"])
def test_a_folder_that_somebody_else_made_stays(temporary: Path, name: str) -> None:
    kept = temporary / name
    kept.mkdir(mode=0o700)
    (kept / "file").touch()
    os.utime(kept, (0, 0))
    with private_folder():
        pass
    assert (kept / "file").exists()


def test_a_link_and_a_folder_that_others_may_enter_stay(temporary: Path) -> None:
    with private_folder() as folder:
        prefix = folder.name[:-8]
    kept = temporary / "else", temporary / f"{prefix}abcdefgh", temporary / f"{prefix}ijklmnop"
    kept[0].mkdir(mode=0o700)
    kept[1].symlink_to(kept[0])
    kept[2].mkdir(mode=0o755)
    for path in kept:
        os.utime(path, (0, 0), follow_symlinks=False)
    with private_folder():
        pass
    assert all(path.exists() for path in kept)
