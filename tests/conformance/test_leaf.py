"""Partitions that are ordinary modules, and calls of Python functions and methods: traced, or refused by name."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace
from torch.nn import functional

from builders.hybrids import Draft, aten, chain, describe, hybrid, parameter, tensor
from builders.laws import call, check
from intarsia.errors import HybridError
from intarsia.surgery import export

X, Y = tensor(1, 2, 4), tensor(2, 2, 4)
CALLS = [call(X), call(Y)]


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """The module in evaluation mode, with parameters of known numbers."""
    for index, (name, value) in enumerate(module.named_parameters()):
        *parents, last = name.split(".")
        setattr(module.get_submodule(".".join(parents)), last, parameter(tensor(index, *value.shape)))
    return module.eval()


MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: torch.nn.Linear(4, 4),
    "sequential": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)),
    "dropout": lambda: torch.nn.Dropout(0.5),
    "nested": lambda: torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.ReLU(inplace=True)),
    "flatten": lambda: torch.nn.Unflatten(1, (2, 2)),
    "identity": torch.nn.Identity,
}


@pytest.mark.parametrize("module", MODULES)
def test_an_ordinary_module(module: str) -> None:
    def build() -> GraphModule:
        return hybrid(lambda g: g.part("layer", g.placeholder("x")), {"layer": filled(MODULES[module]())})

    program = check(build, CALLS, examples=CALLS[0], forms=["memory", "file"])
    for name in program.state_dict:
        assert name in {n for n, _ in MODULES[module]().named_parameters()}


def test_two_ordinary_modules_share_a_weight_and_a_name() -> None:
    def build() -> GraphModule:
        one, two, three = (filled(torch.nn.Linear(4, 4)) for _ in range(3))
        two.weight = one.weight
        return hybrid(_three, {"one": one, "two": two, "three": three})

    program = check(build, CALLS, examples=CALLS[0])
    assert len(program.state_dict) == 5


def _three(g: Draft) -> Any:
    return g.part("three", g.part("two", g.part("one", g.placeholder("x"))))


def test_an_ordinary_module_is_called_twice_with_two_shapes() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            first = g.part("layer", x)
            return first, g.part("layer", g.op(aten.unsqueeze.default, first, 0))

        return hybrid(top, {"layer": filled(torch.nn.Linear(4, 4))})

    assert len(check(build, CALLS, examples=CALLS[0]).state_dict) == 2


FUNCTIONS: dict[str, Callable[[Draft, Any], Any]] = {
    "functional": lambda g, x: g.op(functional.gelu, g.op(functional.relu, x), approximate="tanh"),
    "layer norm": lambda g, x: g.op(functional.layer_norm, x, [4]),
    "operator": lambda g, x: g.op(operator.add, g.op(operator.mul, x, 2), x),
    "operator on the left": lambda g, x: g.op(operator.sub, 1.5, x),
    "matmul": lambda g, x: g.op(operator.matmul, x, g.call_method("t", (x,))),
    "comparison": lambda g, x: g.op(operator.gt, x, 0.5),
    "view": lambda g, x: g.call_method("view", (x, 4, -1)),
    "size": lambda g, x: g.call_method("view", (x, g.op(operator.getitem, g.call_method("size", (x,)), 1), 2)),
    "size of a dim": lambda g, x: g.op(torch.zeros, g.call_method("size", (x, 0))),
    "shape": lambda g, x: g.call_method("reshape", (x, g.op(getattr, x, "shape"))),
    "cat": lambda g, x: g.op(torch.cat, [x, g.op(torch.neg, x)], dim=1),
    "chunk": lambda g, x: g.op(operator.getitem, g.call_method("chunk", (x, 2)), 1),
    "chunk whole": lambda g, x: g.op(torch.cat, g.call_method("chunk", (x, 2))),
    "max": lambda g, x: g.op(operator.getitem, g.call_method("max", (x,), {"dim": 1}), 1),
    "index": lambda g, x: g.op(operator.getitem, x, (slice(None), slice(1, 3))),
    "index by a tensor": lambda g, x: g.op(operator.getitem, x, g.op(operator.gt, x, 0)),
    "ellipsis": lambda g, x: g.op(operator.getitem, x, (Ellipsis, 0)),
    "packet": lambda g, x: g.op(torch.ops.aten.add, x, x),
    "einsum": lambda g, x: g.op(torch.einsum, "bi,bj->ij", x, x),
    "attention": lambda g, x: g.op(functional.scaled_dot_product_attention, x, x, x),
    "dtype": lambda g, x: g.call_method("to", (x, torch.float64)),
    "item": lambda g, x: g.call_method("masked_fill", (x, g.op(operator.lt, x, 0), -1.0)),
    "in place": lambda g, x: g.call_method("add_", (g.call_method("clone", (x,)), 1)),
    "in place operator": lambda g, x: g.op(operator.iadd, g.op(torch.clone, x), x),
}


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_python_function(function: str, described: bool) -> None:
    def build() -> GraphModule:
        part = hybrid(lambda g: FUNCTIONS[function](g, g.placeholder("a")))
        return describe(chain(part), (X,)) if described else chain(part)

    check(build, CALLS, examples=None if described else CALLS[0], forms=["memory", "file"])


def test_a_symbolically_traced_model() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
            self.register_buffer("scale", tensor(9, 4))

        def forward(self, x: torch.Tensor, mask: Any = None) -> Any:
            for layer in self.layers:
                x = x + functional.silu(layer(self.norm(x))) * self.scale
            b, n = x.shape
            return {"out": x.view(b, n // 2, 2).transpose(1, 2), "mean": x.mean(-1, keepdim=True)}

    check(lambda: symbolic_trace(filled(Block())), CALLS, examples=CALLS[0])


def test_a_symbolically_traced_model_of_a_dynamic_batch() -> None:
    def build() -> GraphModule:
        def part(g: Draft) -> Any:
            a = g.placeholder("a")
            rows = g.call_method("size", (a, 0))
            doubled = g.op(operator.mul, rows, 2)
            return g.op(functional.relu, g.call_method("view", (a, doubled, -1))), rows

        return chain(hybrid(part))

    shapes = ({0: torch.export.Dim("b", min=1, max=8)},)
    check(build, [call(tensor(n, n, 4)) for n in (2, 1, 8)], examples=CALLS[0], dynamic_shapes=shapes)


def test_a_script_module_is_refused_by_name() -> None:
    class Scaling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch gives TorchScript up; people still have such modules
        traced = torch.jit.trace(Scaling(), X)
    module = hybrid(lambda g: g.part("engine", g.placeholder("x")), {"engine": traced})
    with pytest.raises(HybridError, match=r"partition 'engine'.*TopLevelTracedModule.*no graph"):
        export(module, (X,))


def test_a_module_that_cannot_be_traced_is_refused_by_name() -> None:
    class Deciding(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    module = hybrid(lambda g: g.part("engine", g.placeholder("x")), {"engine": Deciding()})
    with pytest.raises(HybridError, match=r"partition 'engine'.*Deciding.*symbolic tracing refuses"):
        export(module, (X,))


def test_a_call_that_fails_on_its_shapes_is_refused_by_node() -> None:
    module = chain(hybrid(lambda g: g.op(torch.mm, *[g.placeholder("a")] * 2)))
    with pytest.raises(HybridError, match="node 'part_0/mm'"):
        export(module, (X,))
