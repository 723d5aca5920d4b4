"""Compiled code that cannot be opened for want of room is told of as such, and leaves nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from intarsia.core.compiled.compiling import tell_fault
from intarsia.core.compiled.model import CompiledModel
from intarsia.errors import EngineError

FILES = {"a.wrapper.so": b"code", "a.wrapper_metadata.json": b"{}"}


def test_a_disk_without_room_is_no_fault_of_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(
        EngineError, match=r"cannot be written into .* \(No space left on device\), expected room for 6"
    ):
        CompiledModel(FILES)
    assert list(tmp_path.iterdir()) == []


def test_no_folder_for_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(EngineError, match=r"no folder to open it in \(.*No such file.*TMPDIR"):
        CompiledModel(FILES)


def test_what_a_compiler_says_is_told() -> None:
    error = RuntimeError(
        "C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\nx.cpp:3:10: fatal error: no room left\nmore"
    )
    assert tell_fault(error) == "RuntimeError: C++ compile error, fatal error: no room left"
    assert tell_fault(ValueError("one\ntwo")) == "ValueError: one"
