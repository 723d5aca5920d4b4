"""Graphs read into numbers, so that what two of them compute can be compared.

A reader gives every value a number, such that two values have one number exactly if the same operator made them of the
same values after the same effects: of inputs by position, of state by identity.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from intarsia._torch import OpOverload, TreeSpec, is_guard_module, pytree, pytree_convention, schema_of
from intarsia.core.effects import Effects

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
        results: Container of these elements.
    """

    __slots__ = ("body", "length", "origin", "results")

    def __init__(self, origin: str, body: Any = None) -> None:
        self.origin = origin
        self.body = body
        self.length = 0
        self.results: type = tuple


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

    def number(self, key: Any, origin: str, body: Any = None) -> Number:
        """The number of the value that a key describes.

        Args:
            key: Hashable; what tells the value from all others.
            origin: Name of the node that made it.
            body: The module, when the value is a body of a higher-order operator.
        """
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
                return pytree.tree_map_only(Number, self._expand, returned)
            self._stack[-1].values[call.caller] = _restructure(call.graph, returned)

    def _expand(self, number: Number) -> Any:
        """What a value holds in the end; that of an operator of several results is a container of them."""
        if not number.length:
            return self._current(number)
        return number.results([self._take(number, position) for position in range(number.length)])

    def _visit(self, call: _Call, node: Node) -> None:
        if node.op == "placeholder":
            return
        if node.op == "get_attr":
            call.values[node] = self.attribute(functools.reduce(getattr, str(node.target).split("."), call.owner))
            return
        if node.op == "call_module" or self._traced:
            place = f"{call.place}/{node.name}" if call.place else node.name
            if node.op == "call_module" or place in self._traced:
                self._enter(call, node, place)
                return
        call.values[node] = self._apply(call, node)

    def attribute(self, value: Any) -> Number:
        """The number of state, or of a body, which its identity decides."""
        body = value if isinstance(value, (torch.nn.Module, TreeSpec)) else None
        return self._numbering.number(("attribute", id(value)), "state", body)

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
        values = call.values
        if node.target is operator.getitem:
            return self._take(values[node.all_input_nodes[0]], node.args[1])
        if node.name in self._copies:
            return self._source(node, values)
        if node.target is _COPY and not self._writes_in_place:
            destination, source = values[node.all_input_nodes[0]], self._source(node, values)
            self.written.pop(destination, None)
            self.written[destination] = source
            return destination
        # An operator by its identity, for hashing one is slow.
        target = id(node.target) if isinstance(node.target, OpOverload) else node.target
        keywords = self._key(node.kwargs, values) if node.kwargs else ()
        key = (target, self._key(node.args, values), keywords, self._epoch())
        if self._has_effect(call, node):
            made = self._numbering.number((*key, len(self.effects)), node.name)
            self.effects.append(made)
        else:
            made = self._numbering.number(key, node.name)
        results = node.meta.get("val")
        if isinstance(results, (tuple, list)):
            made.length = made.length or len(results)
            made.results = schema_of(node.target).results
        return made

    def _epoch(self) -> int:
        """After how many effects a value is made; only where the graph writes in place may that change the value."""
        return len(self.effects) if self._writes_in_place else 0

    def _source(self, copy: Node, values: dict[Node, Any]) -> Any:
        """What a `copy` or `copy_` copies."""
        source = copy.args[1] if len(copy.args) > 1 else copy.kwargs["src"]
        return self._expand(values[source]) if isinstance(source, Node) else source

    def _key(self, argument: Any, values: dict[Node, Any]) -> Any:
        """An argument as a key: nodes by what they hold now, containers by their elements, constants by type too."""
        value = values[argument] if isinstance(argument, Node) else argument
        if isinstance(value, Number):
            return tuple(self._expand(value)) if value.length else self.written.get(value, value)
        if isinstance(value, (tuple, list)):
            return tuple([self._key(item, values) for item in value])
        if isinstance(value, dict):
            return tuple([(name, self._key(item, values)) for name, item in value.items()])
        if isinstance(value, slice):
            return ("slice", *(self._key(end, values) for end in (value.start, value.stop, value.step)))
        return key_of(value)

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
        return self._numbering.number(("element", value, position), value.origin)

    def _current(self, number: Number) -> Any:
        return self.written.get(number, number)


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


def key_of(value: Any) -> Any:
    """A value as a key: containers by their elements, constants by type and value."""
    if isinstance(value, Number):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(key_of, value))
    if isinstance(value, dict):
        return tuple((key, key_of(item)) for key, item in value.items())
    if isinstance(value, slice):
        return ("slice", key_of(value.start), key_of(value.stop), key_of(value.step))
    return (type(value), repr(value) if isinstance(value, float) else value)
