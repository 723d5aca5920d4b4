"""Many partitions, many nodes, many state entries; and none at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from builders.hybrids import Draft, aten, chain, describe, hybrid, parameter, tensor
from builders.laws import call, check, copied, operators
from intarsia.surgery import export, ledger

X = tensor(1, 2, 3)


def test_no_partition_at_all() -> None:
    check(lambda: describe(hybrid(lambda g: g.op(aten.exp.default, g.placeholder("x"))), (X,)), [call(X)])


@pytest.mark.parametrize("length", [1, 50])
def test_5000_nodes(length: int) -> None:
    """As many nodes in a partition as `length` says."""

    def fill(g: Draft) -> Any:
        value = g.placeholder("a")
        for index in range(length):
            value = g.op([aten.sin.default, aten.neg.default, aten.abs.default][index % 3], value)
        return value

    module = describe(chain(*[hybrid(fill) for _ in range(5000 // length)]), (X,))
    program = export(module)
    assert len(operators(program)) == 5000
    assert len(ledger(program).select("node", "kept")) == 5000
    state_free = program.graph_module(copied(X))
    assert torch.equal(state_free[0], torch.fx.Interpreter(program.graph_module).run(X)[0])


def test_500_state_entries_of_one_name() -> None:
    def build() -> GraphModule:
        def scale(g: Draft) -> Any:
            return g.op(aten.add.Tensor, g.placeholder("a"), g.get_attr("w"))

        return describe(chain(*[hybrid(scale, {"w": parameter(tensor(i, 3))}) for i in range(500)]), (X,))

    assert len(check(build, [call(X)], forms=["memory"]).state_dict) == 500


def test_60_inputs_and_60_outputs() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            given = [g.placeholder(f"x{index}") for index in range(60)]
            result = g.part("part", *reversed(given))
            return [g.item(result, index) for index in range(59, -1, -1)]

        def part(g: Draft) -> Any:
            given = [g.placeholder(f"x{index}") for index in range(60)]
            return tuple(g.op(aten.mul.Tensor, node, float(index)) for index, node in enumerate(given))

        return describe(hybrid(top, {"part": hybrid(part)}), [tensor(i, 2) for i in range(60)])

    check(build, [call(*[tensor(i, 2) for i in range(60)])], forms=["memory"])
