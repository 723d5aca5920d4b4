"""Plan which members hold the tensors of some programs: every byte once, and nothing that no tensor uses."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from intarsia.core.writes import written_state
from intarsia.formats.archive.layout import Kind, tensor_member
from intarsia.formats.archive.payload import Payload, end_bytes

PREFIXES: Mapping[Kind, str] = {"weights": "weight_", "constants": "tensor_"}
_CHUNK_BYTES = 8 << 20
_SAMPLE_BYTES = 64


class StoredTensor(NamedTuple):
    """A tensor of a program.

    Attributes:
        program: Name of the program.
        kind: In which of the program's two mappings it stands.
        name: Its name there.
        tensor: The tensor.
        alone: Whether it may share a member only with tensors that share its memory. torch makes all tensors of a
            member one tensor, which no operator and no training may then write.
    """

    program: str
    kind: Kind
    name: str
    tensor: torch.Tensor
    alone: bool


@dataclass
class PlannedMember:
    """A member to be written.

    Attributes:
        kind: Its folder.
        path: Its name in the folder.
        data: Its bytes, a view of the memory of the tensors.
        programs: Names of the programs that use it, and whether one of them writes it.
    """

    kind: Kind
    path: str
    data: torch.Tensor
    programs: dict[str, bool]
    _digest: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Its name in the archive."""
        return tensor_member(self.kind, self.path)

    @property
    def size_bytes(self) -> int:
        """Number of its bytes."""
        return self.data.numel()

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, piece by piece; only a piece that is on another device is copied."""
        for start in range(0, self.data.numel(), _CHUNK_BYTES):
            yield self.data[start : start + _CHUNK_BYTES].cpu().numpy().data

    def takes(self, programs: Mapping[str, bool]) -> bool:
        """Whether tensors of these programs may use this member though they do not share its memory."""
        return not any(self.programs[name] or programs[name] for name in self.programs.keys() & programs.keys())

    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        if self._digest is None:
            digest = hashlib.sha256()
            for chunk in self.chunks():
                digest.update(chunk)
            self._digest = digest.digest()
        return self._digest


class StoragePlan(NamedTuple):
    """What to write.

    Attributes:
        members: Members, in the order in which they are to be written.
        payloads: What each tensor is in them: by program, folder and name.
        memories: How many memories the tensors have; their numbers are below.
    """

    members: list[PlannedMember]
    payloads: dict[str, dict[Kind, dict[str, Payload]]]
    memories: int


def plan_storages(
    programs: Mapping[str, torch.export.ExportedProgram], apart: Mapping[str, Collection[str]] | None = None
) -> StoragePlan:
    """Plan the members for the tensors of some programs.

    Tensors that share memory share a member, which holds the bytes from the first to the last that they use. Members
    of equal bytes are one, unless torch would then make one tensor of two that a program may change.
    Tensors that share memory across the two folders, or with different dtypes, have a member each: torch can read
    them in no other way.

    Args:
        programs: By name. Not modified; all of their state is plain tensors.
        apart: By program, names of tensors that are planned elsewhere.
    """
    members = _Members()
    placed: dict[tuple[str, Kind, str], Payload] = {}
    apart = apart or {}
    entries = [
        entry
        for name, program in programs.items()
        for entry in _entries(name, program)
        if entry.name not in apart.get(name, ())
    ]
    groups = list(_sharing(entries))
    for memory, group in enumerate(groups):
        itemsize = max(entry.tensor.itemsize for entry in group)
        start = min(_extent(entry.tensor)[0] for entry in group) // itemsize * itemsize
        for part in _parts(group):
            member = members.place(part, start)
            for entry in part:
                placed[entry.program, entry.kind, entry.name] = _payload(entry, member.path, memory, start)
    payloads = {
        name: {
            kind: {key: placed[name, kind, key] for key in tensors if (name, kind, key) in placed}
            for kind, tensors in tensors_of(program)
        }
        for name, program in programs.items()
    }
    return StoragePlan(members.planned, payloads, len(groups))


def tensors_of(program: torch.export.ExportedProgram) -> tuple[tuple[Kind, Mapping[str, torch.Tensor]], ...]:
    """The tensors of a program by name, for each folder."""
    return ("weights", program.state_dict), ("constants", program.constants)


def _entries(name: str, program: torch.export.ExportedProgram) -> Iterator[StoredTensor]:
    written = written_state(program)
    for kind, tensors in tensors_of(program):
        for key, value in tensors.items():
            alone = isinstance(value, torch.nn.Parameter) or value.requires_grad or key in written
            yield StoredTensor(name, kind, key, value, alone)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that a tensor uses, and the byte behind the last."""
    offset = int(tensor.storage_offset())
    end = end_bytes(tuple(tensor.shape), tensor.stride(), offset, tensor.itemsize)
    return (offset * tensor.itemsize if end else 0), end


def _sharing(entries: Sequence[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """Groups of entries that share memory, directly or through others. One without elements shares nothing."""
    storages: defaultdict[tuple[torch.device, int], list[StoredTensor]] = defaultdict(list)
    for entry in entries:
        storages[entry.tensor.device, entry.tensor.untyped_storage().data_ptr()].append(entry)
    for storage in storages.values():
        group: list[StoredTensor] = []
        reached = 0
        for entry in sorted(storage, key=lambda entry: _extent(entry.tensor)):
            start, end = _extent(entry.tensor)
            if group and start >= reached:
                yield group
                group = []
            group.append(entry)
            reached = max(reached, end)
        yield group


def _parts(group: Iterable[StoredTensor]) -> Iterable[list[StoredTensor]]:
    """Entries that one member can hold: of one folder and one dtype."""
    parts: defaultdict[tuple[Kind, torch.dtype], list[StoredTensor]] = defaultdict(list)
    for entry in group:
        parts[entry.kind, entry.tensor.dtype].append(entry)
    return parts.values()


class _Members:
    """Members as they are planned, one for equal bytes where that is right."""

    def __init__(self) -> None:
        self.planned: list[PlannedMember] = []
        self._counts: Counter[Kind] = Counter()
        self._alike: defaultdict[tuple[object, ...], list[PlannedMember]] = defaultdict(list)

    def place(self, part: Sequence[StoredTensor], start: int) -> PlannedMember:
        """The member for entries that share memory, from a byte of their storage on."""
        kind, tensor = part[0].kind, part[0].tensor
        programs: dict[str, bool] = {}
        for entry in part:
            programs[entry.program] = programs.get(entry.program, False) or entry.alone
        data = _bytes_of(tensor, start, max(_extent(entry.tensor)[1] for entry in part))
        alike = self._alike[kind, tensor.dtype, tensor.device, data.numel(), ends_of(data)]
        member = PlannedMember(kind, f"{PREFIXES[kind]}{self._counts[kind]}", data, programs)
        for other in alike:
            if other.takes(programs) and other.digest() == member.digest():
                other.programs.update(
                    {name: other.programs.get(name, False) or alone for name, alone in programs.items()}
                )
                return other
        alike.append(member)
        self.planned.append(member)
        self._counts[kind] += 1
        return member


def ends_of(data: torch.Tensor | memoryview) -> tuple[bytes, bytes]:
    """The first and the last of some bytes: where they differ, nothing has to be hashed."""
    return bytes(data[:_SAMPLE_BYTES].tolist()), bytes(data[-_SAMPLE_BYTES:].tolist())


def _bytes_of(tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Some bytes of the memory under a tensor, not copied."""
    data = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return data.set_(tensor.untyped_storage(), start, (end - start,), (1,)) if end else data


def _payload(entry: StoredTensor, member: str, memory: int, start: int) -> Payload:
    tensor = entry.tensor
    return Payload(
        member=member,
        memory=memory,
        is_parameter=isinstance(tensor, torch.nn.Parameter),
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=tensor.requires_grad,
        sizes=tuple(tensor.shape),
        strides=tensor.stride(),
        offset=int(tensor.storage_offset()) - start // tensor.itemsize if tensor.numel() else 0,
    )
