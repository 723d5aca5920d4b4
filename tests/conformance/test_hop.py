"""Higher-order operators inside partitions, with bodies whose names collide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx import GraphModule

from builders.hybrids import CUTS, Draft, captured, chain, describe, hybrid, tensor
from builders.laws import FORMS, call, check

X, Y = tensor(1, 4, 4), tensor(2, 4, 4)
CALLS = [call(X), call(Y), call(X.abs()), call(-X.abs())]


class Weighted(torch.nn.Module):
    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.linear.weight = torch.nn.Parameter(tensor(seed, 4, 4))
        self.linear.bias = torch.nn.Parameter(tensor(seed + 1, 4))


class Branching(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        h = torch.cond(x.sum() > 0, lambda x: self.linear(x).cos(), lambda x: self.linear(x).sin(), (x,))
        return h + x.cos()


class BranchingTwice(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        h = torch.cond(x.sum() > 0, lambda x: x.cos() + self.linear.bias, lambda x: x.sin(), (x,))
        return torch.cond(h.sum() > 1, lambda h: h * 3, lambda h: h - self.linear.weight, (h,)) * 2


class BranchingInside(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        def deeper(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 1, self.linear, lambda x: x - 1, (x,))

        return torch.cond(x.sum() > 0, deeper, lambda x: x.sin(), (x,)) + 1


class BranchingToSeveral(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        a, b = torch.cond(x.sum() > 0, lambda x: (x.cos(), self.linear(x)), lambda x: (x.sin(), x.exp()), (x,))
        return {"a": a, "b": (b * 2,)}


class Looping(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        def going(count: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return count < 3

        def step(count: torch.Tensor, h: torch.Tensor) -> Any:
            return count + 1, self.linear(h).sin()

        return while_loop(going, step, (torch.zeros((), dtype=torch.int64), x))


class Scanning(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
            new = carry * 0.5 + row + self.linear.bias
            return new, new.sin()

        return scan(step, x[0], x)


class Mapping(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        return torch_map(lambda row, w: (w @ row).sin(), x, self.linear.weight) + 1


class Quiet(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        h = x + 1
        with torch.no_grad():
            h = self.linear(h).relu()
        y = h * 2
        with torch.no_grad():
            y = y - self.linear.weight.sum()
        return y + 3


class Mixed(Weighted):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.linear(x)
        y = h.float() * 2
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            y = self.linear(y)
        return y, h


FUNCTIONAL = [Branching, BranchingTwice, BranchingInside, BranchingToSeveral, Looping, Scanning, Mapping]
REGIONS = [Quiet, Mixed]


@pytest.mark.parametrize("cut", ["split in pairs", "fused in pairs", "fused, every third in the parent"])
@pytest.mark.parametrize("model", FUNCTIONAL, ids=lambda model: model.__name__)
def test_a_control_operator_under_a_cut(model: Any, cut: str) -> None:
    forms = list(FORMS) if cut == "split in pairs" else ["memory"]
    check(lambda: CUTS[cut](captured(model(), (X,))), CALLS, forms=forms)


@pytest.mark.parametrize("decompose", [True, False])
@pytest.mark.parametrize("cut", ["whole", "split one by one", "fused in pairs"])
@pytest.mark.parametrize("model", REGIONS, ids=lambda model: model.__name__)
def test_a_region_under_a_cut(model: Any, cut: str, decompose: bool) -> None:
    forms = list(FORMS) if cut == "split one by one" else ["memory"]
    check(lambda: CUTS[cut](captured(model(), (X,), decompose=decompose)), CALLS, forms=forms)


@pytest.mark.parametrize("model", [Branching, BranchingInside, Scanning, Mapping], ids=lambda model: model.__name__)
def test_two_partitions_with_bodies_of_one_name(model: Any) -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            one, two = g.part("one", x), g.part("two", x)
            return one, two

        parts = {name: captured(model(seed), (X,)) for name, seed in (("one", 3), ("two", 7))}
        return hybrid(top, parts)

    forms = list(FORMS) if model is Branching else ["memory"]
    program = check(build, CALLS, examples=CALLS[0], forms=forms)
    bodies = [name for name, _ in program.graph_module.named_children()]
    assert len(bodies) == len(set(bodies)) >= 2


def test_one_partition_with_a_body_is_called_twice() -> None:
    def build() -> GraphModule:
        part = captured(Branching(), (X,))
        return chain(part, part)

    program = check(build, CALLS, examples=CALLS[0])
    assert len(list(program.graph_module.children())) == 2


def test_a_body_is_not_a_partition() -> None:
    """A body and a partition of the parent may have one name, and both are called."""

    def build() -> GraphModule:
        inner = captured(Branching(), (X,))

        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            return g.part("true_graph_0", g.part("part", x))

        doubling = hybrid(lambda g: g.op(torch.ops.aten.mul.Tensor, g.placeholder("a"), 2.0))
        return hybrid(top, {"part": inner, "true_graph_0": describe(doubling, (X,))})

    check(build, CALLS, examples=CALLS[0])


def test_a_dynamic_size_enters_a_body() -> None:
    class Sized(Weighted):
        def forward(self, x: torch.Tensor) -> Any:
            n = x.shape[0]
            return torch.cond(x.sum() > 0, lambda x: self.linear(x) * n, lambda x: x.sin(), (x,))

    shapes = ({0: torch.export.Dim("b", min=2, max=9)},)
    calls = [call(tensor(n, n, 4)) for n in (4, 2, 9)]
    check(lambda: CUTS["split in pairs"](captured(Sized(), (X,), dynamic_shapes=shapes)), calls)
