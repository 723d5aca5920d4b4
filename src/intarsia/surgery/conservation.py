"""The check of an export: the program computes what the hybrid computes, neither less nor more.

Hybrid and program are read by a second reader, which shares no code with the walk that made the one of the other. It
gives every value a number, such that two values have one number exactly if the same operator made them of the same
values after the same effects: of inputs by position, of state by identity. What the program returns, writes and does
must have the numbers of what the hybrid returns, writes and does. An output lost, a call wired to another value, two
tensors merged under one name, a write dropped or moved: each gives another number.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from intarsia._torch import OpOverload, TreeSpec, is_guard_module, is_training, pytree, pytree_convention
from intarsia.errors import ConservationError
from intarsia.surgery.effects import Effects
from intarsia.surgery.values import flatten

_COPY = torch.ops.aten.copy_.default

Traced = Mapping[str, tuple[Any, Graph]]
"""Graphs that stand for ordinary modules and Python calls, with the owner of their attributes, by the call's place."""


class Number:
    """One value. Two values are the same exactly if their numbers are one object.

    Args:
        origin: Name of the node that made it first.
        body: The module, when the value is a body of a higher-order operator.

    Attributes:
        length: How many elements it has, when it is what an operator of several results returned.
    """

    __slots__ = ("body", "length", "origin")

    def __init__(self, origin: str, body: Any = None) -> None:
        self.origin = origin
        self.body = body
        self.length = 0


@dataclass
class _Call:
    """One call of one graph, while it is being read."""

    owner: Any
    graph: Graph
    values: dict[Node, Any]
    place: str = ""
    caller: Node | None = None
    rest: Iterator[Node] = field(init=False)

    def __post_init__(self) -> None:
        self.rest = iter(self.graph.nodes)


class Numbering:
    """Numbers that hybrid and program share, so that what they compute can be compared."""

    def __init__(self) -> None:
        self._numbers: dict[Any, Number] = {}
        self.effects = Effects()

    def number(self, *key: Any, origin: str, body: Any = None) -> Number:
        """The number of the value that a key describes."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = Number(origin, body)
        return found


class Reader:
    """Reads one graph, and all that it calls, into numbers.

    Args:
        numbering: Gives the numbers.
        writes_in_place: Whether the program writes in place. If not, a `copy_` is read as what it means for the values
            after it, and is no effect.
        traced: Graphs that stand for calls of something that has none.
        copies: Names of nodes that make a tensor like their first argument of their second, and count as the second.

    Attributes:
        effects: Numbers of the effects, in order.
        written: What each written value holds in the end, when `writes_in_place` is False.
    """

    def __init__(
        self, numbering: Numbering, *, writes_in_place: bool, traced: Traced | None = None, copies: Sequence[str] = ()
    ) -> None:
        self.effects: list[Number] = []
        self.written: dict[Number, Any] = {}
        self._numbering = numbering
        self._writes_in_place = writes_in_place
        self._traced = traced or {}
        self._copies = frozenset(copies)
        self._stack: list[_Call] = []

    def read(self, owner: Any, graph: Graph, values: dict[Node, Any]) -> Any:
        """Read a graph whose placeholders have these values; gives the value that it returns."""
        self._stack.append(_Call(owner, graph, values))
        while True:
            call = self._stack[-1]
            node = next(call.rest)
            if node.op != "output":
                self._visit(call, node)
                continue
            returned = map_arg(node.args[0], call.values.__getitem__)
            self._stack.pop()
            if call.caller is None:
                return pytree.tree_map_only(Number, self._current, returned)
            self._stack[-1].values[call.caller] = _restructure(call.graph, returned)

    def _visit(self, call: _Call, node: Node) -> None:
        if node.op == "placeholder":
            return
        if node.op == "get_attr":
            call.values[node] = self.attribute(functools.reduce(getattr, str(node.target).split("."), call.owner))
            return
        place = f"{call.place}/{node.name}" if call.place else node.name
        if node.op == "call_module" or place in self._traced:
            self._enter(call, node, place)
        else:
            call.values[node] = self._apply(call, node)

    def attribute(self, value: Any) -> Number:
        """The number of state, or of a body, which its identity decides."""
        body = value if isinstance(value, (torch.nn.Module, TreeSpec)) else None
        return self._numbering.number("attribute", id(value), origin="state", body=body)

    def _enter(self, call: _Call, node: Node, place: str) -> None:
        args: Any
        kwargs: Any
        args, kwargs = map_arg((node.args, node.kwargs), call.values.__getitem__)
        if node.op != "call_module":
            owner, graph = self._traced[place]
            args, kwargs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Number)], {}
        elif place in self._traced:
            owner, graph = self._traced[place]
        else:
            owner = functools.reduce(getattr, str(node.target).split("."), call.owner)
            if is_guard_module(owner):
                call.values[node] = None
                return
            graph = owner.graph
        self._stack.append(_Call(owner, graph, _positional(graph, args, kwargs), place, node))

    def _apply(self, call: _Call, node: Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: self._read_now(call.values[source]))
        if node.target is operator.getitem:
            return self._take(call.values[node.all_input_nodes[0]], args[1])
        if node.name in self._copies:
            return args[1]
        if node.target is _COPY and not self._writes_in_place:
            destination = call.values[node.all_input_nodes[0]]
            self.written.pop(destination, None)
            self.written[destination] = args[1]
            return destination
        key = (node.target, _key(args), _key(kwargs), len(self.effects) if self._writes_in_place else None)
        if self._has_effect(call, node):
            made = self._numbering.number(*key, "effect", len(self.effects), origin=node.name)
            self.effects.append(made)
        else:
            made = self._numbering.number(*key, origin=node.name)
        results = node.meta.get("val")
        if isinstance(results, (tuple, list)):
            made.length = made.length or len(results)
        return made

    def _has_effect(self, call: _Call, node: Node) -> bool:
        if isinstance(node.target, OpOverload):
            return self._numbering.effects.has(node, {})
        bodies = {source: _body(call.values[source]) for source in node.all_input_nodes}
        return self._numbering.effects.has(node, bodies)

    def _take(self, value: Any, key: Any) -> Any:
        if not isinstance(value, Number):
            return value[key]
        if isinstance(key, slice):
            return [self._take(value, position) for position in range(value.length)[key]]
        position = key % value.length if value.length else key
        return self._numbering.number("element", value, position, origin=f"{value.origin}[{key}]")

    def _read_now(self, value: Any) -> Any:
        if isinstance(value, Number):
            return self._current(value)
        return pytree.tree_map_only(Number, self._current, value) if self.written else value

    def _current(self, number: Number) -> Any:
        return self.written.get(number, number)


def check_conservation(
    hybrid: GraphModule,
    values: Mapping[Node, Any],
    program: ExportedProgram,
    *,
    traced: Traced,
    copies: Sequence[str],
) -> None:
    """Check that a program computes what its hybrid computes.

    Args:
        hybrid: The hybrid.
        values: For each of its placeholders a constant, or the program's placeholders in the structure it takes.
        program: What was made of it.
        traced: Graphs that stand for calls of something that has none.
        copies: Names of nodes of the program that were added to make a tensor like the one that is written.

    Raises:
        ConservationError: The two differ; names the first difference.
    """
    numbering = Numbering()
    in_place = is_training(program)
    inputs, state = _program_inputs(program, numbering)
    after = Reader(numbering, writes_in_place=in_place, copies=copies)
    placed = {node: (inputs | state)[node.name] for node in program.graph.find_nodes(op="placeholder")}
    results = after.read(program.graph_module, program.graph, placed)
    before = Reader(numbering, writes_in_place=in_place, traced=traced)
    given = {node: pytree.tree_map_only(Node, lambda leaf: inputs[leaf.name], value) for node, value in values.items()}
    returned = before.read(hybrid, hybrid.graph, given)
    _compare_outputs(hybrid, returned, program, results)
    _compare_writes(before.written, program, results, inputs | state)
    _compare_effects(before.effects, after.effects)


def _program_inputs(program: ExportedProgram, numbering: Numbering) -> tuple[dict[str, Number], dict[str, Number]]:
    """Numbers of a program's user inputs, by position, and of its state, by identity; both by placeholder name."""
    inputs: dict[str, Number] = {}
    state: dict[str, Number] = {}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            inputs[name] = numbering.number("input", len(inputs), origin=name)
            continue
        held = program.state_dict.get(spec.target, program.constants.get(spec.target))
        state[name] = numbering.number("attribute", id(held), origin="state")
    return inputs, state


def _compare_outputs(hybrid: GraphModule, returned: Any, program: ExportedProgram, results: Sequence[Any]) -> None:
    convention = pytree_convention(hybrid.graph)
    if convention is not None and convention.out_spec is not None:
        leaves = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        returned = pytree.tree_unflatten(leaves, convention.out_spec)
    expected, spec = flatten(returned)
    user = [r for r, s in zip(results, program.graph_signature.output_specs, strict=True) if s.kind is _USER]
    if spec != program.call_spec.out_spec or len(user) != len(expected):
        raise _lost("the outputs' structure", f"{program.call_spec.out_spec} of {len(user)} leaves", str(spec))
    for index, (found, wanted) in enumerate(zip(user, expected, strict=True)):
        if _key(found) != _key(wanted):
            raise _lost(f"output {index}", _origin(found), _origin(wanted))


_USER = OutputKind.USER_OUTPUT


def _compare_writes(
    written: Mapping[Number, Any], program: ExportedProgram, results: Sequence[Any], inputs: Mapping[str, Number]
) -> None:
    placeholders = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    declared: dict[Number, Any] = {}
    for result, spec in zip(results, program.graph_signature.output_specs, strict=True):
        if spec.kind is not _USER:
            declared[inputs[placeholders.get(spec.target, spec.target)]] = result
    for target in declared.keys() | written.keys():
        found, wanted = declared.get(target), written.get(target)
        if found is not wanted:
            raise _lost(f"the write of '{target.origin}'", _origin(found), _origin(wanted))


def _compare_effects(found: Sequence[Number], expected: Sequence[Number]) -> None:
    for one, two in zip(found, expected, strict=False):
        if one is not two:
            raise _lost("an effect", _origin(two), _origin(one))
    if len(found) != len(expected):
        raise _lost("the effects", f"{len(expected)} of them", f"{len(found)}")


def _lost(subject: str, found: str, expected: str) -> ConservationError:
    return ConservationError(
        f"the export, {subject}",
        found=found,
        expected=expected,
        consequence="The program would not compute what the hybrid computes.",
        fix="This is a fault of intarsia: please report it with the hybrid.",
    )


def _origin(value: Any) -> str:
    return f"%{value.origin}" if isinstance(value, Number) else repr(value)


def _body(value: Any) -> Any:
    return value.body if isinstance(value, Number) else None


def _restructure(graph: Graph, returned: Any) -> Any:
    convention = pytree_convention(graph)
    if convention is None or convention.out_spec is None:
        return returned
    return pytree.tree_unflatten(
        list(returned) if isinstance(returned, (list, tuple)) else [returned], convention.out_spec
    )


def _positional(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Node, Any]:
    """Values of a graph's placeholders: the next positional one, else the one of its name, else its default."""
    placeholders = graph.find_nodes(op="placeholder", sort=True)
    convention = pytree_convention(graph)
    if convention is not None:
        names = convention.in_spec.children()[-1].context or () if kwargs else ()
        args, kwargs = pytree.tree_leaves((list(args), [kwargs[name] for name in names])), {}
    rest = iter(args)
    values: dict[Node, Any] = {}
    for node in placeholders:
        name = str(node.target)
        if name.startswith("**"):
            taken = {str(other.target) for other in placeholders}
            values[node] = {key: value for key, value in kwargs.items() if key not in taken}
        elif name.startswith("*"):
            values[node] = tuple(rest)
        else:
            value = next(rest, _NOTHING)
            values[node] = kwargs.get(name, *node.args) if value is _NOTHING else value
    return values


_NOTHING = object()


def _key(value: Any) -> Any:
    """A value as a key: containers by their elements, constants by type and value."""
    if isinstance(value, Number):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((key, _key(item)) for key, item in value.items())
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    return (type(value), repr(value) if isinstance(value, float) else value)
