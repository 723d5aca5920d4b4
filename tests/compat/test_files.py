"""Files that released versions wrote load, and answer as they did then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import intarsia
from compat.reader import File
from intarsia.formats.manifest import FORMAT_VERSION

FILES = sorted(Path(__file__).with_name("files").glob("*.pt2"))


def test_every_format_version_has_a_file() -> None:
    versions = {int(re.findall(r"v(\d+)_", path.name)[0]) for path in FILES}
    assert versions == set(range(1, FORMAT_VERSION + 1))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_loads_and_answers_as_it_did(path: Path) -> None:
    assert intarsia.load(path, verify=True).test_vectors is not None
    result = intarsia.verify(path)
    assert result.replay is not None
    assert result.replay.calls >= 2
    assert result.replay.ok, str(result)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_as_the_page_says(path: Path) -> None:
    assert File(path).calls


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_small_and_names_no_folder_of_a_machine(path: Path) -> None:
    assert path.stat().st_size <= 50_000
    assert b"site-packages" not in path.read_bytes()
    assert b'File \\"' not in path.read_bytes()
