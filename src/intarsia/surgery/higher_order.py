"""Calls of higher-order operators: each gets copies of its bodies, and passes on to them the state that they read."""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from intarsia.core.foreign import Adapter, adapt_nothing
from intarsia.core.operands import Operands, operands_of, pass_on
from intarsia.core.reading import Traced, body_place, is_body
from intarsia.core.writes import Writes
from intarsia.errors import HybridError, MutationError
from intarsia.surgery.binding import bind, restructure
from intarsia.surgery.bodies import Body, BodyLifter, OperandProbe, OperandsFound, StateReader, facts
from intarsia.surgery.ledger import Account
from intarsia.surgery.lift import new_placeholder
from intarsia.surgery.metadata import Described, Metadata, describe
from intarsia.surgery.state import join
from intarsia.surgery.values import Value

Arguments = tuple[tuple[Value, ...], dict[str, Value]]


class Walk(Protocol):
    """The walk that builds one graph."""

    bodies: dict[str, Any]

    def graph_of(self, module: Any, place: str) -> Graph:
        """The graph of a module."""
        ...

    def inside(self, graph: Graph, lifter: StateReader, place: str) -> Walk:
        """A walk that builds the graph of a body."""
        ...

    def inline(
        self, owner: torch.nn.Module, graph: Graph, inputs: Mapping[Node, Value], path: str, place: str
    ) -> Value:
        """Inline a module's graph; gives what it returns."""
        ...


@dataclass
class Shared:
    """What all walks of one export have in common.

    Attributes:
        metadata: Makes descriptions.
        account: Takes the ledger's entries.
        traced: Graphs that were traced for calls of something that has none.
        writes: Tells what calls write.
        modules: Graphs of ordinary modules, by the module's identity.
        bodies: Bodies walked so far, by their identity and the facts about their operands.
        adapt: Makes bodies for modules of other compilers.
        foreign: Calls of engines in such bodies, with the outputs that go into inputs; see `EngineBody`.
        writing: Their images in the new graph, likewise.
    """

    metadata: Metadata
    account: Account
    adapt: Adapter = adapt_nothing
    traced: Traced = field(default_factory=Traced)
    writes: Writes = field(default_factory=Writes)
    modules: dict[int, Graph] = field(default_factory=dict)
    bodies: dict[Any, Body] = field(default_factory=dict)
    foreign: dict[Node, Mapping[int, int]] = field(default_factory=dict)
    writing: dict[Node, Mapping[int, int]] = field(default_factory=dict)


class _Source(NamedTuple):
    """A body, as a call names it.

    Attributes:
        module: The hybrid's own.
        name: Name under which the hybrid reads it.
        path: Its path in the hybrid.
        graph: Its graph.
        place: Place of a walk for this call.
    """

    module: torch.nn.Module
    name: str
    path: str
    graph: Graph
    place: str

    @property
    def placeholders(self) -> list[Node]:
        return list(self.graph.find_nodes(op="placeholder", sort=True))


class BodyTable:
    """The bodies of one graph under construction.

    While the walk goes on, a node of a graph of its own stands for each body of the hybrid, so that it can be passed
    to a partition like any value. A call of a higher-order operator gets a copy of the body in its place.

    Args:
        graph: The new graph.
        walk: Builds it.
        lifter: Makes its placeholders of state.
        shared: What this walk has in common with others.
        held: Objects that stand for themselves, by their nodes.
    """

    def __init__(self, graph: Graph, walk: Walk, lifter: StateReader, shared: Shared, held: dict[Node, Any]) -> None:
        self._graph = graph
        self._walk = walk
        self._lifter = lifter
        self._shared = shared
        self._held = held
        self._scratch = Graph()
        self._tokens: dict[int, Node] = {}
        self._paths: dict[Node, str] = {}
        self._nodes: dict[int, Node] = {}

    def token(self, module: torch.nn.Module, target: str, path: str) -> Node:
        """The node that stands for a body.

        Args:
            module: The body.
            target: Name under which the hybrid reads it.
            path: Its path in the hybrid.
        """
        token = self._tokens.get(id(module))
        if token is None:
            token = self._tokens[id(module)] = self._scratch.create_node("get_attr", target)
            self._held[token], self._paths[token] = module, path
            self._shared.account.remove(token)
        return token

    def name(self, value: Any, target: str) -> Node:
        """The `get_attr` node of the new graph that names an object, under its own name where that is free."""
        node = self._nodes.get(id(value))
        if node is None:
            name = _free_name(target.replace(".", "_"), self._walk.bodies)
            self._walk.bodies[name] = value
            node = self._nodes[id(value)] = self._graph.create_node("get_attr", name)
            self._held[node] = value
        return node

    def keep_apart(self, taken: Collection[str]) -> None:
        """Give what has one of these names another: a module cannot have it beside state of that name, or below it."""
        for node in self._nodes.values():
            name = str(node.target)
            if name in taken:
                node.target = _free_name(f"{name}_body", {*taken, *self._walk.bodies})
                self._walk.bodies[node.target] = self._walk.bodies.pop(name)

    def give(self, call: Node, subject: str, arguments: Arguments, *, trusted: bool) -> Arguments:
        """The arguments of a call with copies of its bodies, and with the state that these read.

        Args:
            call: The call in the hybrid.
            subject: How the ledger names it.
            arguments: Its arguments, in values of the new graph.
            trusted: Whether the metadata of the hybrid's nodes fits this call.

        Raises:
            HybridError: A body reads state, and the operator has no place for more operands; or it is nested too
                deeply.
        """
        tokens = [leaf for leaf in _nodes_in(arguments) if leaf in self._paths]
        sources = self._sources(call, subject, tokens)
        operands = self._operands(call, subject, arguments, sources, trusted=trusted)
        bodies = [self._body(*pair) for pair in zip(sources.values(), operands, strict=True)]
        reads = {key: read for body in bodies for key, read in body.lifter.reads.items()}
        state = {key: self._lifter.read(*read) for key, read in reads.items()}
        self._held.update(
            {state[key]: read.found[2] for key, read in reads.items() if isinstance(read.found[2], torch.ScriptObject)}
        )
        args, kwargs = arguments
        if state:
            args = pass_on(call.target, args, list(state.values())) or self._refuse(call, subject, bodies)
        images = {token: self._image(token, body, state) for token, body in zip(sources, bodies, strict=True)}
        images |= {token: self.name(self._held[token], str(token.target)) for token in tokens if token not in sources}
        given: Arguments = map_arg((args, kwargs), lambda node: images.get(node, node))
        return given

    def _sources(self, call: Node, subject: str, tokens: Sequence[Node]) -> dict[Node, _Source]:
        """The bodies among the modules that a call is given; other modules stay what they are."""
        sources: dict[Node, _Source] = {}
        for token in tokens:
            module = self._held[token]
            if token not in sources and is_body(module, call.target):
                place = body_place(subject, len(sources))
                graph = self._walk.graph_of(module, place)
                sources[token] = _Source(module, str(token.target), self._paths[token], graph, place)
        return sources

    def _operands(
        self, call: Node, subject: str, arguments: Arguments, sources: Mapping[Node, _Source], *, trusted: bool
    ) -> list[Sequence[Described]]:
        """Descriptions of the operands of each body: its own metadata if that fits, else what the operator passes."""
        known = operands_of(call.target, arguments[0])
        passed = () if known is None else known.passed
        if trusted and all(self._is_described(source.placeholders, passed) for source in sources.values()):
            return [[node.meta["val"] for node in source.placeholders] for source in sources.values()]
        if known is None and len(sources) > 1:
            raise self._undescribed(call, subject, sources)
        probe = OperandProbe()
        trial = self._scratch.create_node("call_function", call.target, *arguments, name=call.name)
        try:
            self._shared.metadata.of_call(trial, subject, ChainMap(dict.fromkeys(sources, probe), self._held))
        except OperandsFound as found:
            return [found.operands] * len(sources)
        finally:
            self._scratch.erase_node(trial)
        if known is None:
            raise self._undescribed(call, subject, sources)
        return [self._rows(known)] * len(sources)

    def _rows(self, operands: Operands) -> Sequence[Described]:
        """Operands of `associative_scan`, which torch describes without running its body: rows of what is scanned."""
        made, passed = map_arg((operands.made, operands.passed), lambda node: describe(node, self._held))
        with self._shared.metadata.mode:
            return [*(whole.select(0, 0).clone() for whole in made), *passed]

    def _undescribed(self, call: Node, subject: str, sources: Mapping[Node, _Source]) -> HybridError:
        source = next(iter(sources.values()))
        return HybridError(
            f"body '{source.name}' of node '{subject}'",
            found="placeholders without metadata that fits the call",
            expected=f"metadata, for {call.target} does not tell which operands its bodies take",
            fix="Give its placeholders fake tensors of the hybrid's own fake mode as meta['val'].",
            node=call.name,
        )

    def _is_described(self, placeholders: Sequence[Node], passed: Sequence[Value]) -> bool:
        metadata = self._shared.metadata
        own = all("val" in node.meta and metadata.owns(node.meta["val"]) for node in placeholders)
        pairs = zip(reversed(placeholders), reversed(passed), strict=False)
        return own and all(metadata.fits(*pair) for pair in pairs)

    def _body(self, source: _Source, operands: Sequence[Described]) -> Body:
        """A body, walked once for operands of the same facts."""
        bodies = self._shared.bodies
        key = (id(source.module), *map(facts, operands))
        if key not in bodies:
            bodies[key] = self._walk_body(source, operands)
        elif source.place != bodies[key].place:
            self._shared.traced.walks[source.place] = bodies[key].place
        return bodies[key]

    def _walk_body(self, source: _Source, operands: Sequence[Described]) -> Body:
        graph = Graph()
        lifter = BodyLifter(graph, self._lifter)
        names = [node.name for node in source.placeholders]
        if len(names) != len(operands):
            names = ["operand"] * len(operands)
        inputs = [new_placeholder(graph, name) for name in names]
        for node, described in zip(inputs, operands, strict=True):
            node.meta["val"] = described
        walk = self._walk.inside(graph, lifter, source.place)
        values = bind(source.graph, inputs, {}, source.place)
        returned = walk.inline(source.module, source.graph, values, source.path, source.place)
        graph.output(restructure(source.graph, returned))
        return Body(source.name, source.place, graph, inputs, lifter, walk.bodies)

    def _image(self, token: Node, body: Body, state: Mapping[int, Node]) -> Node:
        image = self.name(body.taking(state), body.name)
        self._shared.account.replace(token, image, "copied")
        self._shared.account.place_body(body.graph, image)
        return image

    def _refuse(self, call: Node, subject: str, bodies: Sequence[Body]) -> NoReturn:
        body, read = next((body, read) for body in bodies for read in body.lifter.reads.values())
        raise HybridError(
            f"body '{body.name}' of node '{subject}'",
            found=f"that it reads '{join(read.path, str(read.node.target))}' (%{read.node.name})",
            expected=f"a body that takes what it reads as operands, for {call.target} cannot be given more",
            fix="Pass the state to the operator, and let the body take it as an operand.",
            node=call.name,
        )


def refuse_lost_writes(call: Node, written: Sequence[Node], subject: str) -> None:
    """Refuse a call whose bodies write where torch would lose the writes when it decomposes the program.

    Raises:
        MutationError: It is such a call.
    """
    if str(call.target) == "strict_mode":
        names = ", ".join(f"%{node.name}" for node in written)
        raise MutationError(
            f"node '{subject}'",
            found=f"a body that writes {names} in place",
            expected="a body without writes",
            consequence="Torch would lose the write when it decomposes the program.",
            fix="Run the body without strict_mode, or let it return what it writes.",
            node=call.name,
        )


def _free_name(name: str, taken: Collection[str]) -> str:
    numbered = (f"{name}_{number}" for number in itertools.count(1))
    return next(candidate for candidate in itertools.chain([name], numbered) if candidate not in taken)


def _nodes_in(arguments: Arguments) -> list[Node]:
    found: list[Node] = []
    map_arg(arguments, found.append)
    return found
