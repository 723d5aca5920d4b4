"""Which state entries of a program are engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from intarsia.core.engine_calls import engine_names, read_containers
from intarsia.runtime.program import Program

SIGNATURE = "(f32[3]) -> (f32[3])"


class Branching(torch.nn.Module):
    """Runs its engine in a body of `cond`."""

    def __init__(self, engine: torch.Tensor) -> None:
        super().__init__()
        self.engine = engine
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        def run(x: torch.Tensor, engine: torch.Tensor) -> torch.Tensor:
            return torch.ops.intarsia.run_engine.default([x], engine, SIGNATURE)[0]

        def scale(x: torch.Tensor, engine: torch.Tensor) -> torch.Tensor:
            return x + engine.numel()

        return torch.cond(x.sum() > 0, run, scale, (x * self.scale, self.engine))


@pytest.fixture
def program(make_engine: Any) -> torch.export.ExportedProgram:
    return torch.export.export(Branching(make_engine("double", SIGNATURE, name="standin_7")), (torch.ones(3),))


def test_the_engine_of_a_body_is_one_of_the_program(program: torch.export.ExportedProgram) -> None:
    assert engine_names(program) == {"engine"}
    assert [container.name for container in read_containers(program).values()] == ["standin_7"]


def test_the_engine_of_a_body_is_no_state_of_the_model(program: torch.export.ExportedProgram) -> None:
    assert list(Program(program).state) == ["scale"]
