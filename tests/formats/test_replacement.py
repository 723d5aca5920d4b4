"""Replacing a file: the old or the new one stands there, whatever ends the writer, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intarsia.errors import FormatError
from intarsia.formats.replacement import replacing
from intarsia.formats.unfinished import remove_unfinished, unfinished_file

# Writes files of one letter for ever: whoever reads one sees a mixture at once.
WRITE_FOR_EVER = """
import sys
from pathlib import Path
from intarsia.formats.replacement import replacing

path, letters, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
while True:
    for letter in letters:
        with replacing(path) as new, new.open("wb") as file:
            for _ in range(16):
                file.write(letter.encode() * (size // 16))
"""
SIZE = 1 << 18


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file in a folder of its own."""
    path = tmp_path / "folder" / "model.pt2"
    path.parent.mkdir()
    path.write_text("old")
    return path


def replace(path: Path, text: str = "new") -> None:
    with replacing(path) as new:
        new.write_text(text)


def start_writer(path: Path, letters: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path), letters, str(SIZE)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    return writer


def stop(writer: subprocess.Popen[bytes]) -> None:
    writer.kill()
    writer.communicate()


def contents(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


# Writers that are killed, and several at once.


def test_a_killed_writer_leaves_a_whole_file_and_the_next_one_its_file_only(old: Path) -> None:
    old.write_bytes(b"a" * SIZE)
    left = 0
    for _ in range(15):
        writer = start_writer(old, "ab")
        time.sleep(random.uniform(0, 0.03))  # noqa: S311
        stop(writer)
        data = old.read_bytes()
        assert data in (b"a" * SIZE, b"b" * SIZE)
        assert len(contents(old)) <= 2  # what the writer before left is gone
        left += len(contents(old)) - 1
    assert left > 0
    replace(old)
    assert contents(old) == ["model.pt2"]


def test_eight_writers_of_one_path_leave_one_whole_file(old: Path) -> None:
    old.write_bytes(b"a" * SIZE)
    writers = [start_writer(old, letter) for letter in "abcdefgh"]
    whole = {letter.encode() * SIZE for letter in "abcdefgh"}
    seen = set()
    for _ in range(200):
        data = old.read_bytes()
        assert data in whole
        seen.add(data)
        assert all(writer.poll() is None for writer in writers)  # none lost its file to another one
    assert len(seen) > 1
    for writer in writers:
        stop(writer)
    replace(old)
    assert contents(old) == ["model.pt2"]


def test_a_living_writer_keeps_its_file(old: Path) -> None:
    with replacing(old) as first:
        first.write_text("first")
        replace(old, "second")
        assert first.exists()
    assert old.read_text() == "first"
    assert contents(old) == ["model.pt2"]


def test_a_writer_whose_file_was_taken_away_before_it_was_locked_makes_another(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = os.open, []

    def take_away(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = make(path, flags, mode)
        if flags & os.O_EXCL:
            made.append(Path(path))
            if len(made) == 1:
                remove_unfinished(old)
        return descriptor

    monkeypatch.setattr(os, "open", take_away)
    with unfinished_file(old) as new:
        assert new == made[1]
        assert new.exists()
    assert not made[0].exists()


def test_only_the_files_of_dead_writers_of_this_path_are_removed(old: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    for name in (".model.pt2.0.saving", ".other.pt2.0.saving", ".model.pt2.0", "model.pt2.0.saving"):
        (old.parent / name).touch()
    (old.parent / ".model.pt2.link.saving").symlink_to(target)
    (old.parent / ".model.pt2.folder.saving").mkdir()
    (old.parent / ".model.pt2.closed.saving").touch(mode=0o444)
    os.mkfifo(old.parent / ".model.pt2.pipe.saving")
    replace(old)
    assert contents(old) == [
        ".model.pt2.0",
        ".model.pt2.folder.saving",
        ".model.pt2.link.saving",
        ".model.pt2.pipe.saving",
        ".other.pt2.0.saving",
        "model.pt2",
        "model.pt2.0.saving",
    ]
    assert target.read_text() == "kept"


def test_without_locks_files_are_written_and_none_is_removed(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with replacing(old) as first:
        replace(old, "second")
        assert first.exists()
    assert contents(old) == ["model.pt2"]


# Faults.


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_a_fault_at_the_end_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, call) if hasattr(Path, call) else (os, call)), fail)
    with pytest.raises(FormatError, match=r"model\.pt2: found that it cannot be written \(No space left on device\)"):
        replace(old)
    assert old.read_text() == "old"
    assert contents(old) == ["model.pt2"]


def test_a_folder_that_cannot_be_synced_is_none(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    replace(old)
    assert old.read_text() == "new"


FULL = """
import sys
from pathlib import Path
from intarsia.errors import FormatError
from intarsia.formats.replacement import replacing

try:
    with replacing(Path(sys.argv[1])) as new:
        new.write_bytes(bytes(1 << 20))
except FormatError as error:
    print(error)
"""


def test_a_file_system_that_is_full_is_told(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(full)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        old = full / "model.pt2"
        old.write_bytes(b"old" * 10_000)
        told = subprocess.run([sys.executable, "-c", FULL, str(old)], capture_output=True, text=True, check=True)
        assert "(No space left on device), expected a place for the file." in told.stdout
        assert old.read_bytes() == b"old" * 10_000
        assert contents(old) == ["model.pt2"]
    finally:
        subprocess.run(["umount", str(full)], check=True)  # noqa: S607


def test_room_that_a_dead_writer_took_is_there_for_the_next_one(old: Path) -> None:
    (old.parent / ".model.pt2.0123.saving").write_bytes(bytes(1000))
    with replacing(old) as new:
        assert contents(old) == [new.name, "model.pt2"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "found a folder, expected a file name"),
        ("nowhere/model.pt2", "found no folder there"),
        ("model.pt2/model.pt2", "found no folder there"),
        ("x" * 256, r"found that it cannot be written \(File name too long\)"),
        ("pipe", "found a device or pipe, expected a file name"),
        ("loop", "found that it cannot be written"),
        ("\0", "found that it cannot be written"),
    ],
)
def test_a_place_that_cannot_be_is_an_error(old: Path, name: str, told: str) -> None:
    os.mkfifo(old.parent / "pipe")
    (old.parent / "loop").symlink_to("loop")
    before = contents(old)
    with pytest.raises(FormatError, match=told):
        replace(old.parent / name)
    assert contents(old) == before
    assert old.read_text() == "old"


# Names and leave.


@pytest.mark.parametrize("name", ["x" * 255, "ж" * 127, "a" + "漢" * 84])
def test_a_name_may_be_as_long_as_the_file_system_lets(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    replace(path, "old")
    replace(path)
    assert path.read_text() == "new"
    assert contents(path) == [name]


def test_a_new_file_has_the_mode_that_the_process_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace(tmp_path / "model.pt2")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.pt2").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_replaced_file_keeps_its_mode_and_is_never_more_open(old: Path, mode: int) -> None:
    old.chmod(mode)
    with replacing(old) as new:
        assert stat.S_IMODE(new.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(old.stat().st_mode) == mode


def chown_to_another(old: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only an administrator gives files away")
    os.chown(old, 12345, 23456)


def test_a_replaced_file_keeps_its_owner_and_group(old: Path) -> None:
    chown_to_another(old)
    replace(old)
    assert (old.stat().st_uid, old.stat().st_gid) == (12345, 23456)


@pytest.mark.parametrize(("mode", "left"), [(0o660, 0o600), (0o664, 0o644), (0o666, 0o666)])
def test_a_group_that_cannot_be_kept_gets_what_others_have(
    old: Path, monkeypatch: pytest.MonkeyPatch, mode: int, left: int
) -> None:
    chown_to_another(old)
    old.chmod(mode)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    replace(old)
    assert stat.S_IMODE(old.stat().st_mode) == left


def test_a_replaced_file_keeps_its_access_list(old: Path) -> None:
    entries = ((1, 6, -1), (2, 6, 12345), (4, 0, -1), (16, 6, -1), (32, 0, -1))  # user 12345 may, the group may not
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(old, "system.posix_acl_access", access)
    except (AttributeError, OSError):
        pytest.skip("no access lists here")
    replace(old)
    assert os.getxattr(old, "system.posix_acl_access") == access


@pytest.mark.parametrize("target", ["model.pt2", "fresh"])
def test_a_link_is_followed(old: Path, target: str) -> None:
    link = old.parent / "link"
    link.symlink_to(target)
    replace(link)
    assert link.is_symlink()
    assert link.read_text() == "new"
