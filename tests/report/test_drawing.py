"""Numbers of bytes as people read them."""

from __future__ import annotations

import pytest

from intarsia.report.drawing import byte_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (45_434_187, "45.4 MB"), (2_300_000_000, "2.3 GB")],
)
def test_bytes_are_told_in_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert byte_text(size_bytes) == text
