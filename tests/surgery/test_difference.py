"""A failed check tells what differs, also where the operators have one name."""

from __future__ import annotations

import pytest
import torch

import intarsia
from intarsia.errors import ConservationError
from intarsia.surgery.conservation import check_conservation

A, B = torch.ones(2), torch.full((2,), 3.0)
aten = torch.ops.aten


class Deep(torch.nn.Module):
    """A subtraction and a clamp below two more operators, and a split."""

    def forward(self, a, b):
        low, high = torch.split(torch.clamp(a - b, 0.0, 2.0), 1)
        return [torch.relu(low) + 1, high]


def check(damage):
    """What the check says of a program whose graph was damaged."""
    hybrid = torch.export.export(Deep(), (A, B)).module(check_guards=False)
    program = intarsia.export(hybrid)
    damage(program.graph)
    inputs = [graph.find_nodes(op="placeholder") for graph in (hybrid.graph, program.graph)]
    with pytest.raises(ConservationError) as caught:
        check_conservation(hybrid, dict(zip(*inputs, strict=True)), program, traced={}, copies=())
    return caught.value


def node_of(graph, target):
    (node,) = graph.find_nodes(op="call_function", target=target)
    return node


def test_operands_in_another_order():
    def swap(graph):
        node = node_of(graph, aten.sub.Tensor)
        node.args = (node.args[1], node.args[0])

    error = check(swap)
    assert error.subject == "the export, output 0"
    assert (error.found, error.expected) == ("%sub of %b", "%sub of %a")


def test_another_constant():
    def change(graph):
        node = node_of(graph, aten.clamp.default)
        node.args = (node.args[0], 0.0, 4.0)

    error = check(change)
    assert (error.found, error.expected) == ("%clamp of 4.0 (float)", "%clamp of 2.0 (float)")


def test_another_operator():
    def change(graph):
        node_of(graph, aten.relu.default).target = aten.abs.default

    error = check(change)
    assert (error.found, error.expected) == ("%relu", "%relu of another operator")


def test_another_value():
    def change(graph):
        graph.output_node().args = (tuple(reversed(graph.output_node().args[0])),)

    error = check(change)
    assert error.found == "%split"
    assert error.expected.startswith("%add")


def test_a_value_read_after_another_effect():
    class Writing(torch.nn.Module):
        def forward(self, x):
            before = torch.sin(x)
            x.add_(1)
            return before

    program = torch.export.export(Writing(), (A,))
    hybrid = program.module(check_guards=False)
    exported = intarsia.export(hybrid)
    sin, add = node_of(exported.graph, aten.sin.default), node_of(exported.graph, aten.add_.Tensor)
    add.append(sin)
    inputs = [graph.find_nodes(op="placeholder") for graph in (hybrid.graph, exported.graph)]
    with pytest.raises(ConservationError) as caught:
        check_conservation(hybrid, dict(zip(*inputs, strict=True)), exported, traced={}, copies=())
    assert (caught.value.found, caught.value.expected) == ("%sin after other effects", "%sin")
