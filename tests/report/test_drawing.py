"""Numbers of bytes as people read them; tables whose names stay whole where they can."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from intarsia.report.drawing import byte_text, plain_table


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (45_434_187, "45.4 MB"), (2_300_000_000, "2.3 GB")],
)
def test_bytes_are_told_in_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert byte_text(size_bytes) == text


NAMES = ("output['text_model_output']['last_hidden_state']", "output['text_embeds']")


def drawn(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    rows = [(name, "a reason of several words that may stand on several lines") for name in NAMES]
    console.print(plain_table(("output", "why"), rows))
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined] # the StringIO above


@pytest.mark.parametrize("width", [64, 80, 200])
def test_names_stay_whole_while_the_other_columns_can_wrap(width: int) -> None:
    text = drawn(width)
    assert all(any(name in line for line in text) for name in NAMES)
    assert max(map(len, text)) <= width


def test_a_name_without_room_wraps_between_its_parts() -> None:
    text = [line[:30].strip() for line in drawn(46)]
    assert "output['text_model_output']" in text
    assert "['last_hidden_state']" in text


def test_a_part_without_room_wraps_and_loses_nothing() -> None:
    text = drawn(32)
    assert max(map(len, text)) <= 32
    assert NAMES[0] in "".join(line[:22].strip().partition("  ")[0] for line in text)
