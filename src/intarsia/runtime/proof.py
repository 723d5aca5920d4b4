"""The walk along a graph that proves which writes of state may be done in place; `in_place` states what is proved."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from intarsia._torch import schema_of
from intarsia.core.memory import memory_of
from intarsia.core.op import RUN_ENGINE
from intarsia.core.writes import Writes, aliased_arguments, arguments_at
from intarsia.runtime.forms import PartialWrite, is_part, part_shown, read_write, reads_nothing

_COPY = torch.ops.aten.copy_.default
Place = tuple[Any, ...]
"""A state placeholder, and the views that lead from it to a part."""


class Plan(Protocol):
    """Where the result of the proof is entered; see `in_place.InPlacePlan`."""

    writes: dict[Node, PartialWrite]
    absorbed: dict[Node, Node]
    copied: list[int]
    inner: list[Node]


class _Alias(NamedTuple):
    """What a node shows of the memory of a state entry.

    Attributes:
        memory: Which memory.
        place: Which part of it.
        version: For a value that the functional form has in memory of its own: how many writes it has seen. None for
            the entry itself and views of it, which show what was copied into it last.
    """

    memory: int
    place: Place
    version: int | None


class _Memory:
    """The memory of a state entry while the graph is walked.

    Attributes:
        written: Parts that were written, in order.
        settled: How many of these writes the entry has seen in the functional form too.
        refused: Why nothing is done in place here; empty as long as nothing speaks against it.
    """

    def __init__(self) -> None:
        self.written: list[Place] = []
        self.settled = 0
        self.refused = ""

    def refuse(self, reason: str) -> None:
        """Note what speaks against it; the first reason stays."""
        self.refused = self.refused or reason

    def version(self, alias: _Alias) -> int:
        """How many writes the value of an alias has seen."""
        return self.settled if alias.version is None else alias.version


class Proof:
    """One walk that looks for a reason against each entry.

    Args:
        program: Not modified.
        tensors: The tensor of each state placeholder.
        declared: Placeholders of declared writes, with the values that they shall hold.
        writers: Placeholders that the graph itself writes, with the nodes that do.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        tensors: Mapping[Node, torch.Tensor],
        declared: Mapping[Node, Node],
        writers: Mapping[Node, Sequence[Node]],
    ) -> None:
        self._program = program
        self._tensors = tensors
        self._declared = declared
        self._writers = writers
        self._written_arguments = Writes().calls(program.graph_module)
        self._memory_of = {node: memory_of(tensor) for node, tensor in tensors.items()}
        self._memories = {key: _Memory() for key in self._memory_of.values()}
        self._written_by: dict[Node, set[int]] = {}
        for placeholder, nodes in writers.items():
            for node in nodes:
                self._written_by.setdefault(node, set()).add(self._memory_of[placeholder])
        self._roots: dict[Node, Node] = {}
        self._chain: dict[Node, PartialWrite] = {}
        self._inner: set[Node] = set()
        self._aliases: dict[Node, Sequence[_Alias]] = {}
        self._absorbed: dict[Node, Node] = {}
        self._copied: dict[int, set[int]] = {}
        self._find_chains()
        self._walk()

    def reason(self, placeholder: Node) -> str:
        """Why an entry is copied as a whole, or nothing when it is not."""
        return self._memories[self._memory_of[placeholder]].refused

    def operators(self, placeholder: Node) -> tuple[str, ...]:
        """What writes an entry, in graph order, by the names that torch has for the operators."""
        nodes = {node: None for node in self._chain if self._roots[node] is placeholder}
        nodes |= dict.fromkeys(node for node in self._writers.get(placeholder, ()) if node not in self._absorbed)
        if not nodes and placeholder in self._declared:
            nodes[_maker(self._declared[placeholder])] = None
        calls = {(node in self._chain and self._chain[node].engine) or node for node in nodes}
        ordered = (node for node in self._program.graph.nodes if node in calls)
        names = (_written_by(node) for node in ordered)
        return tuple(dict.fromkeys(names))

    def enter(self, plan: Plan) -> None:
        """Enter what may be done in place."""
        kept = [node for node in (*self._chain, *self._absorbed) if not self._memory_at(node).refused]
        plan.absorbed = {node: self._absorbed[node] for node in kept if node in self._absorbed}
        plan.writes = {node: self._chain[node] for node in kept if node not in self._absorbed}
        plan.inner = [inner for node in kept if node in self._chain for inner in self._chain[node].inner]
        plan.copied = [
            position for position, keys in self._copied.items() if any(not self._memories[key].refused for key in keys)
        ]

    def _memory_at(self, node: Node) -> _Memory:
        return self._memories[self._memory_of[self._roots[node]]]

    def _find_chains(self) -> None:
        writes = {node: write for node in self._program.graph.nodes if (write := read_write(node))}
        for node in self._program.graph.nodes:
            base = (
                writes[node].destination
                if node in writes
                else node.args[0]
                if is_part(node) or _writes_first(node)
                else None
            )
            self._roots[node] = self._roots[base] if isinstance(base, Node) else node
        for placeholder, value in self._declared.items():
            memory = self._memory_at(placeholder)
            if not self._follow(placeholder, value, writes):
                memory.refuse(f"%{value.name} makes the whole value")
            sharing = [node for node in self._declared if self._memory_of[node] == self._memory_of[placeholder]]
            if len(sharing) > 1:
                memory.refuse(f"it shares memory with {sharing[sharing[0] is placeholder]}, which is written too")
        for node in self._written_by:
            if (copied := self._copied_whole(node)) is not None:
                self._follow(*copied, writes)

    def _copied_whole(self, node: Node) -> tuple[Node, Node] | None:
        """The entry and the value of a `copy_` of a whole entry."""
        if node.target is not _COPY:
            return None
        destination, value = arguments_at(node, (0, 1))
        if not isinstance(value, Node):
            return None
        while _writes_first(destination):
            destination = destination.args[0]
        return (destination, value) if destination in self._tensors else None

    def _follow(self, placeholder: Node, value: Node, writes: Mapping[Node, PartialWrite]) -> bool:
        """Take into the chain what leads from a placeholder to its value by partial writes; False if nothing does."""
        if value not in writes or self._roots[value] is not placeholder:
            return False
        waiting = [value]
        while waiting:
            node = waiting.pop()
            if node in writes and node not in self._chain:
                write = self._chain[node] = writes[node]
                self._inner.update(write.inner)
                waiting.append(write.destination)
                if write.source is not None and self._roots[write.source] is placeholder:
                    waiting.append(write.source)
            elif is_part(node) or _writes_first(node):
                waiting.append(node.args[0])  # type: ignore[arg-type]
        tensor, memory = self._tensors[placeholder], self._memory_at(placeholder)
        if _overlaps(tensor):
            memory.refuse("it shows elements more than once")
        elif tensor.stride() != value.meta["val"].stride():
            memory.refuse(f"%{value.name} has other strides")
        return True

    def _walk(self) -> None:
        for node in self._program.graph.nodes:
            if node in self._tensors:
                self._aliases[node] = [_Alias(self._memory_of[node], (node,), None)]
            elif node in self._chain:
                if self._chain[node].engine is None:
                    self._write(node, self._chain[node])
            elif node.op == "call_function":
                self._call(node)
        self._check_outputs()

    def _call(self, node: Node) -> None:
        if self._settles(node):
            return
        if not reads_nothing(node):
            self._read(node, self._shown(node.all_input_nodes))
        for output in node.users:
            if output in self._chain and self._chain[output].engine is node:
                self._write(output, self._chain[output])
        step = part_shown(node) if is_part(node) else () if _writes_first(node) else (node,)
        shared = [alias._replace(place=(*alias.place, *step)) for alias in self._shown(aliased_arguments(node))]
        if shared:
            self._aliases[node] = shared
        for alias in self._shown(self._written_arguments.get(node, ())):
            if alias.version is not None:
                self._memories[alias.memory].refuse(f"%{node.name} writes what is only to be copied into it")
        for key in self._written_by.get(node, ()):
            memory = self._memories[key]
            if any(alias.memory == key and alias.version is not None for alias in self._shown(node.all_input_nodes)):
                memory.refuse(f"%{node.name} also reads what it writes")
            memory.written.append(())
            memory.settled = len(memory.written)

    def _settles(self, node: Node) -> bool:
        """Whether a node copies into an entry what has been written into it in place by then."""
        copied = self._copied_whole(node)
        if copied is None or copied[1] not in self._chain or self._roots[copied[1]] is not copied[0]:
            return False
        placeholder, value = copied
        (alias,) = self._aliases[value]
        memory = self._memories[alias.memory]
        if alias.version != len(memory.written):
            memory.refuse(f"%{value.name} is no longer what was written")
        memory.settled = len(memory.written)
        self._absorbed[node] = placeholder
        self._roots[node] = placeholder
        self._aliases[node] = self._aliases[placeholder]
        return True

    def _shown(self, nodes: Iterable[Node]) -> Iterator[_Alias]:
        return (alias for node in nodes for alias in self._aliases.get(node, ()))

    def _read(self, reader: Node, aliases: Iterable[_Alias]) -> None:
        for alias in aliases:
            memory = self._memories[alias.memory]
            if memory.version(alias) < len(memory.written):
                memory.refuse(f"%{reader.name} reads what it held before a write")

    def _write(self, node: Node, write: PartialWrite) -> None:
        (alias,) = self._aliases[write.destination]
        memory = self._memories[alias.memory]
        part = (*alias.place, *write.part)
        if self._is_written_through(write, part, memory.version(alias), memory):
            self._absorbed[node] = write.destination
        else:
            others = list(self._shown(write.others()))
            self._read(node, [alias, *others])
            if any(other.memory == alias.memory for other in others):
                memory.refuse(f"%{node.name} also reads what it writes")
            memory.written.append(part)
        self._aliases[node] = [alias._replace(version=len(memory.written))]
        if len(alias.place) > 1 and not self._is_inner(node):
            memory.refuse(f"%{node.name}, a part of it, is read by itself")

    def _is_inner(self, node: Node) -> bool:
        """Whether only writes use a node, directly or by what they need in their functional form."""
        return all(user in self._chain or (user in self._inner and self._is_inner(user)) for user in node.users)

    def _is_written_through(self, write: PartialWrite, part: Place, version: int, memory: _Memory) -> bool:
        """Whether the source of a write has been written into the part already, and all else is as it was."""
        if write.source not in self._chain or not write.part:
            return False
        (shown,) = self._aliases[write.source]
        newest = shown.version == len(memory.written)
        return newest and shown.place == part and all(place[: len(part)] == part for place in memory.written[version:])

    def _check_outputs(self) -> None:
        output = self._program.graph.output_node()
        values: Any = output.args[0]
        live = set(self._declared.values())
        for position, (value, spec) in enumerate(zip(values, self._program.graph_signature.output_specs, strict=True)):
            aliases = list(self._shown([value])) if isinstance(value, Node) else []
            self._read(output, aliases)
            if spec.kind is OutputKind.USER_OUTPUT and value not in live:
                self._copied[position] = {alias.memory for alias in aliases if alias.version is not None}


def _written_by(node: Node) -> str:
    """The name that torch has for a call's operator; "engine" for an engine."""
    name = str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten.")
    return "engine" if node.target is RUN_ENGINE else name


def _maker(value: Node) -> Node:
    """The call that makes a value, which may be one of several that it makes."""
    while value.target is operator.getitem:
        value = value.all_input_nodes[0]
    return value


def _writes_first(node: Any) -> bool:
    """Whether a node is a call that writes its first argument, and nothing else, in place, and returns it."""
    return (
        node.op == "call_function"
        and schema_of(node.target).written == (0,)
        and bool(node.args)
        and aliased_arguments(node) == [node.args[0]]
    )


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor may show an element of its memory more than once."""
    if tensor.layout is not torch.strided:
        return True
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False
