"""The walk: every partition's graph inlined into one new graph, input i bound to what the call passes at position i.

The walk keeps its own stack, so that nesting is bounded by a stated limit and not by Python's recursion.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from intarsia._torch import HigherOrderOperator, TreeSpec, is_guard_module, pytree, schema_of
from intarsia.core.op import RUN_ENGINE
from intarsia.errors import HybridError
from intarsia.surgery import limits
from intarsia.surgery.binding import bind, restructure
from intarsia.surgery.bodies import StateReader
from intarsia.surgery.higher_order import BodyTable, Shared, refuse_lost_writes
from intarsia.surgery.limits import check_limit
from intarsia.surgery.lower import is_exportable, is_mode_switch, trace_call, trace_module
from intarsia.surgery.state import join, resolve
from intarsia.surgery.values import Value, is_container


@dataclass
class _Frame:
    """One call of one graph, while it is being inlined.

    Attributes:
        owner: Module whose attributes the graph reads.
        graph: The graph.
        path: Dotted path of the module in the hybrid, which names its state.
        place: Path of the call ("submod_1/mlp"), which names its nodes in the ledger.
        values: Value of each node of the graph met so far.
        trusted: Whether the metadata of the graph's nodes fits this call.
        caller: The node that called it, or None for the hybrid itself.
        rest: Nodes still to come.
    """

    owner: torch.nn.Module
    graph: Graph
    path: str
    place: str
    values: dict[Node, Value]
    trusted: bool
    caller: Node | None
    rest: Iterator[Node] = field(init=False)

    def __post_init__(self) -> None:
        self.rest = iter(self.graph.nodes)

    def subject(self, node: Node) -> str:
        return f"{self.place}/{node.name}" if self.place else node.name

    def arguments(self, node: Node) -> tuple[tuple[Value, ...], dict[str, Value]]:
        return map_arg((node.args, node.kwargs), self.values.__getitem__)


class Inliner:
    """Builds the new graph.

    Args:
        graph: The new graph, which holds the placeholders of the inputs already.
        lifter: Makes the placeholders of state.
        shared: What this walk has in common with those of bodies.
        depth: How many bodies this walk is inside of.

    Attributes:
        writers: Nodes of the new graph that write, in order, with the arguments that each writes.
        bodies: What `get_attr` nodes of the new graph name, by their target: bodies of higher-order operators.
    """

    def __init__(self, graph: Graph, lifter: StateReader, shared: Shared, depth: int = 0) -> None:
        self.writers: dict[Node, list[Node]] = {}
        self.bodies: dict[str, Any] = {}
        self._graph = graph
        self._lifter = lifter
        self._shared = shared
        self._depth = depth
        self._metadata = shared.metadata
        self._account = shared.account
        self._stack: list[_Frame] = []
        self._count = 0
        self._held: dict[Node, Any] = {}
        self._table = BodyTable(graph, self, lifter, shared, self._held)
        self._elements: dict[tuple[Node, int], Node] = {}

    def inside(self, graph: Graph, lifter: StateReader, place: str) -> Inliner:
        """The walk of a body of a higher-order operator in this walk's graph.

        Args:
            graph: The body's new graph.
            lifter: Makes its placeholders of state.
            place: Place of the walk.

        Raises:
            HybridError: Too many bodies stand inside one another.
        """
        check_limit("body", place, self._depth + 1, limits.MAX_BODY_DEPTH, "bodies inside one another")
        return Inliner(graph, lifter, self._shared, self._depth + 1)

    def inline(
        self, owner: torch.nn.Module, graph: Graph, inputs: Mapping[Node, Value], path: str = "", place: str = ""
    ) -> Value:
        """Inline a graph, and all that it calls.

        Args:
            owner: Module whose attributes the graph reads; not modified.
            graph: The hybrid's own graph, or that of a body.
            inputs: Value of each of its placeholders.
            path: Dotted path of the module in the hybrid.
            place: How the ledger names this walk.

        Returns:
            What its output node returns, in values of the new graph.

        Raises:
            HybridError: A call names something that has no graph, or passes what its partition does not take.
            StateError: A graph reads an attribute that is missing or cannot be exported.
        """
        trusted = all(self._metadata.fits(placeholder, value) for placeholder, value in inputs.items())
        self._stack.append(_Frame(owner, graph, path, place, dict(inputs), trusted, None))
        while True:
            frame = self._stack[-1]
            node = next(frame.rest)
            if node.op != "output":
                self._visit(frame, node)
                continue
            returned = map_arg(node.args[0], frame.values.__getitem__)
            self._stack.pop()
            if frame.caller is None:
                return pytree.tree_map_only(Node, self._expand, returned)
            self._leave(frame, frame.caller, returned)

    def keep_apart(self, names: Collection[str]) -> None:
        """Give bodies other names than these, which state needs."""
        self._table.keep_apart(names)

    def _visit(self, frame: _Frame, node: Node) -> None:
        if node.op == "get_attr":
            frame.values[node] = self._read(frame, node)
        elif node.op == "call_module":
            self._enter(frame, node)
        elif node.op != "placeholder":
            self._call(frame, node)

    def _read(self, frame: _Frame, node: Node) -> Node:
        found = resolve(frame.owner, str(node.target), frame.path)
        value = found[2]
        if isinstance(value, torch.nn.Module):
            body = self._table.token(value, str(node.target), join(frame.path, str(node.target)))
            self._account.note("node", frame.subject(node), "merged", body)
            return body
        if isinstance(value, TreeSpec):
            named = self._table.name(value, str(node.target))
            self._account.note("node", frame.subject(node), "kept", named)
            return named
        placeholder = self._lifter.read(found, node, frame.path)
        if isinstance(value, torch.ScriptObject):
            self._held[placeholder] = value
        self._account.note("node", frame.subject(node), "merged", placeholder, "state read as an input")
        return placeholder

    def _enter(self, frame: _Frame, node: Node) -> None:
        target, place = str(node.target), frame.subject(node)
        module = resolve(frame.owner, target, frame.path)[2]
        if is_guard_module(module):
            frame.values[node] = None
            self._account.note("partition", place, "removed", None, "guard; the program checks its own inputs")
            return
        check_limit("partition", place, len(self._stack), limits.MAX_DEPTH, "levels of nesting")
        args, kwargs = frame.arguments(node)
        module = self._adapt(module, node, args, place)
        graph = self.graph_of(module, place)
        values = bind(graph, args, kwargs, place)
        trusted = all(self._metadata.fits(placeholder, value) for placeholder, value in values.items())
        self._account.note("partition", place, "merged", None, "inlined")
        self._stack.append(_Frame(module, graph, join(frame.path, target), place, values, trusted, node))

    def _adapt(self, module: Any, call: Node, args: Sequence[Value], place: str) -> Any:
        """The module that a node calls, or a body in the place of another compiler's."""
        if isinstance(module, GraphModule):
            return module
        inputs = [value.meta.get("val") if isinstance(value, Node) else value for value in args]
        adapted = self._shared.adapt(module, call, inputs)
        if adapted is None:
            return module
        self._shared.foreign[adapted.call] = adapted.into
        self._shared.traced.graphs[place] = adapted.module, adapted.module.graph
        return adapted.module

    def graph_of(self, module: Any, place: str) -> Graph:
        """The graph of a module that a node calls, or names as a body; an ordinary module is traced.

        Raises:
            HybridError: It has none, and cannot be traced.
        """
        if isinstance(module, GraphModule):
            return module.graph
        if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
            raise HybridError(
                f"partition '{place}'",
                found=f"a {type(module).__qualname__}, which has no graph",
                expected="a GraphModule, or an nn.Module that torch.fx can trace",
                fix="Give the engine a graph body, or make the partition a GraphModule.",
                node=place,
            )
        graphs = self._shared.modules
        if id(module) not in graphs:
            graphs[id(module)] = trace_module(module, place)
        self._shared.traced.graphs[place] = module, graphs[id(module)]
        return graphs[id(module)]

    def _leave(self, frame: _Frame, caller: Node, returned: Value) -> None:
        """Hand what a partition returns to its caller, in the partition's own structure."""
        returned = restructure(frame.graph, returned)
        self._stack[-1].values[caller] = returned
        if caller.op == "call_module":
            self._note_outputs(frame.place, returned)

    def _note_outputs(self, place: str, returned: Value) -> None:
        leaves = [returned] if isinstance(returned, Node) else pytree.tree_leaves(returned)
        for index, leaf in enumerate(leaves):
            image = leaf if isinstance(leaf, Node) else None
            reason = "" if image is not None else "a constant"
            self._account.note("output", f"{place}[{index}]", "merged", image, reason)

    def _call(self, frame: _Frame, node: Node) -> None:
        values = frame.values
        if node.target is operator.getitem:
            args, kwargs = frame.arguments(node)
            if is_container(args[0]):
                values[node] = self._take(frame, node, args[0], args[1])
                return
        else:
            args, kwargs = map_arg((node.args, node.kwargs), lambda source: self._expand(values[source]))
        if node.op == "call_function" and is_exportable(node.target, args, kwargs):
            frame.values[node] = self._emit(frame, node, args, kwargs)
        else:
            self._lower(frame, node, args, kwargs)

    def _take(self, frame: _Frame, node: Node, container: Any, key: Any) -> Value:
        try:
            taken = container[key]
        except (IndexError, KeyError, TypeError) as error:
            raise HybridError(
                f"node '{frame.subject(node)}'",
                found=f"element {key!r}",
                expected=f"one of the {len(container)} that its partition returns",
                fix="Take an element that the partition's output node lists.",
                node=node.name,
            ) from error
        image = taken if isinstance(taken, Node) else None
        self._account.note("node", frame.subject(node), "merged", image, "element of a partition's result")
        return taken

    def _emit(self, frame: _Frame, node: Node, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(node.target, HigherOrderOperator):
            args, kwargs = self._table.give(node, frame.subject(node), (tuple(args), kwargs), trusted=frame.trusted)
        if node.target is not operator.getitem or not isinstance(args[0].meta["val"], (tuple, list)):
            return self._copy(frame, node, args, kwargs)
        positions = range(len(args[0].meta["val"]))
        key = args[1]
        if isinstance(key, slice):
            return [self._element(frame.subject(node), args[0], position, node.meta) for position in positions[key]]
        return self._element(frame.subject(node), args[0], positions[key], node.meta)

    def _element(self, subject: str, source: Node, position: int, meta: Mapping[str, Any]) -> Node:
        """One element of an operator's result, taken once however often the hybrid takes it."""
        known = self._elements.get((source, position))
        if known is not None:
            self._account.note("node", subject, "merged", known, "the same element, taken before")
            return known
        taken = self._graph.call_function(operator.getitem, (source, position))
        taken.meta = {**meta, "val": source.meta["val"][position]}
        self._elements[source, position] = taken
        self._account.note("node", subject, "kept", taken)
        return taken

    def _expand(self, returned: Value) -> Value:
        """What an operator of several results returns, as a container of its elements, if it is that."""
        described = returned.meta.get("val") if isinstance(returned, Node) else None
        if not isinstance(described, (tuple, list)):
            return returned
        elements = [self._element(returned.name, returned, position, {}) for position in range(len(described))]
        return schema_of(returned.target).results(elements)

    def _copy(self, frame: _Frame, node: Node, args: Sequence[Value], kwargs: dict[str, Value]) -> Node:
        subject = frame.subject(node)
        self._count += 1
        check_limit("node", subject, self._count, limits.MAX_NODES, "calls so far")
        image = self._graph.create_node("call_function", node.target, name=node.name)
        image.args = tuple(args)  # set afterwards: `create_node` walks through all arguments that it is given
        if kwargs:
            image.kwargs = kwargs
        meta = image.meta
        meta.update(node.meta)
        if not (frame.trusted and "val" in meta and self._metadata.owns(meta["val"])):
            switch = is_mode_switch(node.target)
            meta["val"] = None if switch else self._metadata.of_call(image, subject, self._held)
        written = self._shared.writes.of(image, self.bodies)
        if written:
            refuse_lost_writes(image, written, subject)
            self.writers[image] = written
        self._account.note("node", subject, "kept", image)
        into = self._shared.foreign.get(node)
        if into is not None:
            self._shared.writing[image] = into
        if into is not None or node.target is RUN_ENGINE:
            self._account.note("engine", frame.place or node.name, "kept", image)
        return image

    def _lower(self, frame: _Frame, node: Node, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
        place = frame.subject(node)
        traced = trace_call(node, (tuple(args), kwargs), self._metadata, self._held, place)
        given = [leaf for leaf in pytree.tree_leaves((tuple(args), kwargs)) if isinstance(leaf, Node)]
        values = dict(zip(traced.graph.find_nodes(op="placeholder", sort=True), given, strict=True))
        self._account.note("node", place, "merged", None, "traced to ATen operators")
        self._shared.traced.graphs[place] = traced, traced.graph
        self._stack.append(_Frame(traced, traced.graph, frame.path, place, values, trusted=True, caller=node))
