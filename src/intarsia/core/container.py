"""The engine container: the bytes of an engine, with what a program needs to check and load them.

    magic "INTARSIA" | format version u32 | header size u32 | SHA-256 of the header | header (JSON) | sections

Integers are little-endian. Each section starts at a multiple of 64 bytes; the gaps are zero, and nothing follows the
last section. The header's `sections` lists name, offset (from the first multiple of 64 after the header), size and
SHA-256 of each.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.core.backend import BuiltEngine
from intarsia.errors import EngineError

FORMAT_VERSION = 1
_MAGIC = b"INTARSIA"
_PREAMBLE = struct.Struct("<8sII32s")
_ALIGNMENT = 64


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class EngineContainer:
    """An engine container whose header has been read and checked; the sections are checked by `verify`.

    Attributes:
        name: Name of the engine ("openvino_2"), for messages.
        backend: Name of the backend that built the payload and loads it.
        backend_version: Version of the library that built the payload.
        target: What the payload was compiled for.
        signature: Text of the engine's signature.
        options: Options with which to load or rebuild the engine.
        digest: SHA-256 of the header. It covers the hashes of all sections, so it stands for the whole content.
        data: All bytes of the container; not copied.
        sections: Where the payload, and the source if there is one, lie in `data`.
        header_end: Where the header ends in `data`.
    """

    name: str
    backend: str
    backend_version: str
    target: str
    signature: str
    options: Mapping[str, Any]
    digest: bytes
    data: memoryview
    sections: tuple[_Section, ...]
    header_end: int

    @property
    def payload(self) -> memoryview:
        """The compiled engine."""
        return self._content("payload")

    @property
    def source(self) -> memoryview | None:
        """The portable form of the engine, when it was stored."""
        return self._content("source") if any(section.name == "source" for section in self.sections) else None

    @classmethod
    def unpack(cls, data: memoryview) -> EngineContainer:
        """Read the header of a container.

        Raises:
            EngineError: The bytes are not an engine container, are of a newer format version, or their header is
                damaged or cut short.
        """
        header_size, digest = _read_preamble(data)
        end = _PREAMBLE.size + header_size
        header = bytes(data[_PREAMBLE.size : end])
        if len(header) != header_size or hashlib.sha256(header).digest() != digest:
            raise _damaged("engine container", "a header that does not match its SHA-256")
        fields = json.loads(header)
        sections = tuple(_Section(**section) for section in fields.pop("sections"))
        return cls(**fields, digest=digest, data=data, sections=sections, header_end=end)

    def verify(self) -> None:
        """Compare every section with its SHA-256, and see that nothing lies outside the sections.

        Raises:
            EngineError: The container is damaged; names the engine and the section.
        """
        position = self.header_end
        for section in self.sections:
            start = _aligned(self.header_end) + section.offset
            end = start + section.size
            if any(self.data[position:start]):
                raise _damaged(self.subject, f"bytes other than zero before its {section.name}")
            if end > len(self.data):
                raise _damaged(self.subject, f"{len(self.data)} bytes, where its {section.name} ends at byte {end}")
            if hashlib.sha256(self.data[start:end]).hexdigest() != section.sha256:
                raise _damaged(self.subject, f"a {section.name} that does not match its SHA-256")
            position = end
        if position != len(self.data):
            raise _damaged(self.subject, f"{len(self.data) - position} bytes after its last section")

    @property
    def subject(self) -> str:
        """How messages name the engine."""
        return f"engine {self.name!r}"

    def _content(self, name: str) -> memoryview:
        section = next(section for section in self.sections if section.name == name)
        start = _aligned(self.header_end) + section.offset
        return self.data[start : start + section.size]


def pack_engine(built: BuiltEngine, *, name: str, backend: str, signature: str) -> bytes:
    """The bytes of a container that holds a built engine.

    Example:
        >>> built = BuiltEngine(b"blob", None, "1.0", "CPU", {})
        >>> data = pack_engine(built, name="demo_0", backend="demo", signature="(f32[b]) -> (f32[b])")
        >>> bytes(EngineContainer.unpack(memoryview(data)).payload)
        b'blob'
    """
    contents = {"payload": built.payload}
    if built.source is not None:
        contents["source"] = built.source
    header = {
        "name": name,
        "backend": backend,
        "backend_version": built.backend_version,
        "target": built.target,
        "signature": signature,
        "options": dict(built.options),
    }
    return _assemble(header, contents)


def _assemble(fields: dict[str, Any], contents: Mapping[str, bytes]) -> bytes:
    sections, body = [], bytearray()
    for name, content in contents.items():
        body += bytes(_aligned(len(body)) - len(body))
        sha256 = hashlib.sha256(content).hexdigest()
        sections.append({"name": name, "offset": len(body), "size": len(content), "sha256": sha256})
        body += content
    header = json.dumps({**fields, "sections": sections}, sort_keys=True).encode()
    preamble = _PREAMBLE.pack(_MAGIC, FORMAT_VERSION, len(header), hashlib.sha256(header).digest())
    end = len(preamble) + len(header)
    return b"".join((preamble, header, bytes(_aligned(end) - end), body))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _read_preamble(data: memoryview) -> tuple[int, bytes]:
    if len(data) < _PREAMBLE.size or bytes(data[:8]) != _MAGIC:
        raise _damaged("engine container", "no magic bytes 'INTARSIA' at its start")
    _, version, header_size, digest = _PREAMBLE.unpack(data[: _PREAMBLE.size])
    if version != FORMAT_VERSION:
        raise EngineError(
            "engine container",
            found=f"format version {version}",
            expected=f"version {FORMAT_VERSION}",
            fix="Read it with the version of intarsia that wrote it, or a later one.",
        )
    return header_size, digest


def _damaged(subject: str, found: str) -> EngineError:
    return EngineError(
        subject,
        found=found,
        expected="the bytes that were written",
        consequence="A damaged engine computes wrong numbers.",
        fix="Compile or copy the program again.",
    )
