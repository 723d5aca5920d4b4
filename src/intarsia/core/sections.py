"""The layout of an engine container: a checked header, then sections of bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from intarsia.errors import EngineError

FORMAT_VERSION = 1
PREAMBLE = struct.Struct("<8sII32s")

_MAGIC = b"INTARSIA"
_ALIGNMENT = 64


@dataclass(frozen=True)
class Section:
    """A run of bytes in a container.

    Attributes:
        name: "payload", "source" or "constant".
        offset: Position of its first byte, from the first multiple of 64 after the header on.
        size: Number of its bytes.
        sha256: SHA-256 of them, in hexadecimal.
    """

    name: str
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Constant:
    """A large constant in the portable form of an engine.

    Attributes:
        offset: Position of its first byte in the portable form.
        size: Number of its bytes.
        sha256: SHA-256 of them, in hexadecimal.
    """

    offset: int
    size: int
    sha256: str


class Content(NamedTuple):
    """A section that is to be written.

    Attributes:
        name: Name of the section.
        sha256: SHA-256 of its bytes, in hexadecimal.
        data: Its bytes.
    """

    name: str
    sha256: str
    data: memoryview


class PackedEngine(NamedTuple):
    """A container as it is to be written.

    Attributes:
        digest: SHA-256 of its header.
        chunks: Its bytes, in order; those of sections are not copied.
        payload_bytes: Size of the compiled engine, 0 when it was left out.
    """

    digest: bytes
    chunks: tuple[memoryview, ...]
    payload_bytes: int

    @property
    def size_bytes(self) -> int:
        """Number of its bytes."""
        return sum(len(chunk) for chunk in self.chunks)


def lay_out(fields: Mapping[str, Any], constants: Iterable[Constant], contents: Iterable[Content]) -> PackedEngine:
    """A container of these sections.

    Args:
        fields: What else its header says; JSON values.
        constants: Large constants of the portable form.
        contents: At least one section.
    """
    sections: list[Section] = []
    body: list[memoryview] = []
    end = 0
    for name, sha256, data in contents:
        start = aligned(end)
        sections.append(Section(name, start, len(data), sha256))
        body += [memoryview(bytes(start - end)), data]
        end = start + len(data)
    lists = {"sections": [asdict(section) for section in sections], "constants": [asdict(one) for one in constants]}
    header = json.dumps({**fields, **lists}, sort_keys=True).encode()
    digest = hashlib.sha256(header).digest()
    head = PREAMBLE.pack(_MAGIC, FORMAT_VERSION, len(header), digest) + header
    chunks = (memoryview(head + bytes(aligned(len(head)) - len(head))), *body)
    return PackedEngine(digest, chunks, sum(section.size for section in sections if section.name == "payload"))


def aligned(size: int) -> int:
    """The first multiple of the alignment that is not below a size."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def read_header(data: memoryview) -> tuple[bytes, bytes]:
    """The header of a container, compared with its SHA-256, and that.

    Raises:
        EngineError: The bytes are not an engine container, are of another format version, or their header is damaged
            or cut short.
    """
    if len(data) < PREAMBLE.size or bytes(data[:8]) != _MAGIC:
        raise damaged("engine container", "no magic bytes 'INTARSIA' at its start")
    _, version, size, digest = PREAMBLE.unpack(data[: PREAMBLE.size])
    if version != FORMAT_VERSION:
        raise EngineError(
            "engine container",
            found=f"format version {version}",
            expected=f"version {FORMAT_VERSION}",
            fix="Read it with the version of intarsia that wrote it, or compile the model again.",
        )
    header = bytes(data[PREAMBLE.size : PREAMBLE.size + size])
    if len(header) != size or hashlib.sha256(header).digest() != digest:
        raise damaged("engine container", "a header that does not match its SHA-256")
    return header, digest


def damaged(subject: str, found: str) -> EngineError:
    """The error for an engine whose bytes are not those that were written."""
    return EngineError(
        subject,
        found=found,
        expected="the bytes that were written",
        consequence="A damaged engine computes wrong numbers.",
        fix="Compile or copy the program again.",
    )
