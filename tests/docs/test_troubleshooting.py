"""The page about errors tells of each of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from intarsia import errors

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
ERRORS = {
    name: error
    for name, error in vars(errors).items()
    if inspect.isclass(error) and issubclass(error, errors.IntarsiaError)
}


def test_every_error_has_a_section_and_every_section_an_error() -> None:
    assert SECTIONS.keys() == ERRORS.keys()


@pytest.mark.parametrize("name", ERRORS)
def test_a_section_says_what_the_error_means_and_how_to_mend_it(name: str) -> None:
    meaning, _, rest = SECTIONS[name].partition("```python")
    assert meaning.strip()
    if ERRORS[name] is not errors.IntarsiaError:
        # `test_pages.py` runs the example and compares its message
        assert f"Traceback (most recent call last):\nintarsia.errors.{name}: " in rest
        assert "**Cure.**" in rest
