"""The other way to the same noun: torch.export of the hybrid, with its own dynamic sizes and keywords in order."""

from __future__ import annotations

import torch
from torch.export import Dim

from builders.hybrids import Draft, aten, describe, hybrid, parameter, tensor
from intarsia.surgery import export, retrace


def test_keywords_reach_the_inputs_of_their_names() -> None:
    def fill(g: Draft) -> torch.fx.Node:
        x, key, value = g.inputs("x key value")
        return g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, x, key), value)

    x, key, value = (tensor(seed, 3) for seed in (1, 2, 3))
    program = retrace(hybrid(fill), (x,), {"value": value, "key": key})
    assert torch.equal(program.module()(x, value=value, key=key), x * key - value)


class Pair(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + y[::2].sum(0) + y.shape[0]


def test_sizes_are_dynamic_that_are_so_in_the_metadata() -> None:
    batch = Dim("batch", min=3, max=20)
    example = tensor(1, 4, 2), tensor(2, 8, 2)
    captured = torch.export.export(Pair(), example, dynamic_shapes=({0: batch}, {0: 2 * batch}))
    module = captured.module(check_guards=False)
    program = retrace(module, example)
    (bounds,) = [bounds for symbol, bounds in program.range_constraints.items() if symbol.is_Symbol]
    assert (int(bounds.lower), int(bounds.upper)) == (3, 20)
    x, y = tensor(3, 17, 2), tensor(4, 34, 2)
    assert torch.equal(program.module()(x, y), Pair()(x, y))


def test_it_equals_the_export_without_a_retrace() -> None:
    def part(g: Draft) -> torch.fx.Node:
        return g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w"))

    def fill(g: Draft) -> torch.fx.Node:
        return g.part("part", g.part("part", g.placeholder("x")))

    module = describe(hybrid(fill, {"part": hybrid(part, {"w": tensor(5, 3)})}), (tensor(1, 3),))
    ours, theirs = export(module), retrace(module, (tensor(1, 3),))
    operators = [[n.target for n in program.graph.nodes if n.op == "call_function"] for program in (ours, theirs)]
    assert operators[0] == operators[1]
    assert torch.equal(ours.module()(tensor(2, 3)), theirs.module()(tensor(2, 3)))


def test_one_tensor_given_twice_is_two_inputs() -> None:
    def fill(g: Draft) -> torch.fx.Node:
        x, y = g.inputs("x y")
        return g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, x, g.get_attr("w")), y)

    example = tensor(1, 3)
    program = retrace(hybrid(fill, {"w": parameter(example)}), (example, example))
    x, y = tensor(2, 3), tensor(3, 3)
    assert torch.equal(program.module()(x, y), x * example - y)
