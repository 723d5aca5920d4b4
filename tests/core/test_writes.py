"""Which placeholders a graph writes in place, directly, through views, and inside of higher-order operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import export

from intarsia.core.writes import Aliases, written_placeholders, written_state


class Model(torch.nn.Module):
    """Runs a function of its buffer `b`, its parameter `w` and the input `x`."""

    def __init__(self, body: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(2, 2))
        self.w = torch.nn.Parameter(torch.ones(2, 2))
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self.b, self.w, x)


def no_grad_region(b: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        b.add_(x)
    return x * w


WRITING: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "nothing": (lambda b, w, x: b + w + x, set()),
    "directly": (lambda b, w, x: b.add_(x) + w, {"b_b"}),
    "by keyword": (lambda b, w, x: torch.add(w.detach(), x, out=b), {"b_b"}),
    "an input": (lambda b, w, x: x.mul_(2) + w + b, {"x"}),
    "through views": (lambda b, w, x: b.view(4)[1:].unflatten(0, (1, 3)).mul_(2).sum() + x + w, {"b_b"}),
    "through a list of views": (lambda b, w, x: b.split(1)[1].zero_() + x + w, {"b_b"}),
    "through dropout": (lambda b, w, x: torch.dropout(b, 0.5, train=False).add_(x) + w, {"b_b"}),
    "through what no schema tells": (lambda b, w, x: torch.conj_physical(b).add_(x) + w, {"b_b"}),
    "a fresh value": (lambda b, w, x: (b @ w + x).relu_(), set()),
    "a list": (lambda b, w, x: (torch._foreach_add_([b, x], 1), w + b)[1], {"b_b", "x"}),
}


@pytest.mark.parametrize("case", WRITING)
def test_finds_what_is_written(case: str) -> None:
    body, expected = WRITING[case]
    module = export(Model(body).eval(), (torch.ones(2, 2),)).graph_module
    assert {node.name for node in written_placeholders(module)} == expected


def test_a_written_input_of_a_buffers_name_is_no_written_state() -> None:
    class Namesakes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.ones(2))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, cache: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return cache.add_(1) + self.cache

    program = export(Namesakes(), (torch.ones(2),)).run_decompositions({})
    assert "cache" in program.graph_signature.user_inputs_to_mutate.values()
    assert written_state(program) == {"calls"}


def test_looks_into_higher_order_operators() -> None:
    module = export(Model(no_grad_region), (torch.ones(2, 2),)).graph_module
    assert any(node.op == "get_attr" for node in module.graph.nodes)
    assert {node.name for node in written_placeholders(module)} == {"b_b"}


def test_a_functional_graph_writes_nothing() -> None:
    body, _ = WRITING["directly"]
    program = export(Model(body), (torch.ones(2, 2),)).run_decompositions({})
    assert not written_placeholders(program.graph_module)


def test_a_nested_argument_shares_memory_with_all_that_is_in_it() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    view = graph.call_function(torch.ops.aten.view.default, (x, [-1]))
    graph.output(([view, {"a": y}],))
    aliases = Aliases(graph)
    assert aliases.of([view, {"a": y}]) == {x, y}
    assert aliases.of([1, None]) == frozenset()


def test_the_calls_that_write_are_told_in_graph_order() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            y.view(-1).mul_(2)
            x[0].neg_()
            return x + y

    program = torch.export.export(Twice(), (torch.ones(2), torch.ones(2)))
    told = {
        node.name: [str(call.target) for call in calls]
        for node, calls in written_placeholders(program.graph_module).items()
    }
    assert told == {"x": ["aten.add_.Tensor", "aten.neg_.default"], "y": ["aten.mul_.Tensor"]}
