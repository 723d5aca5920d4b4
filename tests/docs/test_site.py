"""The site is built without a warning, and holds every page and every example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-d", str(tmp_path / "doctrees")]
    built = subprocess.run([*command, "docs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= {page.relative_to(tmp_path) for page in tmp_path.rglob("*.html")}


def test_every_example_is_shown() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert {example.name for example in (ROOT / "examples").glob("*.py") if example.name not in page} == set()
