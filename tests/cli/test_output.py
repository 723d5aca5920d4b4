"""Where a command may write is checked before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intarsia.cli.output import check_output
from intarsia.errors import FormatError


def test_a_free_path_passes(tmp_path: Path) -> None:
    check_output(tmp_path / "m.pt2", ".pt2", force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m.onnx", r"m\.onnx: found the ending '\.onnx', expected '\.pt2'\. Name the file \*\.pt2\."),
        ("m", r"m: found no ending, expected '\.pt2'"),
        ("nowhere/m.pt2", r"m\.pt2: found no folder there"),
        (".", "found a folder, expected a file name"),
        ("a" * 300 + ".pt2", "File name too long"),
        ("there.pt2", r"there\.pt2: found a file that exists, expected a free path\. .* --force"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there.pt2").touch()
    with pytest.raises(FormatError, match=message):
        check_output(tmp_path / name, ".pt2", force=False)


def test_force_allows_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").touch()
    check_output(tmp_path / "m.pt2", ".pt2", force=True)


def test_a_folder_without_leave_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path.resolve() and mode == os.W_OK))
    with pytest.raises(FormatError, match="found a folder that you may not write"):
        check_output(tmp_path / "m.pt2", ".pt2", force=False)
