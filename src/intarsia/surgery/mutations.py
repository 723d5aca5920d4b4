"""Writes to state and inputs: which dialect the program is in, and what it declares.

The rule of dialects. A graph whose only writes are `copy_` of whole values into state or inputs becomes an ATEN
program: each write is declared in the signature (BUFFER_MUTATION, USER_INPUT_MUTATION), later reads take the value that
was written, and the `copy_` goes. Any other write in place makes it a TRAINING program: the graph keeps all its writes,
in their order, and `run_decompositions` declares them.

A `copy_` into a tensor that something else aliases is of the second kind when the alias is read after the write: its
reader must see what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from intarsia.core.writes import Aliases, arguments_at
from intarsia.surgery.ledger import Account
from intarsia.surgery.metadata import Metadata, same_shape

_COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Mutations:
    """Writes of a program.

    Attributes:
        in_place: Whether the graph itself writes (TRAINING), or the signature says what the caller writes (ATEN).
        written: Placeholders that are written, in the order of their last write.
        values: For each of them the node that holds what is written; empty when `in_place`.
        copies: Nodes that were added to the graph: each makes of a value a tensor like the one that is written.
    """

    in_place: bool = False
    written: tuple[Node, ...] = ()
    values: Mapping[Node, Node] = field(default_factory=dict)
    copies: tuple[Node, ...] = ()


class MutationFinder:
    """Finds every write to state or inputs, and takes those that can be declared out of the graph.

    Args:
        graph: The new graph, with its output node.
        targets: Placeholders of state and inputs, with the names that the user knows.
        metadata: Describes what is added.
        account: Takes an entry for every write.
    """

    def __init__(self, graph: Graph, targets: Mapping[Node, str], metadata: Metadata, account: Account) -> None:
        self._graph = graph
        self._targets = targets
        self._metadata = metadata
        self._account = account

    def declare(self, writers: Mapping[Node, list[Node]], sharing: set[Node]) -> Mutations:
        """Declare the writes.

        Args:
            writers: Nodes of the graph that write, with the arguments that each writes; `copy_` nodes go when the
                program becomes ATEN.
            sharing: Placeholders that share memory with another one.
        """
        if not writers:
            return Mutations()
        aliases = Aliases(self._graph)
        written: dict[Node, Node] = {}
        for writer, arguments in writers.items():
            for base in aliases.of(arguments):
                written.pop(base, None)
                written[base] = writer
        destinations = {writer: _destination(writer) for writer in writers if writer.target is _COPY}
        whole = all(destinations.get(writer) in self._targets for writer in writers)
        if whole and sharing.isdisjoint(written) and not _has_stale_read(self._graph, aliases, destinations):
            return self._take_out(destinations, aliases)
        for base, writer in written.items():
            self._account.note("mutation", self._targets[base], "kept", writer, "written in place by the graph")
        return Mutations(in_place=True, written=tuple(written))

    def _take_out(self, destinations: Mapping[Node, Node], aliases: Aliases) -> Mutations:
        """Take every `copy_` out: whoever reads its destination afterwards reads the value instead."""
        current: dict[Node, Node] = {}
        copies: list[Node] = []
        names: dict[Node, list[Node]] = {}  # a destination, and what each `copy_` into it returned
        for node in list(self._graph.nodes):
            if not current.keys().isdisjoint(node.all_input_nodes):
                node.args, node.kwargs = map_arg((node.args, node.kwargs), _replacing(current))
            destination = destinations.get(node)
            if destination is None:
                continue
            (value,) = arguments_at(node, (1,))
            owned = value not in copies and aliases.of(value)
            if owned or not same_shape(value.meta["val"], destination.meta["val"]):
                value = self._insert_copy(node, destination, value)
                copies.append(value)
            names[destination] = [*names.get(destination, [destination]), node]
            current.pop(destination, None)
            current |= dict.fromkeys(names[destination], value)
            self._account.replace(node, value, f"declared as a write of '{self._targets[destination]}'")
        values = {node: value for node, value in current.items() if node in self._targets}
        copies += self._separate(values, {node: written[-1] for node, written in names.items()})
        for node in reversed(list(destinations)):
            self._graph.erase_node(node)
        for node, value in values.items():
            self._account.note("mutation", self._targets[node], "kept", value, "declared in the signature")
        return Mutations(written=tuple(values), values=values, copies=tuple(copies))

    def _separate(self, values: dict[Node, Node], writes: Mapping[Node, Node]) -> list[Node]:
        """Give each written tensor a value of its own: torch's signature knows a write by the name of its value."""
        seen: set[Node] = set()
        copies = []
        for node, value in values.items():
            if value in seen:
                values[node] = self._insert_copy(writes[node], node, value)
                copies.append(values[node])
            seen.add(value)
        return copies

    def _insert_copy(self, write: Node, destination: Node, value: Node) -> Node:
        with self._graph.inserting_before(write):
            made = self._graph.call_function(torch.ops.aten.copy.default, (destination, value))
        made.meta = dict(write.meta)
        made.meta["val"] = self._metadata.of_call(made, write.name, {})
        target = self._targets[destination]
        self._account.note(
            "node", f"copy for '{target}'", "kept", made, "what is written is another tensor's, or unlike the written"
        )
        return made


def _replacing(values: Mapping[Node, Node]) -> Callable[[Node], Node]:
    return lambda node: values.get(node, node)


def _destination(write: Node) -> Node:
    """What a `copy_` writes: its first argument, or what the `copy_` wrote whose result that is."""
    while write.target is _COPY:
        (write,) = arguments_at(write, (0,))
    return write


def _has_stale_read(graph: Graph, aliases: Aliases, destinations: Mapping[Node, Node]) -> bool:
    """Whether somebody reads an alias of a written tensor after a write that came after the alias was made."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    writes: dict[Node, list[int]] = {}
    for write, destination in destinations.items():
        writes.setdefault(destination, []).append(position[write])
    for alias in graph.nodes:
        if alias.op != "call_function" or alias in destinations:
            continue
        owners = aliases.of(alias)
        if owners.isdisjoint(writes):
            continue
        last_read = max((position[user] for user in alias.users), default=0)
        if any(position[alias] < write < last_read for owner in owners for write in writes.get(owner, ())):
            return True
    return False
