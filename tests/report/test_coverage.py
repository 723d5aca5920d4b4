"""The drawing of a coverage: every operator, place and reason stands in it."""

from __future__ import annotations

import pytest
from rich.console import Console

from intarsia.core.coverage import Coverage, OperatorPlacement
from intarsia.report.coverage import advice, coverage_json, draw_coverage


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
REMOVED = (("a_1 (aten.check.default)", "checked by the ranges"), ("a_2 (aten.check.default)", "checked by the ranges"))


def test_operators_are_counted_by_place_and_reason() -> None:
    lines = drawn(Coverage(PLACEMENTS)).splitlines()
    assert lines[0].strip() == "2 of 3 operators in 2 engines."
    assert any(line.split() == ["aten.linear.default", "engine", "2", "supported"] for line in lines)


def test_square_brackets_are_text_and_no_markup() -> None:
    assert "kept by [the caller]" in drawn(Coverage(PLACEMENTS))
    assert "aten.attention[x]" in drawn(Coverage(PLACEMENTS))


def test_what_was_removed_or_not_built_is_shown_with_its_reason() -> None:
    lines = drawn(Coverage(PLACEMENTS, REMOVED, (("openvino_2", "refused: f64"),))).splitlines()
    assert any(
        line.split() == ["aten.check.default", "removed", "2", "checked", "by", "the", "ranges"] for line in lines
    )
    assert any(line.split() == ["openvino_2", "refused:", "f64"] for line in lines)


def test_plain_text_tells_the_same() -> None:
    text = str(Coverage(PLACEMENTS, REMOVED, (("openvino_2", "refused: f64"),)))
    assert text.splitlines() == [
        "2 of 3 operators in 2 engines",
        "engine      2  aten.linear.default  supported",
        "torch       1  aten.attention[x]    kept by [the caller]",
        "removed     2  aten.check.default   checked by the ranges",
        "not built      openvino_2           refused: f64",
    ]


@pytest.mark.parametrize(("inside", "little"), [(0, True), (1, True), (2, False), (4, False)])
def test_little_is_less_than_half_of_the_operators(inside: int, little: bool) -> None:
    places = ["openvino_0"] * inside + ["torch"] * (4 - inside)
    coverage = Coverage(tuple(OperatorPlacement(str(i), f"op{i}", place, "why") for i, place in enumerate(places)))
    assert bool(list(advice(coverage))) is little
    assert ("Engines got little of this model" in drawn(coverage)) is little


def test_advice_names_the_most_frequent_operators_in_torch() -> None:
    names = ("many", "many", "few", "some", "some", "none")
    text = "\n".join(advice(Coverage(tuple(OperatorPlacement(str(i), n, "torch", "so") for i, n in enumerate(names)))))
    assert "0 of 6 operators" in text
    assert "2 many (so), 2 some (so), 1 few (so)." in text


def test_coverage_as_json_tells_what_the_table_tells() -> None:
    told = coverage_json(Coverage(PLACEMENTS, REMOVED, (("openvino_2", "refused: f64"),)))
    assert told["engines"] == ["openvino_0", "openvino_1"]
    assert told["share_in_engines"] == pytest.approx(2 / 3)
    assert told["operators"][0] == {
        "operator": "aten.linear.default",
        "in_engine": True,
        "backend": "",
        "nodes": 2,
        "why": "supported",
    }
    assert told["removed"] == [{"operator": "aten.check.default", "nodes": 2, "why": "checked by the ranges"}]
    assert told["not_built"] == [{"partition": "openvino_2", "why": "refused: f64"}]
    assert told["advice"] == []


def test_a_program_without_operators_is_drawn() -> None:
    assert "0 of 0 operators in 0 engines" in drawn(Coverage(()))


def test_notes_stand_before_the_advice() -> None:
    coverage = Coverage(PLACEMENTS[1:2])
    console = Console(width=120)
    with console.capture() as capture:
        console.print(draw_coverage(coverage, notes=["The model was captured in training mode."]))
    lines = [line.strip() for line in capture.get().splitlines()]
    assert lines.index("The model was captured in training mode.") + 1 == lines.index(next(iter(advice(coverage))))
    assert coverage_json(coverage, notes=["first"])["advice"] == ["first", *advice(coverage)]
