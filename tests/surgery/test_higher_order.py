"""The exporter is broken on purpose where it copies bodies: each break must be told by the check of conservation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from builders.hybrids import Buffer, Draft, aten, hybrid, parameter, tensor
from intarsia.errors import ConservationError
from intarsia.surgery import assemble, bodies, export, higher_order, inline

cond = torch.ops.higher_order.cond
X, Y = tensor(1, 3, 3), tensor(2, 3, 3)
Break = Callable[[pytest.MonkeyPatch], None]


def sample() -> GraphModule:
    """Calls of `cond`, one of them without users; bodies are shared, read state, call a partition, and write."""

    def part(g: Draft) -> Any:
        a, b = g.inputs("b a")
        g.op(aten.add_.Tensor, g.get_attr("n"), 1.0)
        return g.op(aten.sub.Tensor, a, b), g.op(aten.mul.Tensor, b, g.get_attr("n"))

    def one(g: Draft) -> Any:
        x, y = g.inputs("y x")
        pair = g.part("part", g.op(aten.div.Tensor, x, g.get_attr("w")), y)
        return g.item(pair, 0), g.op(aten.sub.Tensor, g.item(pair, 1), g.get_attr("v"))

    def other(g: Draft) -> Any:
        x, y = g.inputs("x y")
        g.op(aten.mul_.Tensor, g.get_attr("n"), 2.0)
        return g.op(aten.sub.Tensor, x, g.get_attr("w")), g.op(aten.exp.default, y)

    def third(g: Draft) -> Any:
        x, y = g.inputs("x y")
        return g.op(aten.sub.Tensor, x, g.get_attr("w")), y

    def top(g: Draft) -> Any:
        x, y = g.inputs("x y")
        flag = g.op(aten.gt.Scalar, g.op(aten.sum.default, x), 0.0)
        first = g.op(cond, flag, g.get_attr("one"), g.get_attr("other"), (x, y))
        g.op(cond, flag, g.get_attr("other"), g.get_attr("third"), (x, y))
        return g.op(cond, flag, g.get_attr("third"), g.get_attr("one"), (g.item(first, 0), g.item(first, 1)))

    def state(seed: int) -> dict[str, Any]:
        return {"w": parameter(tensor(seed, 3, 3)), "v": parameter(tensor(seed + 1, 3, 3))}

    counter = Buffer(tensor(9, 3, 3))
    return hybrid(
        top,
        {
            "one": hybrid(one, {**state(3), "part": hybrid(part, {"n": counter})}),
            "other": hybrid(other, {**state(5), "n": counter}),
            "third": hybrid(third, state(7)),
        },
    )


def pass_on_in_reverse(patch: pytest.MonkeyPatch) -> None:
    pass_on = higher_order.pass_on
    patch.setattr(higher_order, "pass_on", lambda target, args, more: pass_on(target, args, more[::-1]))


def pass_on_one_state_for_another(patch: pytest.MonkeyPatch) -> None:
    pass_on = higher_order.pass_on
    patch.setattr(higher_order, "pass_on", lambda target, args, more: pass_on(target, args, [more[0], *more[:-1]]))


def place_operands_in_reverse(patch: pytest.MonkeyPatch) -> None:
    order = bodies.order_placeholders
    patch.setattr(bodies, "order_placeholders", lambda graph, placeholders: order(graph, placeholders[::-1]))


def place_state_before_operands(patch: pytest.MonkeyPatch) -> None:
    order = bodies.order_placeholders

    def first(graph: Graph, placeholders: list[Node]) -> None:
        order(graph, [*placeholders[2:], *placeholders[:2]])

    patch.setattr(bodies, "order_placeholders", first)


def swap_two_bodies(patch: pytest.MonkeyPatch) -> None:
    give = higher_order.BodyTable.give

    def swapped(self: Any, *rest: Any, **named: Any) -> Any:
        (flag, one, other, operands), kwargs = give(self, *rest, **named)
        return (flag, other, one, operands), kwargs

    patch.setattr(higher_order.BodyTable, "give", swapped)


def merge_bodies_of_one_call(patch: pytest.MonkeyPatch) -> None:
    give = higher_order.BodyTable.give

    def merged(self: Any, *rest: Any, **named: Any) -> Any:
        (flag, one, _, operands), kwargs = give(self, *rest, **named)
        return (flag, one, one, operands), kwargs

    patch.setattr(higher_order.BodyTable, "give", merged)


def share_a_body_whatever_it_is_given(patch: pytest.MonkeyPatch) -> None:
    taking = bodies.Body.taking

    def shared(self: bodies.Body, state: Any) -> GraphModule:
        known = next(iter(self._modules.values()), None)
        if known is None or len(known.graph.find_nodes(op="placeholder")) != 2 + len(state):
            return taking(self, state)
        return known

    patch.setattr(bodies.Body, "taking", shared)


def merge_states_of_one_name(patch: pytest.MonkeyPatch) -> None:
    read = bodies.BodyLifter.read
    known: dict[str, Any] = {}

    def by_name(self: Any, found: Any, node: Node, path: str) -> Node:
        return read(self, known.setdefault(found[1], found), node, path)

    patch.setattr(bodies.BodyLifter, "read", by_name)


def wire_partitions_in_reverse(patch: pytest.MonkeyPatch) -> None:
    bind = inline.bind
    patch.setattr(inline, "bind", lambda graph, args, kwargs, place: bind(graph, tuple(reversed(args)), kwargs, place))


def eliminate_effects(patch: pytest.MonkeyPatch) -> None:
    class Pure:
        def has(self, node: Node, bodies: Any) -> bool:
            return False

    patch.setattr(assemble, "Effects", Pure)


def in_every_body(change: Callable[[Graph], None]) -> Break:
    """A break that does something to the graph of each finished body."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        taking = bodies.Body.taking

        def changed(self: bodies.Body, state: Any) -> GraphModule:
            module = taking(self, state)
            change(module.graph)
            module.recompile()
            return module

        patch.setattr(bodies.Body, "taking", changed)

    apply.__name__ = change.__name__
    return apply


@in_every_body
def swap_arguments(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.sub.Tensor):
        node.args = node.args[::-1]


@in_every_body
def swap_results(graph: Graph) -> None:
    (output,) = graph.find_nodes(op="output")
    output.args = (output.args[0][::-1],)


@in_every_body
def lose_a_write(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.mul_.Tensor):
        graph.erase_node(node)


@in_every_body
def move_a_write(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add_.Tensor):
        next(iter(graph.find_nodes(op="output"))).prepend(node)


@in_every_body
def write_other_state(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add_.Tensor):
        node.args = (graph.find_nodes(op="placeholder", sort=True)[2], 1.0)


@in_every_body
def change_a_number(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add_.Tensor):
        node.args = (node.args[0], 2.0)


@in_every_body
def bypass_a_node(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.exp.default):
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.erase_node(node)


BREAKS = [
    *(pass_on_in_reverse, pass_on_one_state_for_another, place_operands_in_reverse, place_state_before_operands),
    *(swap_two_bodies, merge_bodies_of_one_call, share_a_body_whatever_it_is_given, merge_states_of_one_name),
    *(wire_partitions_in_reverse, swap_arguments, swap_results, lose_a_write, move_a_write, write_other_state),
    *(change_a_number, bypass_a_node, eliminate_effects),
]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
def test_a_broken_copy_of_a_body_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    export(sample(), (X, Y))
    broken(monkeypatch)
    with pytest.raises(ConservationError, match="fault of intarsia"):
        export(sample(), (X, Y))
