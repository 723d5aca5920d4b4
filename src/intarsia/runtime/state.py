"""The state of a program: shared with the exported program, except for what the program or its user writes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind

from intarsia.core.memory import memory_of
from intarsia.core.signature import SHORT_NAMES
from intarsia.errors import StateError, near_match, with_article

STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


@dataclass(frozen=True)
class Snapshot:
    """What a program's state was at one moment.

    Attributes:
        program: The exported program whose state it is.
        tensors: Copies of the entries that differ, or may differ, from the initial state, by name.

    Example:
        >>> from intarsia.runtime.program import Program
        >>> program = Program(torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),)))
        >>> program.state["bias"] = torch.tensor([5.0])
        >>> snapshot = program.snapshot()
        >>> program.reset()
        >>> program.restore(snapshot)
        >>> program.state["bias"]
        tensor([5.])
    """

    program: torch.export.ExportedProgram
    tensors: Mapping[str, torch.Tensor]


class SharedState(NamedTuple):
    """The state of several programs as one.

    Attributes:
        entries: Every entry, by a name of its own.
        names: For each program, the names of those of its entries that the program calls otherwise.
    """

    entries: Mapping[str, Any]
    names: Mapping[torch.export.ExportedProgram, Mapping[str, str]]


class State(MutableMapping[str, Any]):
    """State entries by name: parameters, buffers (those that are not persistent too), constants, script objects.

    Reading an entry gives the live tensor. Setting one copies the new value into it: the state then has memory of its
    own for the entry, and neither the exported program nor another session sees the change. An entry that was never
    set and that the program does not write is the exported program's own tensor, which all sessions share: writing into
    it in place changes it for all of them, and `reset` does not bring it back.

    Args:
        program: Where the entries come from. Not modified.
        written: Names of the entries that the program writes.
        hidden: Names of entries that the graph takes and the user does not know: engines.
        shared: The entries and their names, where the program is one of several that share state.

    Attributes:
        hidden: As above.
        written: As above.
        leading: What the graph takes besides the user's inputs, in graph order.

    Raises:
        StateError: The program has no value for an entry.

    Example:
        >>> linear = torch.nn.Linear(2, 1)
        >>> state = State(torch.export.export(linear, (torch.ones(1, 2),)), written=[])
        >>> state
        State('weight', 'bias')
        >>> state["bias"] = torch.tensor([5.0])
        >>> state["bias"], bool(linear.bias == 5)
        (tensor([5.]), False)
    """

    leading: tuple[Any, ...]

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        written: Collection[str],
        hidden: Collection[str] = (),
        shared: SharedState | None = None,
    ) -> None:
        self.hidden = frozenset(hidden)
        self._origin = self._program = program
        self._shared = shared or SharedState(read_state(program), {})
        self.written = tuple(written)
        self._entries = own_written(self._shared.entries, self.written)
        self._owned = set(self.written)
        self._faces = [self]
        self._bind()

    def face(self, program: torch.export.ExportedProgram) -> State:
        """This very state for another of the programs that share it: `leading` is that program's."""
        face = copy.copy(self)
        face._program = program  # noqa: SLF001 - of its own class
        face._bind()  # noqa: SLF001
        self._faces.append(face)
        return face

    def __getitem__(self, name: str) -> Any:
        """The live tensor of an entry. To change an entry, set it: what is written into the tensor itself stays there.

        Raises:
            KeyError: There is no such entry.
        """
        if name in self.hidden or name not in self._entries:
            hint = near_match(name, self) or "What stands inside of an engine is no state of the program."
            raise KeyError(
                f"state {name!r}: found no such entry, expected one of the {len(self)} that list(program.state) gives. "
                f"{hint}"
            )
        return self._entries[name]

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        """Copy a value into an entry.

        Args:
            name: Name of the entry.
            value: Tensor of the entry's shape, dtype and device.

        Raises:
            StateError: The entry is unknown, or the value does not fit it. The state is as it was.
        """
        self._check(name, value)
        self._own(name)
        with torch.no_grad():
            self._entries[name].copy_(value)

    def __delitem__(self, name: str) -> None:
        """Refused: a program needs all of its state.

        Raises:
            StateError: Always.
        """
        raise StateError(
            f"state {name!r}", found="a deletion", expected="a new value", fix="Set the entry, or call reset()."
        )

    def __iter__(self) -> Iterator[str]:
        """Names, in graph order."""
        return (name for name in self._entries if name not in self.hidden)

    def __len__(self) -> int:
        return len(self._entries) - len(self.hidden)

    def __repr__(self) -> str:
        return f"State({', '.join(map(repr, self))})"

    @property
    def entries(self) -> Mapping[str, Any]:
        """All that the graph takes besides the user's inputs, by name."""
        return self._entries

    def names(self, program: torch.export.ExportedProgram) -> Mapping[str, str]:
        """Names of those entries of one of the programs that share this state which the program calls otherwise."""
        return self._shared.names.get(program, {})

    def fresh(self) -> State:
        """A state of its own, with the initial values, that shares what nobody writes."""
        state = State(self._origin, self.written, self.hidden, self._shared)
        return state if self._program is self._origin else state.face(self._program)

    def reset(self) -> None:
        """Give every entry its initial value again."""
        self._fill({})

    def snapshot(self) -> Snapshot:
        """A copy of what was written."""
        with torch.no_grad():
            return Snapshot(self._origin, {name: self._entries[name].clone() for name in sorted(self._owned)})

    def restore(self, snapshot: Any) -> None:
        """Give every entry the value that it had when the snapshot was taken, of this state or of another session.

        Raises:
            StateError: The snapshot is of another program. The state is as it was.
        """
        if not isinstance(snapshot, Snapshot) or snapshot.program is not self._origin:
            raise StateError(
                "snapshot",
                found="one of another program"
                if isinstance(snapshot, Snapshot)
                else with_article(type(snapshot).__name__),
                expected="one that this program, or a session of it, has taken",
                fix="Set entries by name (program.state[name] = tensor) to carry state between programs.",
            )
        for name in snapshot.tensors:
            self._own(name)
        self._fill(snapshot.tensors)

    def _fill(self, values: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name in self._owned:
                self._entries[name].copy_(values.get(name, self._shared.entries[name]))

    def _own(self, name: str) -> None:
        """Give an entry, and all that share its memory, memory of their own."""
        memory = {memory_of(self._entries[owned]) for owned in self._owned}
        if memory_of(self._entries[name]) not in memory:
            self._entries.update(own_written(self._entries, [name]))
            for face in self._faces:
                face._bind()  # noqa: SLF001 - of its own class
        self._owned.add(name)

    def _bind(self) -> None:
        names = self.names(self._program)
        self.leading = tuple(
            torch.empty(0)
            if spec.kind is InputKind.TOKEN
            else self._entries[names.get(str(spec.target), str(spec.target))]
            for spec in self._program.graph_signature.input_specs
            if spec.kind is not InputKind.USER_INPUT
        )

    def _check(self, name: str, value: Any) -> None:
        if name not in self:
            raise StateError(
                f"state {name!r}",
                found="no such entry",
                expected=f"one of {len(self)} names, which list(program.state) gives",
                fix=near_match(name, self) or "Use one of these names.",
            )
        entry = self._entries[name]
        if not isinstance(entry, torch.Tensor):
            found, expected = "a new value", f"none, for the entry is a {type(entry).__name__}"
        elif not isinstance(value, torch.Tensor):
            found, expected = with_article(type(value).__name__), _describe(entry)
        elif (value.dtype, value.shape, value.device) != (entry.dtype, entry.shape, entry.device):
            found, expected = _describe(value), _describe(entry)
        elif _is_expanded(entry):
            found, expected = "a new value", "none, for the entry shows an element of another one several times"
        else:
            return
        raise StateError(f"state {name!r}", found=found, expected=expected, fix="Nothing was set: pass what fits.")


def _is_expanded(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _describe(tensor: torch.Tensor) -> str:
    return f"{SHORT_NAMES.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)} on {tensor.device}"


def read_state(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """State entries of an exported program by name, in graph order; the tensors are the program's own.

    Raises:
        StateError: The program has no value for an entry.
    """
    state = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind not in STATE_KINDS:
            continue
        name = str(spec.target)
        persistent = spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
        values = program.state_dict if persistent else program.constants
        if name not in values:
            raise StateError(
                f"state {name!r}",
                found="no value",
                expected="a tensor in the exported program",
                fix="Export the model again.",
            )
        state[name] = values[name]
    return state


def own_written(state: Mapping[str, Any], written: Collection[str]) -> dict[str, Any]:
    """`state` with a copy of what is written. Entries that share memory before share it afterwards."""
    storages = _Storages(state[name] for name in written)
    with torch.no_grad(), torch.inference_mode(mode=False):
        return {name: storages.move(value) for name, value in state.items()}


class _Storages:
    """Copies of the storages under some tensors, each made once."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._copies: dict[int, torch.UntypedStorage | None] = {memory_of(tensor): None for tensor in tensors}
        self._moved: dict[int, torch.Tensor] = {}

    def move(self, value: Any) -> Any:
        """The same tensor on the copied storage, or `value` itself when its storage is not copied."""
        if not isinstance(value, torch.Tensor) or memory_of(value) not in self._copies:
            return value
        if id(value) not in self._moved:
            self._moved[id(value)] = self._copy(value)
        return self._moved[id(value)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.detach().clone()
        key = memory_of(tensor)
        storage = self._copies[key]
        if storage is None:
            storage = self._copies[key] = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
