"""The facts about an exported program, against what is known of the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import intarsia.core.op  # noqa: F401 - registers the engine operator
from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.core.ledger import Entry, Ledger
from intarsia.errors import EngineError
from intarsia.report.inspection import draw_program
from intarsia.report.program import ProgramFacts, describe_program

SIGNATURE = "(f32[b, 4]) -> (f32[b, 4])"


def engine_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def packed(payload: bytes = b"p" * 70, source: bytes | None = b"s" * 5) -> bytes:
    built = BuiltEngine(payload, source, "9.1", "abacus", {})
    return pack_engine(built, name="bead_0", backend="bead", signature=SIGNATURE)


class Mixed(torch.nn.Module):
    """An engine, torch operators, every kind of state, a write, and nested outputs."""

    def __init__(self, engine: torch.Tensor) -> None:
        super().__init__()
        self.engine = engine
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mask", torch.zeros(4, dtype=torch.bool), persistent=False)
        self.offset = torch.ones(4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        self.calls.add_(1)
        (y,) = torch.ops.intarsia.run_engine.default([self.linear(x)], self.engine, SIGNATURE)
        return {"y": y * scale, "rest": [x + self.offset + self.mask]}


def exported(data: bytes) -> torch.export.ExportedProgram:
    shapes = {"x": {0: torch.export.Dim("b", min=1, max=8)}, "scale": None}
    with torch.no_grad():
        program = torch.export.export(
            Mixed(engine_tensor(data)), (torch.zeros(3, 4),), {"scale": torch.ones(4)}, dynamic_shapes=shapes
        )
        return program.run_decompositions({})


@pytest.fixture(scope="module")
def facts() -> ProgramFacts:
    ledger = Ledger((Entry("node", "neg", "removed", None, "unused"),))
    return describe_program(exported(packed()), versions={"torch": "1.2"}, ledger=ledger)


def test_an_engine_is_described_from_its_container(facts: ProgramFacts) -> None:
    (engine,) = facts.engines
    assert (engine.name, engine.backend, engine.backend_version, engine.target) == ("bead_0", "bead", "9.1", "abacus")
    assert (engine.constant, engine.signature) == ("engine", SIGNATURE)
    assert (engine.payload_bytes, engine.source_bytes) == (70, 5)


def test_an_engine_without_source_has_none() -> None:
    assert describe_program(exported(packed(source=None))).engines[0].source_bytes == 0


def test_an_engine_that_two_constants_hold_is_told_once() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bead_0, self.bead_1 = engine_tensor(packed()), engine_tensor(packed())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (y,) = torch.ops.intarsia.run_engine.default([x], self.bead_0, SIGNATURE)
            (z,) = torch.ops.intarsia.run_engine.default([y.sin()], self.bead_1, SIGNATURE)
            return z + 1

    facts = describe_program(torch.export.export(Twice(), (torch.zeros(3, 4),)))
    assert [(engine.constant, engine.same_as) for engine in facts.engines] == [("bead_0", ""), ("bead_1", "bead_0")]
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_program(facts))
    lines = [line.split() for line in capture.get().splitlines() if line.strip().startswith(("program", "bead_"))]
    assert "1 engine," in " ".join(lines[0])
    assert lines[1] == ["bead_0", "bead", "9.1", "abacus", "70", "B", "5", "B"]
    assert lines[2] == ["bead_1", "bead", "9.1", "abacus", "as", "bead_0"]


def test_damage_to_an_engine_is_an_error() -> None:
    with pytest.raises(EngineError):
        describe_program(exported(b"not a container"))


def test_operators_left_in_torch_are_counted_without_the_engine(facts: ProgramFacts) -> None:
    assert facts.operators == {"aten.add.Tensor": 3, "aten.linear.default": 1, "aten.mul.Tensor": 1}
    assert next(iter(facts.operators)) == "aten.add.Tensor"


def test_arithmetic_on_sizes_is_no_operator() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape[0] * x.shape[1] * 2, 2)

    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("c")}
    program = torch.export.export(Flat(), (torch.zeros(3, 5, 4),), dynamic_shapes=(sizes,))
    assert "sym_size" in str(program.graph)
    assert describe_program(program).operators == {"aten.reshape.default": 1}


def test_inputs_outputs_and_ranges_are_told(facts: ProgramFacts) -> None:
    ((size, span),) = facts.ranges.items()
    assert span == "1 to 8"
    assert facts.places == {size: "x.shape[0]"}
    assert [(leaf.name, leaf.type) for leaf in facts.inputs] == [("x", f"f32[{size}, 4]"), ("scale", "f32[4]")]
    assert [(leaf.name, leaf.type) for leaf in facts.outputs] == [
        ("output['y']", f"f32[{size}, 4]"),
        ("output['rest'][0]", f"f32[{size}, 4]"),
    ]


def test_sizes_are_placed_where_an_input_shows_them_first() -> None:
    class Parts(torch.nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor], n: int) -> torch.Tensor:
            return pair[0].sum() + pair[1] * n

    b, c = torch.export.Dim("b", min=2, max=9), torch.export.Dim("c", min=2, max=9)
    args, shapes = ((torch.ones(3, 8), torch.ones(3)), 5), (({0: b, 1: 2 * c}, {0: b}), torch.export.Dim.DYNAMIC)
    facts = describe_program(torch.export.export(Parts(), args, dynamic_shapes=shapes))
    assert list(facts.places.values()) == ["pair[0].shape[0]", "pair[0].shape[1]", "n"]
    (inner,) = facts.ranges.keys() - facts.places.keys()
    assert f"2*{inner}" in facts.places


@pytest.mark.parametrize(("least", "told"), [(None, "any size"), (3, "3 or more")])
def test_a_size_without_an_upper_end_is_told_in_words(least: int | None, told: str) -> None:
    size = torch.export.Dim.DYNAMIC if least is None else torch.export.Dim("b", min=least)
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(5, 4),), dynamic_shapes=({0: size},))
    assert list(describe_program(program).ranges.values()) == [told]


@pytest.mark.parametrize("from_file", [False, True])
def test_a_number_that_the_graph_reads_is_no_size(tmp_path: Path, from_file: bool) -> None:
    class Chooses(torch.nn.Module):
        def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return x[row]

    program = torch.export.export(Chooses(), (torch.zeros(5, 4), torch.tensor(1)))
    if from_file:
        torch.export.save(program, tmp_path / "chooses.pt2")
        program = torch.export.load(tmp_path / "chooses.pt2")
    assert program.range_constraints
    assert not describe_program(program).ranges


def test_state_is_told_with_kind_and_writes(facts: ProgramFacts) -> None:
    told = {entry.name: (entry.kind, entry.type, entry.size_bytes, entry.written_by) for entry in facts.state}
    assert told == {
        "linear.weight": ("parameter", "f32[4, 4]", 64, ()),
        "linear.bias": ("parameter", "f32[4]", 16, ()),
        "calls": ("buffer", "f32[1]", 4, ("aten.add.Tensor (%add)",)),
        "mask": ("non-persistent buffer", "b8[4]", 4, ()),
        "offset": ("constant", "f32[4]", 16, ()),
    }


def test_sizes_by_part(facts: ProgramFacts) -> None:
    assert facts.size_bytes == {
        "parameters": 80,
        "buffers": 8,
        "constants": 16,
        "engines, compiled": 70,
        "engines, portable": 5,
        "constants shared by engines": 0,
    }


def test_shared_storage_is_counted_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = torch.nn.Parameter(torch.zeros(8))
            self.register_buffer("part", self.whole.detach()[2:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.whole.sum() + self.part.sum()

    sizes = describe_program(torch.export.export(Tied(), (torch.zeros(1),))).size_bytes
    assert sizes["parameters"] + sizes["buffers"] == 32


def test_an_input_that_is_written_or_a_number_is_told() -> None:
    class Writer(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int, nothing: None) -> tuple[torch.Tensor, None]:
            x.add_(1)
            return x * times, None

    with torch.no_grad():
        program = torch.export.export(Writer(), (torch.zeros(2), 3, None)).run_decompositions({})
    inputs = {leaf.name: (leaf.type, leaf.written_by) for leaf in describe_program(program).inputs}
    assert inputs == {"x": ("f32[2]", ("aten.add.Tensor (%add)",)), "times": ("3", ()), "nothing": ("None", ())}


def test_writes_that_the_graph_does_in_place_are_told() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("step", torch.ones(1))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.calls.add_(self.step)
            return x.add_(1) + y

    facts = describe_program(torch.export.export(Counter(), (torch.zeros(2), torch.zeros(2))))
    assert facts.dialect == "TRAINING"
    assert {entry.name: entry.written_by for entry in facts.state} == {
        "calls": ("aten.add_.Tensor (%add_)",),
        "step": (),
    }
    assert {leaf.name: leaf.written_by for leaf in facts.inputs} == {"x": ("aten.add_.Tensor (%add__1)",), "y": ()}


def test_facts_are_json_and_drawn_in_full(facts: ProgramFacts) -> None:
    assert json.loads(json.dumps(facts.to_json()))["engines"][0]["signature"] == SIGNATURE
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_program(facts))
    text = capture.get()
    for expected in ("bead_0", SIGNATURE, "aten.linear.default", "linear.weight", "non-persistent buffer", "1 to 8"):
        assert expected in text
    assert "1 node: 1 removed (unused: 1)" in text


def test_a_written_entry_is_told_with_what_writes_it(facts: ProgramFacts) -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_program(facts))
    (line,) = [line for line in capture.get().splitlines() if line.strip().startswith("calls")]
    assert line.strip().endswith("aten.add.Tensor (%add)")


def test_a_write_by_an_engine_or_of_an_input_is_told() -> None:
    class Writer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.engine = engine_tensor(packed())
            self.register_buffer("result", torch.zeros(3, 4))
            self.register_buffer("given", torch.zeros(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (y,) = torch.ops.intarsia.run_engine.default([x], self.engine, SIGNATURE)
            self.result.copy_(y)
            self.given.copy_(x)
            return y + 1

    with torch.no_grad():
        program = torch.export.export(Writer(), (torch.zeros(3, 4),)).run_decompositions({})
    (output,) = program.graph.find_nodes(op="output")
    by_engine, by_input = (node.name for node in output.args[0][:2])
    told = {entry.name: entry.written_by for entry in describe_program(program).state}
    assert told == {"result": (f"engine engine (%{by_engine})",), "given": (f"input %{by_input}",)}


def test_a_long_version_is_cut_in_the_drawing_alone() -> None:
    built = BuiltEngine(b"p", None, "9.1.0-204-82bbf029-releases/9/1", "abacus", {})
    facts = describe_program(exported(pack_engine(built, name="bead_0", backend="bead", signature=SIGNATURE)))
    assert facts.engines[0].backend_version == "9.1.0-204-82bbf029-releases/9/1"
    console = Console(width=80)
    with console.capture() as capture:
        console.print(draw_program(facts))
    assert "bead 9.1.0 " in capture.get()
    assert "82bbf029" not in capture.get()


def test_how_state_is_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    program = exported(packed())
    facts = describe_program(program, writes={"calls": ""})
    assert {entry.name: entry.writing for entry in facts.state if entry.writing} == {"calls": "in place"}
    facts = describe_program(program, writes={"calls": "%roll makes the whole value"})
    Console(width=200).print(draw_program(facts))
    assert "aten.add.Tensor (%add); whole copy: %roll makes the whole value" in capsys.readouterr().out
