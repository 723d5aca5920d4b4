"""Plain and pytree code generation, with and without metadata: the same program either way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from builders.hybrids import Draft, aten, captured, describe, fuse, give_convention, hybrid, parameter, strip, tensor
from builders.laws import call, check, operators
from intarsia.surgery import export

X, Y = tensor(1, 2, 3), tensor(2, 2, 3)
CALLS = [call(X, Y), call(Y, X)]


def by_hand() -> GraphModule:
    def part(g: Draft) -> Any:
        a, b = g.inputs("a b")
        return g.op(aten.mul.Tensor, a, g.get_attr("w")), g.op(aten.sub.Tensor, b, a)

    def top(g: Draft) -> Any:
        result = g.part("part", *g.inputs("x y"))
        return g.item(result, 1), g.item(result, 0)

    return hybrid(top, {"part": hybrid(part, {"w": parameter(tensor(5, 3))})})


def with_convention() -> GraphModule:
    return give_convention(by_hand(), ["x", "y"], ((0, 1), {}), (0, 1))


@pytest.mark.parametrize("build", [by_hand, with_convention])
@pytest.mark.parametrize("described", [True, False])
def test_all_ways_give_one_program(build: Any, described: bool) -> None:
    program = check(
        lambda: describe(build(), (X, Y)) if described else build(), CALLS, examples=None if described else CALLS[0]
    )
    assert operators(program) == [aten.mul.Tensor, aten.sub.Tensor]


@pytest.mark.parametrize("where", ["root", "partitions"])
def test_metadata_of_half_the_graph(where: str) -> None:
    def build() -> GraphModule:
        module = describe(by_hand(), (X, Y))
        strip(module.part)
        if where == "partitions":
            whole = describe(by_hand(), (X, Y))
            strip(module)
            module.part = whole.part
        return module

    check(build, CALLS, examples=None if where == "root" else CALLS[0], forms=["memory", "file"])


def test_a_hybrid_after_recompile_and_copy() -> None:
    import copy

    module = describe(by_hand(), (X, Y))
    module.recompile()
    check(lambda: copy.deepcopy(module), CALLS, forms=["memory"])


def test_a_hybrid_of_a_hybrid() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(tensor(5, 3))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return {"a": (x * self.w).exp(), "b": y - x.sin()}

    first = export(fuse(captured(Model(), (X, Y)), lambda index: index // 2))
    again = check(
        lambda: fuse(export(fuse(captured(Model(), (X, Y)), lambda i: i // 2)).module(), lambda i: i // 3), CALLS
    )
    assert sorted(map(str, operators(first))) == sorted(map(str, operators(again)))


def test_a_plain_graph_without_a_graph_module_is_refused() -> None:
    from intarsia.errors import HybridError

    with pytest.raises(HybridError, match=r"argument 'hybrid'.*a Graph"):
        export(Graph())  # type: ignore[arg-type]
