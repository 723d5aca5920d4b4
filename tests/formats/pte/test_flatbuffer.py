"""What is no FlatBuffer, or leads out of one, is an error and no crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from intarsia.formats.pte.flatbuffer import Table
from intarsia.formats.pte.plan import read_contents, read_plans

# A table with the fields 0: the number 7, and 1: the text "abc".
TABLE = bytes([16, 0, 0, 0, 8, 0, 12, 0, 4, 0, 8, 0, 0, 0, 0, 0, 12, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0])
TABLE += bytes([3, 0, 0, 0]) + b"abc\0"


def test_fields_are_read_by_their_numbers() -> None:
    table = Table.root(memoryview(TABLE))
    assert table.number(0) == 7
    assert table.text(1) == "abc"
    assert table.numbers(1, "<B") == [*b"abc"]


def test_a_field_that_is_not_written_has_its_default() -> None:
    table = Table.root(memoryview(TABLE))
    assert (table.number(5, default=3), table.text(5), table.numbers(5), table.table(5), table.tables(5)) == (
        3, "", [], None, [],
    )  # fmt: skip


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff", TABLE[:20], TABLE[:-4]])
def test_what_leads_out_of_the_buffer_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"too short|outside of it|leads out of it"):
        Table.root(memoryview(data)).text(1)


@pytest.mark.parametrize("read", [read_plans, read_contents])
@pytest.mark.parametrize("seed", range(200))
def test_noise_is_an_error_or_nothing(read: Callable[[memoryview], Any], seed: int) -> None:
    noise = random.Random(seed)  # noqa: S311 - not for secrets
    data = bytes(noise.choices(range(24), k=noise.randrange(200)))
    with suppress(ValueError):
        read(memoryview(data))
