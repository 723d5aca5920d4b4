"""Graphs read into numbers, so that what two of them compute can be compared.

A reader gives every value a number, such that two values have one number exactly if the same operator made them of the
same values after the same effects: of inputs by position, of state by identity.

A body of a higher-order operator is read by itself, once. What it takes from outside of itself has numbers of its own
there, and each call says what stands for these. So it does not matter in which way a body comes by a value: by an
operand that the operator passes on, or by an attribute.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from intarsia._torch import (
    HigherOrderOperator,
    OpOverload,
    TreeSpec,
    is_guard_module,
    pytree,
    schema_of,
)
from intarsia.core.calling import positional, restructure
from intarsia.core.numbering import FreeValues, Number, Numbering, key_of
from intarsia.core.operands import has_bodies, operands_of

_COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Traced:
    """Graphs that stand for calls of something that has none.

    Attributes:
        graphs: Graphs of ordinary modules and Python calls, with the owner of their attributes, by the call's place.
        walks: For the place of a body the place under which that body was walked before, when it was.
    """

    graphs: dict[str, tuple[Any, Graph]] = field(default_factory=dict)
    walks: dict[str, str] = field(default_factory=dict)


class BodyReading(NamedTuple):
    """A body, read by itself.

    Attributes:
        number: Number of what it computes.
        free: What it takes from outside of itself, see `FreeValues.used`.
        has_effect: Whether a run of it has an effect.
    """

    number: Number
    free: Sequence[int | tuple[Any]]
    has_effect: bool


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
        self._traced = traced or Traced()
        self._copies = frozenset(copies)
        self._stack: list[_Call] = []
        self._holds: Callable[[Number, Number], Any] = self.written.get
        self._free: FreeValues | None = None
        self._readings: dict[Any, BodyReading] = {}

    def read(self, owner: Any, graph: Graph, values: dict[Node, Any], place: str = "") -> Any:
        """Read a graph whose placeholders have these values; gives the value that it returns."""
        self._stack.append(_Call(owner, graph, values, place))
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
            self._stack[-1].values[call.caller] = restructure(call.graph, returned)

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
        if node.op == "call_module" or self._traced.graphs:
            place = _place(call, node)
            if node.op == "call_module" or place in self._traced.graphs:
                self._enter(call, node, place)
                return
        call.values[node] = self._apply(call, node)

    def attribute(self, value: Any) -> Number:
        """The number of state, or of a body, which its identity decides."""
        body = value if isinstance(value, (torch.nn.Module, TreeSpec)) else None
        number = self._numbering.number(("attribute", id(value)), "state", body)
        if self._free is not None and body is None:
            self._free.attribute(number, value)
        return number

    def _enter(self, call: _Call, node: Node, place: str) -> None:
        args: Any
        kwargs: Any
        args, kwargs = map_arg((node.args, node.kwargs), call.values.__getitem__)
        if node.op != "call_module":
            owner, graph = self._traced.graphs[place]
            args, kwargs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Number)], {}
        elif place in self._traced.graphs:
            owner, graph = self._traced.graphs[place]
        else:
            owner = functools.reduce(getattr, str(node.target).split("."), call.owner)
            if is_guard_module(owner):
                call.values[node] = None
                return
            graph = owner.graph
        self._stack.append(_Call(owner, graph, positional(graph, args, kwargs), place, node))

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
        if isinstance(node.target, HigherOrderOperator):
            arguments, keywords, has_effect = self._read_bodies(call, node)
        else:
            arguments = self._key(node.args, values)
            keywords = self._key(node.kwargs, values) if node.kwargs else ()
            has_effect = self._numbering.effects.has(node, {})
        # An operator by its identity, for hashing one is slow.
        target = id(node.target) if isinstance(node.target, OpOverload) else node.target
        key = (target, arguments, keywords, self._epoch())
        if has_effect:
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
            return tuple(self._expand(value)) if value.length else self._holds(value, value)
        if isinstance(value, (tuple, list)):
            return tuple([self._key(item, values) for item in value])
        if isinstance(value, dict):
            return tuple([(name, self._key(item, values)) for name, item in value.items()])
        if isinstance(value, slice):
            return ("slice", *(self._key(end, values) for end in (value.start, value.stop, value.step)))
        return key_of(value)

    def _read_bodies(self, call: _Call, node: Node) -> tuple[Any, Any, bool]:
        """Arguments and keywords of a call as keys, its bodies by what they compute; and whether it has an effect.

        Operands that the operator passes on count only as what bodies use.
        """
        args: Any
        kwargs: Any
        args, kwargs = map_arg((node.args, node.kwargs), call.values.__getitem__)
        operands = operands_of(node.target, args)
        made, passed, rest = (None, (), args) if operands is None else operands
        given = None if made is None else len(made)
        place, has_effect = _place(call, node), node.is_impure()
        seen: dict[Number, int] = {}

        def read(number: Number) -> Any:
            nonlocal has_effect
            if not is_body(number.body, node.target):
                return number
            found = self._read_body(
                number.body, given, len(passed), body_place(place, seen.setdefault(number, len(seen)))
            )
            has_effect = has_effect or found.has_effect
            return (found.number, *(self._key(self._outside(source, passed), {}) for source in found.free))

        rest, kwargs = pytree.tree_map_only(Number, read, (rest, kwargs))
        return self._key(rest, {}), self._key(kwargs, {}), has_effect

    def _outside(self, source: int | tuple[Any], passed: Sequence[Any]) -> Any:
        """What stands for something that a body takes from outside."""
        return passed[source] if isinstance(source, int) else self.attribute(source[0])

    def _read_body(self, body: Any, made: int | None, passed: int, place: str) -> BodyReading:
        place = self._traced.walks.get(place, place) if self._traced.graphs else ""
        known = self._readings.get((id(body), place, passed))
        if known is None:
            known = self._readings[id(body), place, passed] = self._inner().read_body(
                body, made, passed, place, self._readings
            )
        return known

    def read_body(
        self, body: Any, made: int | None, passed: int, place: str, readings: dict[Any, BodyReading]
    ) -> BodyReading:
        """Read a graph as a body, by itself.

        Args:
            body: The module.
            made: How many operands the operator makes; None when it makes all.
            passed: How many operands it passes on, after these.
            place: Place of the walk of this body.
            readings: Bodies read so far.
        """
        owner, graph = self._traced.graphs.get(place) or (body, body.graph)
        free = FreeValues(self._numbering)
        self._free, self._holds, self._readings = free, free.use, readings
        if made is None:
            made = len(graph.find_nodes(op="placeholder"))
        given = [self._numbering.number(("operand", position), f"operand {position}") for position in range(made)]
        values = positional(graph, [*given, *map(free.operand, range(passed))], {})
        returned = key_of(restructure(graph, self.read(owner, graph, values, place)))
        number = self._numbering.number(("body", returned, tuple(self.effects)), "body")
        return BodyReading(number, free.used, bool(self.effects))

    def _inner(self) -> Reader:
        """A reader for a body."""
        return Reader(self._numbering, writes_in_place=True, traced=self._traced)

    def _take(self, value: Any, key: Any) -> Any:
        if not isinstance(value, Number):
            return value[key]
        value = self._current(value)
        if isinstance(key, slice):
            return [self._take(value, position) for position in range(value.length)[key]]
        position = key % value.length if value.length else key
        return self._numbering.number(("element", value, position), value.origin)

    def _current(self, number: Number) -> Any:
        return self._holds(number, number)


def _place(call: _Call, node: Node) -> str:
    return f"{call.place}/{node.name}" if call.place else node.name


def body_place(place: str, index: int) -> str:
    """Place of a body's walk: that of the call, and which of the call's bodies it is."""
    return f"{place}/body_{index}"


def is_body(module: Any, target: Any) -> bool:
    """Whether a module is read as a body of an operator; modules of other kinds are what they are."""
    return isinstance(module, GraphModule) or (isinstance(module, torch.nn.Module) and has_bodies(target))
