"""What methods store together, against what is known of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.export import ExportedProgram, export

from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.formats.loading import load_methods
from intarsia.formats.saving import save_methods
from intarsia.report.inspection import draw_program, draw_storage
from intarsia.report.program import describe_program
from intarsia.report.storage import StorageFacts, describe_storage

SIGNATURE = "(f32[4]) -> (f32[4])"
WEIGHTS = b"w" * 5000


class Hybrid(torch.nn.Module):
    """An engine and a layer of torch."""

    def __init__(self, layer: torch.nn.Module, engine: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.engine = layer, engine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.intarsia.run_engine.default([self.layer(x)], self.engine, SIGNATURE)[0]


def engine(name: str, rest: bytes) -> torch.Tensor:
    """An engine of one large constant, compiled to 6000 bytes."""
    built = BuiltEngine(b"p" * 6000, rest + WEIGHTS, "1", "any", {}, ((len(rest), len(WEIGHTS)),))
    return torch.frombuffer(
        bytearray(pack_engine(built, name=name, backend="b", signature=SIGNATURE)), dtype=torch.uint8
    )


@pytest.fixture(scope="module")
def programs() -> dict[str, ExportedProgram]:
    layer = torch.nn.Linear(4, 4)
    engines = {"prefill": engine("b_0", b"123"), "decode": engine("b_1", b"45678")}
    return {name: export(Hybrid(layer, one), (torch.ones(4),)) for name, one in engines.items()}


def load(programs: dict[str, ExportedProgram], path: Path, **how: Any) -> list[ExportedProgram]:
    save_methods(programs, path, facts={name: {} for name in programs}, **how)
    return [method.program for method in load_methods(path).values()]


def test_what_methods_share_is_counted_once(programs: dict[str, ExportedProgram], tmp_path: Path) -> None:
    facts = describe_storage(load(programs, tmp_path / "a.pt2"))
    assert facts == StorageFacts(
        {
            "parameters": 80,
            "buffers": 0,
            "constants": 0,
            "engines, compiled": 12000,
            "engines, portable": 8,
            "constants shared by engines": 5000,
        },
        repeated_bytes=10000,
        unbuilt=(),
    )
    assert json.loads(json.dumps(facts.to_json()))["repeated_bytes"] == 10000


def test_without_payloads_nothing_is_repeated(programs: dict[str, ExportedProgram], tmp_path: Path) -> None:
    facts = describe_storage(load(programs, tmp_path / "a.pt2", payloads=False))
    assert (facts.size_bytes["engines, compiled"], facts.repeated_bytes) == (0, 0)
    assert facts.unbuilt == ("b_0", "b_1")


def test_an_engine_of_two_methods_is_counted_once(programs: dict[str, ExportedProgram]) -> None:
    (one, two) = (describe_storage([programs["prefill"]] * times) for times in (1, 2))
    assert one == two
    assert one.size_bytes["engines, portable"] == 5003
    assert one.size_bytes["constants shared by engines"] == 0


def test_a_program_tells_what_its_engines_refer_to(programs: dict[str, ExportedProgram], tmp_path: Path) -> None:
    facts = describe_program(load(programs, tmp_path / "a.pt2")[0])
    (found,) = facts.engines
    assert (found.payload_bytes, found.source_bytes, found.shared_bytes) == (6000, 5003, 5000)
    assert facts.repeated_bytes == 5000


@pytest.mark.parametrize("payloads", [True, False])
def test_the_drawing_tells_it(programs: dict[str, ExportedProgram], tmp_path: Path, payloads: bool) -> None:
    loaded = load(programs, tmp_path / "a.pt2", payloads=payloads)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_program(describe_program(loaded[0])), draw_storage(describe_storage(loaded)))
    text = capture.get()
    assert "5.0 kB, 5.0 kB shared" in text
    assert ("when called" in text) is not payloads
    assert ("repeat up to 10.0 kB of weights" in text) is payloads
