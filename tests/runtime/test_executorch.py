"""What surrounds ExecuTorch's runtime, with functions in its place."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from intarsia.errors import ArgumentError, ConventionError, EngineError, StateError
from intarsia.runtime.executorch import ExecutorchMethods, ExecutorchProgram, LoadedFile, Run


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> Any:
        return {"y": [x * scale, None]}


def counting() -> dict[str, Run]:
    """A method that counts its calls, as state would."""
    calls = [0]

    def run(inputs: Sequence[Any]) -> list[Any]:
        calls[0] += 1
        return [inputs[0] * inputs[1] + calls[0], None]

    return {"forward": run}


@pytest.fixture
def boundary() -> torch.export.ExportedProgram:
    return torch.export.export(Model(), (torch.ones(3),), {"scale": torch.ones(3)})


def test_a_call_has_the_models_own_structure(boundary: torch.export.ExportedProgram) -> None:
    program = ExecutorchProgram("forward", boundary, LoadedFile(counting))
    found = program(scale=torch.full((3,), 2.0), x=torch.ones(3))
    assert list(found) == ["y"]
    assert torch.equal(found["y"][0], torch.full((3,), 3.0))
    assert found["y"][1] is None
    assert program.methods == ("forward",)
    assert "x: f32[3]" in repr(program)


def test_what_does_not_fit_is_refused_before_the_call(boundary: torch.export.ExportedProgram) -> None:
    program = ExecutorchProgram("forward", boundary, LoadedFile(dict))
    with pytest.raises(ArgumentError, match=r"input 'x': found size 4 in dimension 0"):
        program(torch.ones(4), scale=torch.ones(3))


def test_inputs_are_contiguous_and_without_gradient(boundary: torch.export.ExportedProgram) -> None:
    given: list[Any] = []

    def run(inputs: Sequence[Any]) -> list[Any]:
        given.extend(inputs)
        return [inputs[0], None]

    ExecutorchProgram("forward", boundary, LoadedFile(lambda: {"forward": run}))(
        torch.ones(6)[::2], scale=torch.ones(3, requires_grad=True)
    )
    assert [(x.is_contiguous(), x.requires_grad) for x in given] == [(True, False)] * 2


def test_reset_and_sessions_load_anew(boundary: torch.export.ExportedProgram) -> None:
    program = ExecutorchProgram("forward", boundary, LoadedFile(counting))

    def call(one: ExecutorchProgram) -> float:
        return float(one(torch.zeros(3), scale=torch.ones(3))["y"][0][0])

    assert [call(program), call(program)] == [1, 2]
    assert call(program.session()) == 1
    assert call(program) == 3
    program.reset()
    assert call(program) == 1


def test_a_failure_of_the_runtime_is_told(boundary: torch.export.ExportedProgram) -> None:
    def fail(inputs: Sequence[Any]) -> list[Any]:
        message = "method->execute() failed with error 0x1"
        raise RuntimeError(message)

    program = ExecutorchProgram("forward", boundary, LoadedFile(lambda: {"forward": fail}))
    with pytest.raises(EngineError, match=r"method 'forward': found that ExecuTorch cannot run it .*error 0x1"):
        program(torch.ones(3), scale=torch.ones(3))


def test_one_call_runs_at_a_time(boundary: torch.export.ExportedProgram) -> None:
    running, most = [0], [0]
    started = threading.Event()

    def run(inputs: Sequence[Any]) -> list[Any]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        started.wait(0.05)
        running[0] -= 1
        return [inputs[0], None]

    program = ExecutorchProgram("forward", boundary, LoadedFile(lambda: {"forward": run}))
    threads = [
        threading.Thread(target=program, args=(torch.ones(3),), kwargs={"scale": torch.ones(3)}) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_methods_are_attributes(boundary: torch.export.ExportedProgram) -> None:
    file = LoadedFile(counting)
    methods = ExecutorchMethods({"forward": ExecutorchProgram("forward", boundary, file)}, file)
    assert list(methods) == ["forward"]
    assert "forward" in dir(methods)
    with pytest.raises(AttributeError, match="no method 'forwards'"):
        _ = methods.forwards
    with pytest.raises(ConventionError, match=r"found a call without a method.*Call program\.forward"):
        methods()
    for one in (methods, methods.forward):
        with pytest.raises(StateError, match="ExecuTorch has no way to it"):
            _ = one.state
    x = {"x": torch.zeros(3), "scale": torch.ones(3)}
    methods.forward(**x)
    assert methods.session().forward(**x)["y"][0][0] == 1
    methods.reset()
    assert methods.forward(**x)["y"][0][0] == 1
