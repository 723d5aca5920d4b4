"""Which programs can go to ExecuTorch, found without it."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import intarsia
from builders.standin import engine_tensor
from intarsia.core.backend import WIDENED, BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.errors import EngineError, IntarsiaError, MutationError
from intarsia.formats.pte.stand_ins import stand_in
from intarsia.surgery import restore

RUN_ENGINE = torch.ops.intarsia.run_engine.default


class Calls(torch.nn.Module):
    """Calls one engine."""

    def __init__(self, engine: torch.Tensor, signature: str) -> None:
        super().__init__()
        self.signature = signature
        self.register_buffer("engine", engine, persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - a name that graphs change
        result: torch.Tensor = RUN_ENGINE([input], self.engine, self.signature)[0]
        return result


def test_a_program_without_its_engines_keeps_names_shapes_and_state() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    batch = torch.export.Dim("batch", min=1, max=9)
    kept = {"aten.gelu"}
    hybrid = intarsia.compile(model, (torch.ones(3, 4),), dynamic_shapes=({0: batch},), torch_executed_ops=kept)
    program = intarsia.export(hybrid)
    before = [str(node) for node in program.graph.nodes]
    new, engines = stand_in(program)
    assert [container.name for container in engines.values()] == ["openvino_0", "openvino_1"]
    calls = [node for node in new.graph.nodes if "intarsia.engine_1" in str(node.target)]
    assert [node.args[1] for node in calls] == list(engines)
    (x,) = new.graph.find_nodes(op="placeholder")
    assert calls[1].meta["val"].shape == (x.meta["val"].shape[0], 2)
    assert new.graph_signature.user_inputs == program.graph_signature.user_inputs
    assert not new.constants
    assert [str(node) for node in program.graph.nodes] == before, "the program itself is as it was"


def test_an_input_of_a_name_that_python_has_keeps_it() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    assert stand_in(program).program.graph_signature.user_inputs == ("input",)


def test_parameters_lose_their_gradient_and_share_their_memory() -> None:
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),))
    weight = stand_in(program).program.state_dict["weight"]
    assert not weight.requires_grad
    assert weight.data_ptr() == program.state_dict["weight"].data_ptr()


def test_an_engine_of_a_backend_without_a_runtime_is_named() -> None:
    engine = engine_tensor("double", "(f32[3]) -> (f32[3])")
    program = torch.export.export(Calls(engine, "(f32[3]) -> (f32[3])"), (torch.ones(3),))
    with pytest.raises(EngineError, match="engine of the backend 'standin', which ExecuTorch has no runtime for"):
        stand_in(program)


def test_a_write_that_would_be_lost_is_refused() -> None:
    class Write(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * 2

    program = torch.export.export(Write(), (torch.ones(3),))
    with pytest.raises(MutationError, match="input 'x': found a write to it"):
        stand_in(program)


def test_an_engine_in_a_body_of_an_operator_is_refused() -> None:
    engine = engine_tensor("double", "(f32[3]) -> (f32[3])")
    body, graph = torch.fx.Graph(), torch.fx.Graph()
    x, held = body.placeholder("x"), body.placeholder("held")
    results = body.call_function(RUN_ENGINE, ([x], held, "(f32[3]) -> (f32[3])"))
    body.output((body.call_function(operator.getitem, (results, 0)),))
    operands = graph.get_attr("body"), (graph.placeholder("x"), graph.get_attr("engine"))
    call = graph.call_function(torch.ops.higher_order.strict_mode, operands)
    graph.output(call)
    hybrid = torch.fx.GraphModule({"body": torch.fx.GraphModule({}, body), "engine": engine}, graph)
    program = intarsia.export(hybrid, (torch.ones(3),))
    for refuse in (stand_in, restore):
        with pytest.raises(EngineError, match="in a body of the operator %strict_mode, expected an engine in"):
            refuse(program)


def openvino_engine(signature: str, options: Mapping[str, Any] | None = None) -> torch.Tensor:
    """The container of an engine that says that OpenVINO built it."""
    built = BuiltEngine(b"compiled", None, "2025.4.1", "CPU", options or {})
    data = pack_engine(built, name="openvino_0", backend="openvino", signature=signature)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("signature", "inputs", "told"),
    [
        ("(f32[3]) -> (f32[3] into 0)", torch.ones(3), "MutationError.*found an output that it writes into an input"),
        ("(f32[]) -> (f32[])", torch.tensor(1.0), "EngineError.*found a tensor without dimensions"),
    ],
)
def test_an_engine_that_executorch_would_run_wrongly_is_refused(
    signature: str, inputs: torch.Tensor, told: str
) -> None:
    program = torch.export.export(Calls(openvino_engine(signature), signature), (inputs,))
    with pytest.raises(IntarsiaError) as caught:
        stand_in(program)
    assert re.search(told, f"{type(caught.value).__name__}: {caught.value}")


def test_a_scalar_that_the_engine_takes_with_a_dimension_travels() -> None:
    widened = {WIDENED: {"inputs": [0], "outputs": [0]}}
    engine = openvino_engine("(f32[]) -> (f32[])", widened)
    program = torch.export.export(Calls(engine, "(f32[]) -> (f32[])"), (torch.tensor(1.0),))
    assert list(stand_in(program).engines) == ["engine"]


def test_a_write_to_a_parameter_is_refused() -> None:
    class Write(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight.add_(x) * 2

    program = torch.export.export(Write(), (torch.ones(3),))
    with pytest.raises(MutationError, match="parameter 'weight': found a write to it"):
        stand_in(program)
