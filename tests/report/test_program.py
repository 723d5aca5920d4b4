"""The facts about an exported program, against what is known of the program."""

from __future__ import annotations

import json
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


def test_damage_to_an_engine_is_an_error() -> None:
    with pytest.raises(EngineError):
        describe_program(exported(b"not a container"))


def test_operators_left_in_torch_are_counted_without_the_engine(facts: ProgramFacts) -> None:
    assert facts.operators == {"aten.add.Tensor": 3, "aten.linear.default": 1, "aten.mul.Tensor": 1}
    assert next(iter(facts.operators)) == "aten.add.Tensor"


def test_inputs_outputs_and_ranges_are_told(facts: ProgramFacts) -> None:
    ((size, span),) = facts.ranges.items()
    assert span == "1 to 8"
    assert [(leaf.name, leaf.type) for leaf in facts.inputs] == [("x", f"f32[{size}, 4]"), ("scale", "f32[4]")]
    assert [(leaf.name, leaf.type) for leaf in facts.outputs] == [
        ("['y']", f"f32[{size}, 4]"),
        ("['rest'][0]", f"f32[{size}, 4]"),
    ]


def test_state_is_told_with_kind_and_writes(facts: ProgramFacts) -> None:
    told = {entry.name: (entry.kind, entry.type, entry.size_bytes, entry.written) for entry in facts.state}
    assert told == {
        "linear.weight": ("parameter", "f32[4, 4]", 64, False),
        "linear.bias": ("parameter", "f32[4]", 16, False),
        "calls": ("buffer", "f32[1]", 4, True),
        "mask": ("non-persistent buffer", "b8[4]", 4, False),
        "offset": ("constant", "f32[4]", 16, False),
    }


def test_sizes_by_part(facts: ProgramFacts) -> None:
    assert facts.size_bytes == {
        "parameters": 80,
        "buffers": 8,
        "constants": 16,
        "engines, compiled": 70,
        "engines, portable": 5,
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
    inputs = {leaf.name: (leaf.type, leaf.written) for leaf in describe_program(program).inputs}
    assert inputs == {"x": ("f32[2]", True), "times": ("3", False), "nothing": ("None", False)}


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
    assert {entry.name: entry.written for entry in facts.state} == {"calls": True, "step": False}
    assert {leaf.name: leaf.written for leaf in facts.inputs} == {"x": True, "y": False}


def test_facts_are_json_and_drawn_in_full(facts: ProgramFacts) -> None:
    assert json.loads(json.dumps(facts.to_json()))["engines"][0]["signature"] == SIGNATURE
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_program(facts))
    text = capture.get()
    for expected in ("bead_0", SIGNATURE, "aten.linear.default", "linear.weight", "non-persistent buffer", "1 to 8"):
        assert expected in text
    assert "1 node: 1 removed (1 unused)" in text


def test_a_written_entry_is_marked(facts: ProgramFacts) -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_program(facts))
    (line,) = [line for line in capture.get().splitlines() if line.strip().startswith("calls")]
    assert line.split()[-1] == "yes"
