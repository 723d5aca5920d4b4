"""Tensors that lie in a file: mapped into memory, read when they are used, written in this process alone."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import torch

from intarsia.errors import FormatError
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.layout import Kind, tensor_member
from intarsia.formats.archive.limits import REPEATED_BYTES
from intarsia.formats.archive.payload import Payload
from intarsia.formats.archive.refusal import quoted
from intarsia.formats.archive.writer import ALIGNMENT


class MappedTensors:
    """The tensors of an archive.

    Each memory of the archive is one storage over a copy-on-write mapping of the file: pages are read when they are
    first touched, and a page that is written becomes the process's own. Tensors of one memory share it; two memories
    share none, also where the archive holds the same bytes for both.

    The mapping lives as long as its tensors. The file may be renamed or removed meanwhile; it must not be written over
    in place.

    Args:
        path: Named in errors.
        file: The archive.
        directory: Its members.
        payloads: Every tensor of the archive, with its folder.
        copied: Whether the tensors are read into memory instead, each when it is made.

    Raises:
        FormatError: A tensor's bytes are not in the archive.
    """

    def __init__(
        self,
        path: Path,
        file: IO[bytes],
        directory: Mapping[str, Member],
        payloads: Iterable[tuple[Kind, Payload]],
        *,
        copied: bool = False,
    ) -> None:
        self._file = file
        self._copied = copied
        self._whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._storages: dict[tuple[int, torch.device], torch.UntypedStorage] = {}
        self._tensors: dict[Payload, torch.Tensor] = {}
        self._members: dict[int, Member] = {}
        for kind, payload in payloads:
            member = _find(path, directory, kind, payload)
            known = self._members.setdefault(payload.memory, member)
            if member.size_bytes > known.size_bytes:
                self._members[payload.memory] = member
        first = {member: memory for memory, member in reversed(self._members.items())}
        self._repeated = self._members.keys() - first.values()

    def tensor(self, payload: Payload) -> torch.Tensor:
        """The tensor of a payload, the same object for equal ones."""
        key = payload._replace(member="")
        if key not in self._tensors:
            self._tensors[key] = self._make(payload)
        return self._tensors[key]

    def _make(self, payload: Payload) -> torch.Tensor:
        storage = self._storage(payload.memory, payload.device)
        empty = torch.empty(0, dtype=payload.dtype, device=payload.device)
        tensor = empty.set_(storage, payload.offset, payload.sizes, payload.strides)
        if payload.is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=payload.requires_grad)
        return tensor.requires_grad_(payload.requires_grad)

    def _storage(self, memory: int, device: torch.device) -> torch.UntypedStorage:
        if (memory, device) not in self._storages:
            data = self._map(self._members[memory], again=memory in self._repeated).to(device)
            self._storages[memory, device] = data.untyped_storage()
        return self._storages[memory, device]

    def _map(self, member: Member, *, again: bool) -> torch.Tensor:
        """The bytes of a member; `again` maps them anew, for a memory that must share none with another one."""
        if not member.size_bytes:
            return torch.empty(0, dtype=torch.uint8)
        mapping, start = self._whole, 0
        if again:
            start = member.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            length = member.offset + member.size_bytes - start
            mapping = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_COPY, offset=start)
        data = torch.frombuffer(mapping, dtype=torch.uint8, count=member.size_bytes, offset=member.offset - start)
        # Only an archive that was packed anew has members that operators could not use where they lie.
        return data.clone() if self._copied or member.offset % ALIGNMENT else data


def _find(path: Path, directory: Mapping[str, Member], kind: Kind, payload: Payload) -> Member:
    name = tensor_member(kind, payload.member)
    member = directory.get(name)
    if member is None or payload.end_bytes > member.size_bytes:
        raise FormatError(
            str(path),
            found=f"a tensor that ends at byte {payload.end_bytes} of {quoted(name)}",
            expected=f"at most {member.size_bytes}" if member else "a member of this name",
            fix="Copy or save the file again.",
        )
    if payload.size_bytes > max(member.size_bytes, REPEATED_BYTES):
        raise FormatError(
            str(path),
            found=f"a tensor of {payload.size_bytes} bytes that repeats the {member.size_bytes} of {quoted(name)}",
            expected=f"at most {REPEATED_BYTES}",
            fix="Let the model expand the tensor when it runs.",
        )
    return member
