"""Archives as they are written: aligned, hashed, the same for the same, readable for others."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch

from intarsia.formats.archive.listing import open_archive
from intarsia.formats.archive.writer import Writer

CONTENT = {"a": b"", "folder/b": b"x" * 1000, "näme": b"y" * 63, "c": bytes(64), "d": b"end"}


def write(path: Path) -> Writer:
    with Writer(path) as writer:
        for name, data in CONTENT.items():
            writer.stream(name, len(data), [memoryview(data)[:10], memoryview(data)[10:]])
    return writer


@pytest.fixture(params=[1 << 30, 0], ids=["short sizes", "long sizes"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("intarsia.formats.archive.writer._BIG", request.param)
    write(tmp_path / "a.pt2")
    return tmp_path / "a.pt2"


def test_members_are_stored_aligned_and_in_order(archive: Path) -> None:
    with open_archive(archive) as opened:
        directory = opened.directory()
    data = archive.read_bytes()
    assert list(directory) == list(CONTENT)
    for name, member in directory.items():
        assert member.offset % 64 == 0
        assert data[member.offset : member.offset + member.size_bytes] == CONTENT[name]


def test_the_archive_is_one_for_zipfile_and_for_torch(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        assert opened.testzip() is None
        assert {name.removeprefix("archive/"): opened.read(name) for name in opened.namelist()} == CONTENT
    with Writer(archive) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("b", CONTENT["folder/b"])
    reader = torch._C.PyTorchFileReader(str(archive))
    assert reader.get_record("b") == CONTENT["folder/b"]


def test_every_member_is_hashed(tmp_path: Path) -> None:
    members = write(tmp_path / "a.pt2").members
    assert members == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items()}


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.pt2")
    write(tmp_path / "another.pt2")
    assert (tmp_path / "a.pt2").read_bytes() == (tmp_path / "another.pt2").read_bytes()


def test_chunks_are_asked_for_one_by_one(tmp_path: Path) -> None:
    sizes = []

    def chunks() -> object:
        for _ in range(3):
            sizes.append((tmp_path / "a.pt2").stat().st_size)
            yield memoryview(bytes(100_000))

    with Writer(tmp_path / "a.pt2") as writer:
        writer.stream("a", 300_000, chunks())
    assert sizes[1] >= 100_000 - 8192
    assert sizes[2] >= 200_000 - 8192
