"""A double computes what its module does, and leaves the module's tensors alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import intarsia
from builders.hybrids import Buffer, Draft, aten, hybrid, parameter, tensor
from intarsia.errors import StateError
from intarsia.verification.double import Double
from intarsia.verification.graphs import state_key


class Holder:
    def __init__(self) -> None:
        self.cache = torch.zeros(2)


class Writer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("buffer", torch.zeros(2))
        self.register_buffer("view", self.buffer[1:])
        self._plain = torch.zeros(2)
        self.items = [torch.zeros(2), {"a": torch.zeros(2)}]
        self.holder = Holder()

    def written(self) -> list[torch.Tensor]:
        return [self.buffer, self._plain, self.items[0], self.items[1]["a"], self.holder.cache]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for value in self.written():
            value.add_(x)
        return sum(self.written()) * self.weight + self.view


def test_state_is_copied_and_parameters_are_shared() -> None:
    module = Writer()
    double = Double(module)
    found = [double(torch.ones(2)) for _ in range(2)]
    assert not any(value.any() for value in module.written())
    assert torch.equal(double.live(module.weight), module.weight)
    assert double.live(module.weight) is module.weight
    for value in module.written():
        assert torch.equal(double.live(value), torch.full((2,), 2.0))
    assert double.live(torch.ones(2)) is None
    assert [value.requires_grad for value in found] == [False, False]
    with torch.no_grad():
        assert [torch.equal(value, module(torch.ones(2))) for value in found] == [True, True]


def test_a_written_parameter_is_copied() -> None:
    def fill(g: Draft) -> Any:
        w = g.get_attr("w")
        return g.op(aten.add_.Tensor, w, g.placeholder("x"))

    module = hybrid(fill, {"w": parameter(tensor(1, 3)), "other": Buffer(tensor(2, 3))})
    double = Double(module, {state_key(module.w)})
    double(torch.ones(3))
    assert torch.equal(module.w, tensor(1, 3))
    assert torch.equal(double.live(module.w), tensor(1, 3) + 1)


def test_engines_are_shared() -> None:
    module = intarsia.compile(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
    double = Double(module)
    values = [value for part in module.modules() for value in vars(part).values()]
    (engine,) = [value for value in values if isinstance(value, torch.Tensor)]
    assert engine.dtype is torch.uint8
    assert double.live(engine) is engine
    assert torch.equal(double(torch.ones(3, 4)), module(torch.ones(3, 4)))


def test_a_module_that_cannot_be_copied_is_told() -> None:
    class Stubborn(torch.nn.Module):
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise TypeError("not today")

    with pytest.raises(StateError, match=r"Stubborn to compare with: found a refusal to be copied .*not today"):
        Double(Stubborn())


def test_a_buffer_that_is_assigned_is_live_in_its_place() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return x * self.calls

    module = torch.nn.Sequential(Counter(), torch.nn.Linear(2, 2))
    double = Double(module)
    for count in (1, 2):
        double(torch.ones(2))
        assert double.live(module[0].calls) == count
    assert module[0].calls == 0
    assert intarsia.verify(intarsia.compile(module, (torch.ones(2),)), module).ok
