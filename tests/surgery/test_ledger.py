"""The exporter is broken on purpose: each break must be told by the check of conservation or by the ledger."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from builders.hybrids import Buffer, Draft, aten, describe, hybrid, parameter, tensor
from intarsia.errors import ConservationError, ConventionError
from intarsia.surgery import assemble as assembling
from intarsia.surgery import export, inline, ledger, lift, mutations, state

X = tensor(1, 2, 3)
Break = Callable[[pytest.MonkeyPatch], None]
exporting = importlib.import_module("intarsia.surgery.export")


def sample() -> GraphModule:
    """Two partitions of two results each, equal state names, names that mislead, two writes, and a dead writer."""

    def first(g: Draft) -> Any:
        a, b = g.inputs("y x")
        total = g.op(aten.add.Tensor, a, g.get_attr("w"))
        g.op(aten.copy_.default, g.get_attr("one"), total)
        g.op(aten.copy_.default, g.get_attr("two"), g.op(aten.mul.Tensor, b, g.get_attr("two")))
        return total, g.op(aten.sub.Tensor, b, g.get_attr("two")), g.op(aten.topk.default, a, 2)

    def second(g: Draft) -> Any:
        c, d = g.inputs("d c")
        return g.op(aten.div.Tensor, c, g.op(aten.exp.default, d)), g.op(aten.mul.Tensor, c, g.get_attr("w"))

    def writer(g: Draft) -> None:
        g.op(aten.copy_.default, g.get_attr("last"), g.op(aten.neg.default, g.placeholder("a")))

    def top(g: Draft) -> Any:
        x, y = g.inputs("x y")
        one = g.part("first", x, y)
        g.part("writer", y)
        two = g.part("second", g.item(one, 0), g.item(one, 1))
        pair = g.item(one, 2)
        return g.item(two, 1), g.item(two, 0), g.item(pair, 0), g.item(pair, 1), g.op(aten.add.Tensor, x, 3.0)

    state_of_first = {"w": parameter(tensor(3, 3)), "one": Buffer(tensor(4, 2, 3)), "two": Buffer(tensor(5, 2, 3))}
    parts = {
        "first": hybrid(first, state_of_first),
        "second": hybrid(second, {"w": parameter(tensor(6, 3))}),
        "writer": hybrid(writer, {"last": Buffer(tensor(7, 2, 3))}),
    }
    return describe(hybrid(top, parts), (X, tensor(2, 2, 3)))


def in_place() -> GraphModule:
    """Writes in place, random numbers, and a partition without results that writes."""

    def noise(g: Draft) -> Any:
        a = g.placeholder("a")
        random = g.op(aten.rand.default, [3], device=torch.device("cpu"))
        g.op(aten.add_.Tensor, g.get_attr("n"), 1.0)
        g.op(aten.mul_.Tensor, g.get_attr("n"), 2.0)
        return g.op(aten.mul.Tensor, a, random)

    def writer(g: Draft) -> None:
        g.op(aten.add_.Tensor, g.get_attr("n"), g.placeholder("a"))

    def top(g: Draft) -> Any:
        x = g.placeholder("x")
        g.part("writer", x)
        return g.part("noise", x)

    shared = Buffer(tensor(4, 2, 3))
    return describe(hybrid(top, {"noise": hybrid(noise, {"n": shared}), "writer": hybrid(writer, {"n": shared})}), (X,))


def wire_by_name(patch: pytest.MonkeyPatch) -> None:
    bind = inline.bind

    def by_name(graph: Graph, args: Any, kwargs: Any, place: str) -> dict[Node, Any]:
        named = {value.name: value for value in args if isinstance(value, Node)}
        return {node: named.get(str(node.target), value) for node, value in bind(graph, args, kwargs, place).items()}

    patch.setattr(inline, "bind", by_name)


def wire_in_reverse(patch: pytest.MonkeyPatch) -> None:
    bind = inline.bind
    patch.setattr(inline, "bind", lambda graph, args, kwargs, place: bind(graph, tuple(reversed(args)), kwargs, place))


def swap_two_producers(patch: pytest.MonkeyPatch) -> None:
    take = inline.Inliner._take

    def swapped(self: Any, frame: Any, node: Node, container: Any, key: Any) -> Any:
        return take(self, frame, node, container, {0: 1, 1: 0}.get(key, key))

    patch.setattr(inline.Inliner, "_take", swapped)


def take_the_first_element(patch: pytest.MonkeyPatch) -> None:
    element = inline.Inliner._element

    def first(self: Any, subject: str, source: Node, _position: int, meta: Any) -> Node:
        return element(self, subject, source, 0, meta)

    patch.setattr(inline.Inliner, "_element", first)


def drop_one_output(patch: pytest.MonkeyPatch) -> None:
    outputs = exporting._outputs

    def fewer(returned: Any, convention: Any) -> Any:
        return outputs(returned[:-1], convention)

    patch.setattr(exporting, "_outputs", fewer)


def blank_one_output(patch: pytest.MonkeyPatch) -> None:
    outputs = exporting._outputs

    def blanked(returned: Any, convention: Any) -> Any:
        leaves, spec = outputs(returned, convention)
        return [*leaves[:-1], None], spec

    patch.setattr(exporting, "_outputs", blanked)


def eliminate_dead_code_too_early(patch: pytest.MonkeyPatch) -> None:
    enter = inline.Inliner._enter

    def skipping(self: Any, frame: Any, node: Node) -> None:
        if node.users:
            enter(self, frame, node)
        else:
            frame.values[node] = None

    patch.setattr(inline.Inliner, "_enter", skipping)


def eliminate_effects(patch: pytest.MonkeyPatch) -> None:
    class Pure:
        def has(self, node: Node, bodies: Any) -> bool:
            return False

    patch.setattr(assembling, "Effects", Pure)


def lose_a_declared_write(patch: pytest.MonkeyPatch) -> None:
    take_out = mutations.MutationFinder._take_out

    def losing(self: Any, *args: Any) -> Any:
        made = take_out(self, *args)
        values = dict(list(made.values.items())[1:])
        return replace(made, values=values, written=tuple(values))

    patch.setattr(mutations.MutationFinder, "_take_out", losing)


def write_to_the_wrong_buffer(patch: pytest.MonkeyPatch) -> None:
    take_out = mutations.MutationFinder._take_out

    def crossed(self: Any, *args: Any) -> Any:
        made = take_out(self, *args)
        return replace(made, values=dict(zip(made.values, reversed(made.values.values()), strict=True)))

    patch.setattr(mutations.MutationFinder, "_take_out", crossed)


def read_what_was_there_before_a_write(patch: pytest.MonkeyPatch) -> None:
    map_arg = mutations.map_arg

    def stale(argument: Any, function: Any) -> Any:
        both = isinstance(argument, tuple) and len(argument) == 2 and isinstance(argument[1], dict)
        return argument if both else map_arg(argument, function)

    patch.setattr(mutations, "map_arg", stale)


def merge_states_of_one_name(patch: pytest.MonkeyPatch) -> None:
    read = state.StateTable.read
    known: dict[str, Any] = {}

    def by_name(self: Any, module: Any, target: str, path: str) -> Any:
        return known.setdefault(target, read(self, module, target, path))

    patch.setattr(state.StateTable, "read", by_name)


def copy_a_state(patch: pytest.MonkeyPatch) -> None:
    lifted = lift.Lifter.finish

    def copying(self: Any, *args: Any) -> Any:
        return [(replace(entry, value=copy.deepcopy(entry.value)), node) for entry, node in lifted(self, *args)]

    patch.setattr(lift.Lifter, "finish", copying)


def change_a_number(patch: pytest.MonkeyPatch) -> None:
    copy = inline.Inliner._copy

    def changed(self: Any, frame: Any, node: Node, args: Any, kwargs: Any) -> Node:
        return copy(self, frame, node, tuple(2.5 if arg == 3.0 else arg for arg in args), kwargs)

    patch.setattr(inline.Inliner, "_copy", changed)


def change_an_operator(patch: pytest.MonkeyPatch) -> None:
    copy = inline.Inliner._copy

    def changed(self: Any, frame: Any, node: Node, args: Any, kwargs: Any) -> Node:
        image = copy(self, frame, node, args, kwargs)
        if image.target is aten.mul.Tensor:
            image.target = aten.div.Tensor
        return image

    patch.setattr(inline.Inliner, "_copy", changed)


def after_the_walk(change: Callable[[Graph], None]) -> Break:
    """A break that does something to the finished graph."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        remove_dead = exporting.remove_dead

        def changed(graph: Graph, *rest: Any) -> None:
            remove_dead(graph, *rest)
            change(graph)

        patch.setattr(exporting, "remove_dead", changed)

    apply.__name__ = change.__name__
    return apply


def _calls(graph: Graph, target: Any) -> list[Node]:
    return [node for node in graph.nodes if node.target is target]


@after_the_walk
def invent_a_node(graph: Graph) -> None:
    node = _calls(graph, aten.exp.default)[0]
    with graph.inserting_after(node):
        made = graph.call_function(aten.neg.default, (node,))
    made.meta["val"] = node.meta["val"]


@after_the_walk
def bypass_a_node(graph: Graph) -> None:
    node = _calls(graph, aten.exp.default)[0]
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    graph.erase_node(node)


@after_the_walk
def swap_two_inputs(graph: Graph) -> None:
    x, y = [node for node in graph.nodes if node.op == "placeholder"][:2]
    users = list(x.users)
    y.replace_all_uses_with(x, delete_user_cb=lambda user: user not in users)
    for user in users:
        user.replace_input_with(x, y)


@after_the_walk
def lose_a_write_in_place(graph: Graph) -> None:
    graph.erase_node(_calls(graph, aten.mul_.Tensor)[0])


@after_the_walk
def move_a_write_in_place(graph: Graph) -> None:
    first, second = _calls(graph, aten.add_.Tensor)[-1], _calls(graph, aten.mul_.Tensor)[0]
    second.append(first)


@after_the_walk
def write_twice(graph: Graph) -> None:
    node = _calls(graph, aten.mul_.Tensor)[0]
    with graph.inserting_after(node):
        graph.node_copy(node, lambda argument: argument)


BREAKS: list[tuple[Callable[[], GraphModule], Break]] = [
    *((sample, broken) for broken in (wire_by_name, wire_in_reverse, swap_two_producers, take_the_first_element)),
    *((sample, broken) for broken in (drop_one_output, blank_one_output, eliminate_dead_code_too_early)),
    *((sample, broken) for broken in (lose_a_declared_write, write_to_the_wrong_buffer)),
    *((sample, broken) for broken in (read_what_was_there_before_a_write, merge_states_of_one_name, copy_a_state)),
    *((sample, broken) for broken in (change_a_number, change_an_operator)),
    *((sample, broken) for broken in (invent_a_node, bypass_a_node, swap_two_inputs)),
    *((in_place, broken) for broken in (eliminate_dead_code_too_early, eliminate_effects)),
    *((in_place, broken) for broken in (lose_a_write_in_place, move_a_write_in_place, write_twice)),
]


@pytest.mark.parametrize(
    ("build", "broken"), BREAKS, ids=[f"{build.__name__}-{broken.__name__}" for build, broken in BREAKS]
)
def test_a_broken_exporter_is_caught(
    build: Callable[[], GraphModule], broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(build())
    broken(monkeypatch)
    with pytest.raises(ConservationError, match="fault of intarsia"):
        export(build())


def test_the_ledger_accounts_for_everything() -> None:
    module = sample()
    program = export(module)
    account = ledger(program)
    nodes = {entry.subject for entry in account.select("node")}
    for path, part in [("", module), ("first/", module.first), ("second/", module.second), ("writer/", module.writer)]:
        for node in part.graph.nodes:
            if node.op in ("call_function", "get_attr"):
                assert f"{path}{node.name}" in nodes
    assert {entry.subject for entry in account.select("partition")} == {"first", "second", "writer"}
    assert {entry.subject for entry in account.select("state")} >= {"first.w", "first.one", "first.two", "second.w"}
    assert {entry.subject for entry in account.select("mutation")} == {"one", "two", "last"}
    assert len(account.select("user output")) == 5
    images = {entry.image for entry in account.entries if entry.image}
    assert {node.name for node in program.graph.nodes if node.op == "call_function"} <= images
    assert all(entry.reason for entry in account.select(fate="removed"))


def test_a_program_of_another_tool_has_no_ledger() -> None:
    with pytest.raises(ConventionError, match="the program's ledger"):
        ledger(torch.export.export(torch.nn.Linear(3, 2), (X,)))
