"""No file of the project names a package host or a place on somebody's machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "requirements", ".ci", ".github")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".cfg", ".yml", ".json", ""}
# Written in pieces, so that this file does not match itself.
FORBIDDEN = re.compile(
    "|".join(("pypi" + r"\.org", "python" + "hosted", "download" + r"\.pytorch", "/" + r"(root|work|home)/"))
)


def project_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files = [path for path in [*ROOT.iterdir(), *inside] if path.is_file() and path.suffix in SUFFIXES]
    # In a worktree, .git is a file that says where the repository is.
    outside = (".egg-info", "__pycache__", ".git")
    return [path for path in files if not any(part.endswith(outside) for part in path.parts)]


@pytest.mark.parametrize("path", project_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_host_and_no_machine_path(path: Path) -> None:
    assert FORBIDDEN.findall(path.read_text(encoding="utf-8")) == []


def test_the_project_files_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in project_files()}
    assert {"README.md", "Makefile", "src/intarsia/errors.py", "requirements/pins.txt"} <= names
