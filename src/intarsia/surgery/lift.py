"""State reads to graph inputs: one placeholder for each state entry, however often it is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.export.graph_signature import CustomObjArgument, InputKind
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import TreeSpec, script_class
from intarsia.surgery.ledger import Account
from intarsia.surgery.metadata import Metadata
from intarsia.surgery.state import StateEntry, StateTable, join, resolve

_PREFIXES = {
    InputKind.PARAMETER: "p_",
    InputKind.BUFFER: "b_",
    InputKind.CONSTANT_TENSOR: "c_",
    InputKind.CUSTOM_OBJ: "obj_",
}


class Lifter:
    """Makes the placeholders of state in the new graph.

    Args:
        hybrid: The hybrid; the state that it reads at its root has the first choice of names.
        graph: The new graph.
        metadata: Describes the placeholders.

    Attributes:
        state: All state read so far.
    """

    def __init__(self, hybrid: GraphModule, graph: Graph, metadata: Metadata) -> None:
        self.state = StateTable()
        self._hybrid = hybrid
        self._graph = graph
        self._metadata = metadata
        self._placeholders: dict[int, Node] = {}
        for node in hybrid.graph.find_nodes(op="get_attr"):
            found = resolve(hybrid, str(node.target), "")
            if not isinstance(found[2], (torch.nn.Module, TreeSpec)):
                self.state.read(found, str(node.target), "")

    def read(self, found: tuple[torch.nn.Module, str, Any], node: Node, path: str) -> Node:
        """The placeholder for what a `get_attr` node reads.

        Args:
            found: Owner, attribute name and object, as `resolve` tells them.
            node: The `get_attr`.
            path: Dotted path of the module whose graph holds it.

        Raises:
            StateError: The object is of a kind that cannot be exported.
        """
        entry = self.state.read(found, str(node.target), path)
        placeholder = self._placeholders.get(id(entry.value))
        if placeholder is None:
            placeholder = self._placeholders[id(entry.value)] = self._place(entry, node)
        return placeholder

    def lifted(self) -> list[tuple[StateEntry, Node]]:
        """Entries with their placeholders: parameters, buffers, constants, script objects."""
        placed = [(entry, self._placeholders.get(id(entry.value))) for entry in self.state]
        return [(entry, placeholder) for entry, placeholder in placed if placeholder is not None]

    def sharing(self) -> set[Node]:
        """Placeholders of tensors that share memory with another entry, of those that a node reads."""
        by_storage: dict[int, list[Node]] = {}
        for entry, placeholder in self.lifted():
            if placeholder.users and isinstance(entry.value, torch.Tensor) and entry.value.layout is torch.strided:
                by_storage.setdefault(entry.value.untyped_storage().data_ptr(), []).append(placeholder)
        by_storage.pop(0, None)
        return {placeholder for group in by_storage.values() if len(group) > 1 for placeholder in group}

    def finish(self, written: Iterable[Node], account: Account) -> list[tuple[StateEntry, Node]]:
        """Enter every state entry in the account; take out the placeholders that no node reads and nothing writes.

        Torch looks a declared write up among the names of state before those of inputs, so that state may not have
        the name of an input that is written.
        """
        kept_anyway = set(written)
        taken = {node.name for node in kept_anyway - {placeholder for _, placeholder in self.lifted()}}
        kept = []
        for entry, placeholder in self.lifted():
            reason = f"also read as {', '.join(entry.aliases)}" if entry.aliases else ""
            if entry.name in taken:
                reason = f"renamed, for an input '{entry.name}' is written"
                self.state.rename(entry)
            account.note("state", entry.path, "merged" if entry.aliases else "kept", placeholder, reason)
            if placeholder.users or placeholder in kept_anyway:
                kept.append((entry, placeholder))
                continue
            self._graph.erase_node(placeholder)
            account.remove(placeholder)
        for path, value in _registered(self._hybrid):
            if id(value) not in self._placeholders:
                account.note("state", path, "removed", None, "no graph reads it")
        return kept

    def _place(self, entry: StateEntry, node: Node) -> Node:
        safe = "".join(c if c.isalnum() else "_" for c in entry.name)
        placeholder = new_placeholder(self._graph, _PREFIXES[entry.kind] + safe)
        if entry.kind is InputKind.CUSTOM_OBJ:
            described = CustomObjArgument(placeholder.name, script_class(entry.value))
        else:
            described = self._metadata.of_state(node, entry.value)
        placeholder.meta["val"] = described
        return placeholder


def new_placeholder(graph: Graph, name: str) -> Node:
    """A placeholder whose argument name is its node name, which the graph makes unique."""
    placeholder = graph.placeholder(name)
    placeholder.target = placeholder.name
    return placeholder


def order_placeholders(graph: Graph, placeholders: list[Node]) -> None:
    """Move the placeholders to the front of the graph, in the order given."""
    if not placeholders:
        return
    first = next(iter(graph.nodes))
    if first is not placeholders[0]:
        first.prepend(placeholders[0])
    for before, placeholder in itertools.pairwise(placeholders):
        before.append(placeholder)


def _registered(hybrid: GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers of a hybrid and its partitions, each module once; without recursion, for they nest."""
    waiting: list[tuple[str, torch.nn.Module]] = [("", hybrid)]
    seen: set[torch.nn.Module] = {hybrid}
    while waiting:
        path, module = waiting.pop()
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield join(path, name), value
        children = [(join(path, name), child) for name, child in module.named_children() if child not in seen]
        seen.update(child for _, child in children)
        waiting.extend(reversed(children))
