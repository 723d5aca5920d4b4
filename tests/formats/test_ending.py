"""The end of an archive, and the oddities of zip files that tools read differently."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from intarsia.errors import FormatError
from intarsia.formats.archive import ending
from intarsia.formats.archive.listing import open_archive

END = b"PK\x05\x06"
CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
UNLIKE = "not every tool reads alike"


def pack(path: Path, change: Callable[[zipfile.ZipInfo], None] = lambda info: None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("base/a"), b"1111")
        info = zipfile.ZipInfo("base/b")
        change(info)
        archive.writestr(info, b"2222")
    return path


def read(path: Path) -> list[str]:
    with open_archive(path) as archive:
        return list(archive.directory())


def put(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]


def end_at(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    return lambda data: put(data, data.rindex(END) + offset, struct.pack(form, value))


def with_64(change: Callable[[bytes], bytes] = lambda record: record, *, at: int = 0) -> Callable[[bytes], bytes]:
    """Put 64-bit end records before the end record."""

    def insert(data: bytes) -> bytes:
        end = data.rindex(END)
        _, _, _, here, members, size, start, _ = struct.unpack("<4s4H2IH", data[end:])
        record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, here, members, size, start)
        locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end + at, 1)
        return data[:end] + change(record) + locator + data[end:]

    return insert


def locator_at(data: bytes) -> int:
    """Where `with_64` puts what tells of the 64-bit end record."""
    return data.rindex(END) + 56


def before_directory(data: bytes) -> bytes:
    """Put bytes between the last member and the directory, and say where the directory then is."""
    start = data.index(CENTRAL)
    data = data[:start] + b"hidden" + data[start:]
    return put(data, data.rindex(END) + 16, struct.pack("<I", start + 6))


ENDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a comment": (lambda data: data[:-2] + b"\x05\x00hello", "a comment, or other bytes, behind its directory"),
    "bytes behind": (lambda data: data + b"more", "a comment, or other bytes, behind its directory"),
    "bytes behind that could be a comment's size": (
        lambda data: data + b"more\0\0",
        "a comment, or other bytes, behind its directory",
    ),
    "a comment that is not there": (
        lambda data: data[:-2] + b"\x05\x00",
        "a comment, or other bytes, behind its directory",
    ),
    "a second end record": (lambda data: data + data[data.rindex(END) :], "a directory that is not where its end says"),
    "more entries": (end_at(10, "<H", 3), "a directory that is not where its end says"),
    "another disk": (end_at(4, "<H", 1), "a directory that is not where its end says"),
    "another first disk": (end_at(6, "<H", 1), "a directory that is not where its end says"),
    "another start": (end_at(16, "<I", 3), "a directory that is not where its end says"),
    "another size": (end_at(12, "<I", 3), "a directory that is not where its end says"),
    "bytes before the directory": (before_directory, "6 bytes before the directory that are no member's"),
    "a start in 64 bits that is not there": (
        end_at(16, "<I", 0xFFFFFFFF),
        "a directory that is not where its end says",
    ),
    "a 64-bit end elsewhere": (with_64(at=1), "a 64-bit end of its directory that is not where it should be"),
    "a damaged 64-bit end": (with_64(lambda record: b"PK\x06\x05" + record[4:]), "a damaged 64-bit end"),
    "a 64-bit end on another disk": (
        lambda data: put(with_64()(data), locator_at(data) + 4, b"\x01"),
        "a 64-bit end of its directory that is not where it should be",
    ),
    "a 64-bit end on two disks": (
        lambda data: put(with_64()(data), locator_at(data) + 16, b"\x02"),
        "a 64-bit end of its directory that is not where it should be",
    ),
    "a 64-bit end of another size": (with_64(lambda record: put(record, 4, b"\x2d")), "a damaged 64-bit end"),
    "a 64-bit end of another disk": (with_64(lambda record: put(record, 16, b"\x01")), "a damaged 64-bit end"),
    "a 64-bit end of another first disk": (with_64(lambda record: put(record, 20, b"\x01")), "a damaged 64-bit end"),
    "a 64-bit end that differs": (
        with_64(lambda record: put(record, 48, struct.pack("<Q", 7))),
        "two ends of its directory that differ",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_an_end_that_is_doubtful_is_refused(tmp_path: Path, case: str) -> None:
    change, message = ENDS[case]
    path = pack(tmp_path / "a.pt2")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=message):
        read(path)


def test_64_bit_ends_are_read(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2")
    path.write_bytes(with_64()(path.read_bytes()))
    assert read(path) == ["a", "b"]


@pytest.mark.parametrize("limit", ["MEMBERS", "DIRECTORY_BYTES"])
def test_a_directory_beyond_the_limits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(ending, limit, 1)
    with pytest.raises(FormatError, match="2 members and a directory of 104 bytes"):
        read(pack(tmp_path / "a.pt2"))


def test_an_archive_of_nothing_has_no_member(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(END + bytes(18))
    assert read(tmp_path / "a.pt2") == []


@pytest.mark.parametrize("end", [lambda data: data[:-3], lambda data: data[: data.rindex(END)]], ids=["half", "whole"])
def test_an_archive_is_found_damaged_when_its_end_is_missing(tmp_path: Path, end: Callable[[bytes], bytes]) -> None:
    path = pack(tmp_path / "a.pt2")
    path.write_bytes(end(path.read_bytes()))
    with pytest.raises(FormatError, match="an archive that is cut short or damaged"):
        read(path)


def attribute(mode: int) -> Callable[[zipfile.ZipInfo], None]:
    return lambda info: setattr(info, "external_attr", mode)


def name(text: str) -> Callable[[zipfile.ZipInfo], None]:
    return lambda info: setattr(info, "filename", text) or setattr(info, "orig_filename", text)


def extra(data: bytes) -> Callable[[zipfile.ZipInfo], None]:
    return lambda info: setattr(info, "extra", data)


ENTRIES: dict[str, tuple[Callable[[zipfile.ZipInfo], None], str]] = {
    "a link": (attribute((stat.S_IFLNK | 0o777) << 16), "'base/b', which is a link"),
    "a folder": (attribute((stat.S_IFDIR | 0o777) << 16), "'base/b', which is a link, a folder"),
    "a folder of DOS": (attribute(0x10), "'base/b', which is a link, a folder"),
    "a device": (attribute((stat.S_IFCHR | 0o777) << 16), "'base/b', which is a link, a folder or a device"),
    "a comment": (lambda info: setattr(info, "comment", b"x"), f"comment or other facts that {UNLIKE}"),
    "another name in Unicode": (extra(struct.pack("<2HBI", 0x7075, 6, 1, 0) + b"x"), UNLIKE),
    "a fact cut short": (extra(b"\x35\xd9\x09\x00x"), "cut short or damaged"),
    "a fact twice": (extra(struct.pack("<2H", 0xD935, 0) * 2), UNLIKE),
    "a line end in a name": (name("base/b\nc"), UNLIKE),
    "an escape in a name": (name("base/\x1b[2J"), UNLIKE),
    "text that turns round": (name("base/b\u202etxt"), UNLIKE),
    "letters that are put together": (name("base/e\u0301"), UNLIKE),
    "a dot at the end": (name("base/a./b"), UNLIKE),
    "a space at the end": (name("base/a "), UNLIKE),
    "a long name": (name("base/" + "a" * 1001), UNLIKE),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_an_entry_that_is_doubtful_is_refused(tmp_path: Path, case: str) -> None:
    change, message = ENTRIES[case]
    with pytest.raises(FormatError, match=message) as raised:
        read(pack(tmp_path / "a.pt2", change))
    assert str(raised.value).isprintable()


def local(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: put(data, data.rindex(LOCAL) + offset, value)


HEADERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another checksum": (local(14, b"0000"), "another header before 'base/b'"),
    "nothing, and nothing behind it": (local(14, bytes(12)), "another header before 'base/b'"),
    "another size": (local(18, struct.pack("<2I", 3, 3)), "another header before 'base/b'"),
    "a size elsewhere that is not there": (
        local(18, struct.pack("<2I", 2**32 - 1, 4)),
        "another header before 'base/b'",
    ),
    "sizes behind it that are not there": (
        lambda data: put(local(6, b"\x08\x00")(data), data.rindex(CENTRAL) + 8, b"\x08\x00"),
        "other sizes behind 'base/b'",
    ),
    "another disk": (lambda data: put(data, data.rindex(CENTRAL) + 34, b"\x01\x00"), UNLIKE),
    "a first member that is hidden": (
        lambda data: put(data, data.rindex(END) + 8, struct.pack("<2H", 1, 1)),
        "a directory that is not where its end says|cut short or damaged",
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_differs_is_refused(tmp_path: Path, case: str) -> None:
    change, message = HEADERS[case]
    path = pack(tmp_path / "a.pt2")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("at", "value"), [(0, b"\x75\x70"), (2, b"\0"), (2, b"\x09")], ids=["kind", "a short one", "a long one"]
)
def test_a_fact_that_stands_before_a_member_alone_is_refused(tmp_path: Path, at: int, value: bytes) -> None:
    path = pack(tmp_path / "a.pt2", extra(struct.pack("<2H", 0xD935, 3) + b"xxx"))
    data = path.read_bytes()
    path.write_bytes(put(data, data.rindex(LOCAL) + 30 + len("base/b") + at, value))
    with pytest.raises(FormatError, match="another header before 'base/b'"):
        read(path)


def test_bytes_between_members_are_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2")
    data = path.read_bytes()
    second, directory = data.rindex(LOCAL), data.index(CENTRAL)
    data = data[:second] + b"hidden" + data[second:]
    data = put(data, data.rindex(CENTRAL) + 42, struct.pack("<I", second + 6))
    path.write_bytes(put(data, data.rindex(END) + 16, struct.pack("<I", directory + 6)))
    with pytest.raises(FormatError, match="6 bytes before 'b' that are no member's"):
        read(path)


def test_a_prefix_is_no_archive(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2")
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    with pytest.raises(FormatError, match="found a file of an unknown kind"):
        read(path)


class Stream:
    """A file that cannot be gone back in, so that sizes are written behind members."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.write, self.flush, self.close = self._file.write, self._file.flush, self._file.close


def stream(path: Path) -> Path:
    """Write an archive whose sizes stand behind its members."""
    file = Stream(path)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("base/a"), b"1111")
        with archive.open(zipfile.ZipInfo("base/b"), "w", force_zip64=True) as member:
            member.write(b"22")
    file.close()
    return path


def test_sizes_that_stand_behind_a_member_are_read(tmp_path: Path) -> None:
    assert read(stream(tmp_path / "a.pt2")) == ["a", "b"]


@pytest.mark.parametrize("offset", [14, 18], ids=["checksum", "size"])
def test_sizes_before_and_behind_a_member_are_refused(tmp_path: Path, offset: int) -> None:
    path = stream(tmp_path / "a.pt2")
    data = path.read_bytes()
    path.write_bytes(put(data, data.index(LOCAL) + offset, b"\x07"))
    with pytest.raises(FormatError, match="another header before 'base/a'"):
        read(path)
