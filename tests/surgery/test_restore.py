"""The torch operators that engines were built from, in the places of the engines."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from builders.standin import engine_tensor
from intarsia.errors import EngineError
from intarsia.surgery import export, restore

RUN_ENGINE = torch.ops.intarsia.run_engine.default


class Model(torch.nn.Module):
    """Weights in two engines, state of every kind, a write, an output that is only a view."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("shift", torch.full((8,), 0.25), persistent=False)
        self.plain = torch.arange(8.0)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> Any:
        y = self.layer(x) * self.scale + self.shift + self.plain + torch.tensor([1.0] * 8)
        self.cache.index_copy_(0, position, y[:1])
        return torch.nn.functional.gelu(self.layer(y)) @ self.layer.weight.T + self.cache.sum(0), x.transpose(0, 1)


def compile_model(model: torch.nn.Module) -> torch.fx.GraphModule:
    shapes = ({0: torch.export.Dim("n", min=1, max=9)}, None)
    example = torch.randn(3, 8), torch.tensor([1])
    return intarsia.compile(model, example, dynamic_shapes=shapes, torch_executed_ops={"aten.gelu"})


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def test_a_restored_program_is_the_model_to_the_bit_in_every_size(model: Model) -> None:
    hybrid = compile_model(model)
    assert len(intarsia.coverage(hybrid).engines) == 2
    restored = restore(export(hybrid))
    assert not restored.graph.find_nodes(op="call_function", target=RUN_ENGINE)
    program, eager = intarsia.Program(restored), copy.deepcopy(model)
    for size in (9, 1, 4):
        inputs = torch.randn(size, 8), torch.tensor([size % 4])
        with torch.no_grad():
            pairs = zip(program(*inputs), eager(*inputs), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    assert torch.equal(program.state["cache"], eager.cache)


def test_state_is_the_models_own_with_its_names_and_kinds_and_each_tensor_once(model: Model) -> None:
    restored = restore(export(compile_model(model)))
    assert all(restored.state_dict[name] is value for name, value in model.named_parameters())
    assert sorted(restored.state_dict) == ["cache", "layer.bias", "layer.weight", "scale"]
    assert restored.constants["shift"] is model.shift
    (shift,) = (spec for spec in restored.graph_signature.input_specs if spec.target == "shift")
    assert shift.persistent is False
    assert intarsia.ledger(restored).select("state")


def test_a_program_without_engines_is_as_it_was() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    assert restore(program) is program


def test_the_program_that_is_restored_is_as_it_was(model: Model) -> None:
    program = export(compile_model(model))
    before = str(program)
    restore(program)
    assert str(program) == before


def test_a_copied_and_a_loaded_program_find_the_same_operators(model: Model, tmp_path: Path) -> None:
    hybrid = compile_model(model)
    program = export(hybrid)
    intarsia.save(program, tmp_path / "model.pt2")
    inputs = torch.randn(3, 8), torch.tensor([1])
    expected = intarsia.Program(restore(program))(*inputs)
    for other in (copy.deepcopy(program), intarsia.load(tmp_path / "model.pt2").exported_program):
        assert torch.equal(intarsia.Program(restore(other))(*inputs)[0], expected[0])


def test_the_weights_of_a_model_are_not_kept_alive() -> None:
    model = Model().eval()
    weight = weakref.ref(model.layer.weight)
    hybrid = compile_model(model)
    restore(export(hybrid))
    del model
    gc.collect()
    assert weight() is None
    assert len(intarsia.coverage(hybrid).engines) == 2


def test_weights_that_are_gone_are_told() -> None:
    program = export(intarsia.compile(torch.nn.Linear(4, 2), (torch.ones(3, 4),)))
    gc.collect()
    with pytest.raises(EngineError, match=r"engine 'openvino_0': found that 'weight', .*, is gone with the model"):
        restore(program)


def test_an_engine_of_another_process_is_told() -> None:
    class Calls(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("engine", engine_tensor("double", "(f32[3]) -> (f32[3])"), persistent=False)

        def forward(self, x: torch.Tensor) -> Any:
            return RUN_ENGINE([x], self.engine, "(f32[3]) -> (f32[3])")[0]

    program = torch.export.export(Calls(), (torch.ones(3),))
    with pytest.raises(
        EngineError, match=r"engine 'standin_0': found no torch source.*Compile the model in this process"
    ):
        restore(program)
