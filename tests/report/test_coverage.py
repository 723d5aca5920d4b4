"""The drawing of a coverage: every operator, place and reason stands in it."""

from __future__ import annotations

from rich.console import Console

from intarsia.core.coverage import Coverage, OperatorPlacement
from intarsia.report.coverage import draw_coverage


def drawn(coverage: Coverage) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(draw_coverage(coverage))
    return capture.get()


PLACEMENTS = (
    OperatorPlacement("linear", "aten.linear.default", "openvino_0", "supported"),
    OperatorPlacement("attention", "aten.attention[x]", "torch", "kept by [the caller]"),
    OperatorPlacement("linear_1", "aten.linear.default", "openvino_1", "supported"),
)
REMOVED = (("assert_1", "checked by the ranges"), ("assert_2", "checked by the ranges"))


def test_operators_are_counted_by_place_and_reason() -> None:
    lines = drawn(Coverage(PLACEMENTS)).splitlines()
    assert lines[0].strip() == "2 of 3 operators in 2 engines."
    assert any(line.split() == ["aten.linear.default", "engine", "2", "supported"] for line in lines)


def test_square_brackets_are_text_and_no_markup() -> None:
    assert "kept by [the caller]" in drawn(Coverage(PLACEMENTS))
    assert "aten.attention[x]" in drawn(Coverage(PLACEMENTS))


def test_what_was_removed_or_not_built_is_shown_with_its_reason() -> None:
    lines = drawn(Coverage(PLACEMENTS, REMOVED, (("openvino_2", "refused: f64"),))).splitlines()
    assert any(line.split() == ["checked", "by", "the", "ranges", "2"] for line in lines)
    assert any(line.split() == ["openvino_2", "refused:", "f64"] for line in lines)


def test_plain_text_tells_the_same() -> None:
    text = str(Coverage(PLACEMENTS, REMOVED, (("openvino_2", "refused: f64"),)))
    assert text.splitlines()[0] == "2 of 3 operators in 2 engines"
    assert "engine   2  aten.linear.default  supported" in text
    assert "removed  2  checked by the ranges" in text
    assert "not built    openvino_2  refused: f64" in text


def test_a_program_without_operators_is_drawn() -> None:
    assert "0 of 0 operators in 0 engines" in drawn(Coverage(()))
