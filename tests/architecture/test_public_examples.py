"""Whatever is public has an example in its docstring; pytest runs them all as doctests."""

from __future__ import annotations

import re
from pathlib import Path
from pydoc import locate

import pytest

import intarsia
from intarsia import errors

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
ERRORS = {f"intarsia.errors.{n}" for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, Exception)}
DOCUMENTED = {
    name if name.startswith("intarsia.") else f"intarsia.{name}"
    for name in re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)", REFERENCE, re.MULTILINE)
}


@pytest.mark.parametrize("name", sorted(DOCUMENTED | ERRORS))
def test_a_public_name_has_an_example(name: str) -> None:
    assert "\n>>> " in re.sub(r"\n +", "\n", locate(name).__doc__ or "")


def test_the_reference_holds_every_public_name() -> None:
    assert {f"intarsia.{name}" for name in intarsia.__all__} <= DOCUMENTED | {"intarsia.IntarsiaError"}
    assert ".. automodule:: intarsia.errors" in REFERENCE
