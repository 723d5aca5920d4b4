"""Plan which members hold the engines of some programs: equal engines once, and what their sources share once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from intarsia.core.container import EngineContainer
from intarsia.core.sections import PackedEngine
from intarsia.errors import EngineError
from intarsia.formats.archive.layout import Kind, constant_member, tensor_member
from intarsia.formats.archive.payload import Payload
from intarsia.formats.manifest import EngineEntry
from intarsia.formats.tensors.storages import PREFIXES, PlannedMember, ends_of

Engines = Mapping[str, Mapping[str, EngineContainer]]
"""By program, engines by the constants that hold them."""


class EngineMember(NamedTuple):
    """A member that holds an engine's container.

    Attributes:
        kind: Its folder.
        number: Its number among the engines.
        container: The container that it is made of.
        packed: The container that it holds.
    """

    kind: Kind
    number: int
    container: EngineContainer
    packed: PackedEngine

    @property
    def path(self) -> str:
        """Its name in the folder."""
        return f"{PREFIXES[self.kind]}engine_{self.number}"

    @property
    def name(self) -> str:
        """Its name in the archive."""
        return tensor_member(self.kind, self.path)

    @property
    def size_bytes(self) -> int:
        """Number of its bytes."""
        return self.packed.size_bytes

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, piece by piece; nothing is copied."""
        yield from self.packed.chunks

    def payload(self, tensor: torch.Tensor, first_memory: int) -> Payload:
        """What the tensor of an engine is in the file.

        Args:
            tensor: The tensor in memory.
            first_memory: Number of the first engine's memory.
        """
        return Payload(
            member=self.path,
            memory=first_memory + self.number,
            is_parameter=isinstance(tensor, torch.nn.Parameter),
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=False,
            sizes=(self.size_bytes,),
            strides=(1,),
            offset=0,
        )


class ConstantMember(NamedTuple):
    """A member that holds a constant of several engines.

    Attributes:
        name: Its name in the archive.
        engine: How messages name an engine that has it.
        sha256: SHA-256 of its bytes, in hexadecimal, as the engines say.
        data: Its bytes.
    """

    name: str
    engine: str
    sha256: str
    data: memoryview

    @property
    def size_bytes(self) -> int:
        """Number of its bytes."""
        return len(self.data)

    def chunks(self) -> Iterator[memoryview]:
        """The bytes."""
        yield self.data


class EnginePlan(NamedTuple):
    """What to write of engines.

    Attributes:
        engines: Members with containers, in the order in which they are to be written.
        constants: Members with constants, likewise.
        placed: The member of each engine: by program and constant.
    """

    engines: list[EngineMember]
    constants: list[ConstantMember]
    placed: dict[str, dict[str, EngineMember]]

    def entries(self, program: str) -> tuple[EngineEntry, ...]:
        """What the manifest tells of a program's engines."""
        members = self.placed[program].items()
        return tuple(EngineEntry.of(constant, member.container, member.packed) for constant, member in members)


def plan_engines(
    programs: Mapping[str, torch.export.ExportedProgram],
    engines: Engines,
    stored: Sequence[PlannedMember],
    *,
    payloads: bool,
) -> EnginePlan:
    """Plan the members for the engines of some programs.

    Equal engines have one member. A constant that several containers hold, or a member of torch's tensors too, is left
    out of them all: it is a member of its own, or that of the tensors. But a container that is built from its source
    in a file of one program has all of it, for torch reads such a file, and looks for nothing beside the container.

    Args:
        programs: By name. Not modified.
        engines: Their engines.
        stored: Members of all other tensors.
        payloads: Whether containers keep their payloads.

    Raises:
        EngineError: An engine would have neither payload nor source, or a constant of it is not there.
    """
    kinds = {name: _kinds(programs[name], constants) for name, constants in engines.items()}
    chosen: dict[tuple[Kind, bytes], EngineContainer] = {}
    for name, containers in engines.items():
        for constant, container in containers.items():
            key = kinds[name][constant], container.identity
            if key not in chosen or (container.payload_bytes and not chosen[key].payload_bytes):
                chosen[key] = container
    _check_sources(chosen.values(), payloads=payloads)
    whole = [len(programs) == 1 and not (payloads and container.payload_bytes) for container in chosen.values()]
    referring = [container for container, is_whole in zip(chosen.values(), whole, strict=True) if not is_whole]
    apart, outside = _find_shared(referring, stored)
    members = {
        key: EngineMember(
            key[0], number, container, container.repack(payload=payloads, outside=() if whole[number] else outside)
        )
        for number, (key, container) in enumerate(chosen.items())
    }
    placed = {
        name: {constant: members[kinds[name][constant], one.identity] for constant, one in containers.items()}
        for name, containers in engines.items()
    }
    constants = [
        ConstantMember(constant_member(i), container.subject, sha256, container.constant(sha256))
        for i, (sha256, container) in enumerate(apart.items())
    ]
    return EnginePlan([*members.values()], constants, placed)


def _kinds(program: torch.export.ExportedProgram, constants: Iterable[str]) -> dict[str, Kind]:
    return {constant: "constants" if constant in program.constants else "weights" for constant in constants}


def _check_sources(containers: Iterable[EngineContainer], *, payloads: bool) -> None:
    for container in containers:
        if not container.has_source and not (payloads and container.payload_bytes):
            raise EngineError(
                container.subject,
                found=f"no portable form of it, for {container.backend} gives none",
                expected="one, to build the engine from when it is loaded",
                consequence="Without its payload nothing would be left of it.",
                fix="Save the program with payloads=True.",
            )


def _find_shared(
    containers: Sequence[EngineContainer], stored: Iterable[PlannedMember]
) -> tuple[dict[str, EngineContainer], set[str]]:
    """Constants that need a member of their own, each with a container that has it; and all that are left out."""
    owners: dict[str, EngineContainer] = {}
    counts: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for container in containers:
        found = {constant.sha256: constant.size for constant in container.constants}
        sizes |= found
        counts.update(found.keys())
        owners |= {sha256: container for sha256 in found if sha256 not in owners}
    tensors = _find_tensors(owners, sizes, stored)
    apart = {sha256: owner for sha256, owner in owners.items() if counts[sha256] > 1 and sha256 not in tensors}
    return apart, apart.keys() | tensors


def _find_tensors(
    owners: Mapping[str, EngineContainer], sizes: Mapping[str, int], stored: Iterable[PlannedMember]
) -> set[str]:
    """The constants that are whole members of torch's tensors."""
    members: defaultdict[tuple[int, tuple[bytes, bytes]], list[PlannedMember]] = defaultdict(list)
    wanted = set(sizes.values())
    for member in stored:
        if member.size_bytes in wanted:
            members[member.size_bytes, ends_of(member.data)].append(member)
    if not members:
        return set()
    ends = {sha256: ends_of(owner.constant(sha256)) for sha256, owner in owners.items()}
    return {
        sha256
        for sha256, size in sizes.items()
        if any(member.digest().hex() == sha256 for member in members.get((size, ends[sha256]), ()))
    }
