"""The page about verification says what is so."""

from __future__ import annotations

import doctest
from pathlib import Path

from intarsia.verification import TOLERANCES

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"


def test_the_examples_run() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert attempted > 5


def test_the_tolerances_are_those_of_the_code() -> None:
    table = PAGE.read_text().split("## Tolerances")[1]
    for dtype, allowed in TOLERANCES.items():
        name = str(dtype).removeprefix("torch.")
        (row,) = [line for line in table.splitlines() if name in line.replace(",", " ").split()]
        assert [float(cell) for cell in row.split("|")[2:4]] == [allowed.relative, allowed.absolute]
