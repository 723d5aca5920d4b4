"""The directory of an archive, and what it may not say."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from intarsia.errors import FormatError
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.listing import open_archive

EXPECTED = "members stored as they are, each once, side by side in one folder"


def pack(path: Path, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return path


def read(path: Path) -> dict[str, Member]:
    with open_archive(path) as archive:
        return archive.directory()


def test_members_are_found_where_they_lie(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2", [("base/a", b"one"), ("base/b/c", b"three")])
    data = path.read_bytes()
    directory = read(path)
    assert list(directory) == ["a", "b/c"]
    assert directory["b/c"] == ("b/c", data.index(b"three"), 5)


@pytest.mark.parametrize(
    "name",
    [
        "/base/a", "../a", "base/../a", "base/a/..", "base/./a", "base//a", "a", "base/a/", "base\\a", "base/a\\b",
        "C:/a", "base/C:a", "other/a",
    ],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = pack(tmp_path / "a.pt2", [("base/first", b"1"), (name, b"2")])
    with pytest.raises(FormatError, match="which does not stay in one folder") as raised:
        read(path)
    assert raised.value.expected == EXPECTED
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("name", ["ba\\se/a", "C:/a", "../a", "/a"])
def test_a_folder_that_is_not_beside_the_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="which does not stay in one folder"):
        read(pack(tmp_path / "a.pt2", [(name, b"1")]))


def test_a_name_cut_at_a_zero_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2", [("base/a", b"1"), ("base/bXc", b"2")])
    path.write_bytes(path.read_bytes().replace(b"base/bXc", b"base/b\0c"))
    with pytest.raises(FormatError, match="which does not stay in one folder"):
        read(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2", [("base/a", b"1"), ("base/a", b"2")])
    with pytest.raises(FormatError, match="lists 'a' twice"):
        read(path)


def test_a_compressed_member_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.pt2", [("base/a", bytes(1000))], zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="'base/a' compressed"):
        read(path)


def edit(position: str, value: bytes, after: bytes) -> Callable[[bytes], bytes]:
    """Change bytes of the second member's entry (in the directory, or before the member), by their place in it."""

    def change(data: bytes) -> bytes:
        start = data.rindex(after)
        offset = {"flags": 8, "method": 10, "compressed size": 20, "size": 24, "header": 42, "name": 46}[position]
        if after == b"PK\x03\x04":
            offset = {"flags": 6, "method": 8, "name": 30, "magic": 0}[position]
        return data[: start + offset] + value + data[start + offset + len(value) :]

    return change


def sized(data: bytes, local: int, central: int) -> bytes:
    """Say in both headers of a member that it is 40 bytes long."""
    for start in (local + 18, central + 20):
        data = data[:start] + struct.pack("<II", 40, 40) + data[start + 8 :]
    return data


CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
EDITS = {
    "encrypted": (edit("flags", b"\x01\x00", CENTRAL), "'base/b' encrypted"),
    "two sizes": (edit("compressed size", struct.pack("<I", 3), CENTRAL), "with two sizes, 3 and 4"),
    "overlap": (lambda data: sized(data, data.index(LOCAL), data.index(CENTRAL)), "'b' over bytes of something else"),
    "over the directory": (
        lambda data: sized(data, data.rindex(LOCAL), data.rindex(CENTRAL)),
        "'b' over bytes of something else",
    ),
    "the same header twice": (edit("header", struct.pack("<I", 0), CENTRAL), "another header before 'base/b'"),
    "another name": (edit("name", b"base/c", LOCAL), "another header before 'base/b'"),
    "another method": (edit("method", b"\x08\x00", LOCAL), "another header before 'base/b'"),
    "encrypted in secret": (edit("flags", b"\x01\x00", LOCAL), "another header before 'base/b'"),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_directory_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    path = pack(tmp_path / "a.pt2", [("base/a", b"1111"), ("base/b", b"2222")])
    change, message = EDITS[case]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=message):
        read(path)
