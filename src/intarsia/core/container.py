"""The engine container: the bytes of an engine, with what a program needs to check and load them.

    magic "INTARSIA" | format version u32 | header size u32 | SHA-256 of the header | header (JSON) | sections

Integers are little-endian. Each section starts at a multiple of 64 bytes; the gaps are zero, and nothing follows the
last section. The header's `sections` lists name, offset (from the first multiple of 64 after the header), size and
SHA-256 of each:

- `payload`, unless the backend gave none or it was left out: the compiled engine;
- `source`, if the backend gave one: the portable form, without the large constants in it;
- `constant`, once for each constant that stands here. Its `constants` lists where in the portable form which one
  belongs; what no section has is stored beside the container, see `intarsia.core.constants`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from intarsia.core.backend import BuiltEngine
from intarsia.core.constants import find_constants
from intarsia.core.sections import (
    PREAMBLE,
    Constant,
    Content,
    PackedEngine,
    Section,
    aligned,
    damaged,
    lay_out,
    read_header,
)
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineError

MIN_CONSTANT_BYTES = 4096
"""Constants of fewer bytes stay where they are in the portable form."""

_SHA256 = re.compile("[0-9a-f]{64}")
_FIELDS = ("name", "backend", "backend_version", "target", "signature", "options")


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
        constants: Large constants of the portable form, in their order there.
        digest: SHA-256 of the header. It covers the hashes of all sections, so it stands for the whole content.
        data: All bytes of the container; not copied.
        sections: Where the payload, the source and constants lie in `data`.
        header_end: Where the header ends in `data`.
    """

    name: str
    backend: str
    backend_version: str
    target: str
    signature: str
    options: Mapping[str, Any]
    constants: tuple[Constant, ...]
    digest: bytes
    data: memoryview
    sections: tuple[Section, ...]
    header_end: int

    @classmethod
    def unpack(cls, data: memoryview) -> EngineContainer:
        """Read the header of a container.

        Raises:
            EngineError: The bytes are not an engine container, are of another format version, or their header is
                damaged or cut short.
        """
        header, digest = read_header(data)
        try:
            fields = json.loads(header)
            sections = tuple(Section(**section) for section in fields.pop("sections"))
            constants = tuple(Constant(**constant) for constant in fields.pop("constants"))
            known = {name: fields.pop(name) for name in _FIELDS}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged("engine container", f"a header that cannot be read ({type(error).__name__})") from error
        end = PREAMBLE.size + len(header)
        if not _are_plain(known):
            raise damaged("engine container", "a header with other than printable texts and options")
        container = cls(**known, constants=constants, digest=digest, data=data, sections=sections, header_end=end)
        if not container._fits():
            raise damaged(container.subject, "a header whose sections and constants cannot lie as it says")
        return container

    @property
    def payload(self) -> memoryview | None:
        """The compiled engine, unless it was left out."""
        return self._content("payload")

    @property
    def source(self) -> memoryview | None:
        """The portable form of the engine, when there is one; put together in new memory if it has large constants.

        Raises:
            EngineError: A constant that stands beside the container is not there, or damaged.
        """
        rest = self._content("source")
        return rest if rest is None or not self.constants else memoryview(b"".join(self._pieces(rest)))

    @property
    def size_bytes(self) -> int:
        """Size of the container."""
        return len(self.data)

    @property
    def payload_bytes(self) -> int:
        """Size of the compiled engine, 0 when it was left out."""
        return self._size("payload")

    @property
    def payload_sha256(self) -> str:
        """SHA-256 of the compiled engine in hexadecimal, empty when it was left out."""
        section = self._find("payload")
        return section.sha256 if section else ""

    @property
    def source_bytes(self) -> int:
        """Size of the portable form with all of its constants, 0 when there is none."""
        return self._size("source") + sum(constant.size for constant in self.constants)

    @property
    def has_source(self) -> bool:
        """Whether there is a portable form."""
        return self._find("source") is not None

    @property
    def outside(self) -> tuple[Constant, ...]:
        """Constants that stand beside the container, each once."""
        found = {constant.sha256: constant for constant in self.constants if constant.sha256 not in self._inside}
        return tuple(found.values())

    @cached_property
    def identity(self) -> bytes:
        """Equal for engines that differ at most in name, in names of sizes, and in the bytes that they compiled to.

        Libraries compile one source to other bytes each time. An engine without source is what its payload is.
        """
        kind = "source" if self.has_source else "payload"
        fields = {
            "backend": [self.backend, self.backend_version, self.target],
            "signature": EngineSignature.parse(self.signature).canonical,
            "options": self.options,
            kind: [section.sha256 for section in self.sections if section.name == kind],
            "constants": [asdict(constant) for constant in self.constants],
        }
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()

    def verify(self) -> None:
        """Compare every section with its SHA-256, and see that nothing lies outside the sections.

        Raises:
            EngineError: The container is damaged; names the engine and the section.
        """
        position = self.header_end
        for section in self.sections:
            start = aligned(self.header_end) + section.offset
            end = start + section.size
            if any(self.data[position:start]):
                raise damaged(self.subject, f"bytes other than zero before its {section.name}")
            if end > len(self.data):
                raise damaged(self.subject, f"{len(self.data)} bytes, where its {section.name} ends at byte {end}")
            if hashlib.sha256(self.data[start:end]).hexdigest() != section.sha256:
                raise damaged(self.subject, f"a {section.name} that does not match its SHA-256")
            position = end
        if position != len(self.data):
            raise damaged(self.subject, f"{len(self.data) - position} bytes after its last section")

    @property
    def subject(self) -> str:
        """How messages name the engine."""
        return f"engine {self.name!r}"

    def constant(self, sha256: str) -> memoryview:
        """The bytes of a large constant, here or beside the container; those beside it are not compared.

        Raises:
            EngineError: It is not there.
        """
        if sha256 in self._inside:
            return self._bytes(self._inside[sha256])
        stored = find_constants(self.digest)
        if stored is None:
            raise EngineError(
                self.subject,
                found="a portable form whose constants are not in the container",
                expected="the file that holds them",
                consequence="The engine can neither be built here nor be saved.",
                fix="Load the file with intarsia.load, and keep what it returns while copies of it are used.",
            )
        return stored.read(sha256)

    def repack(self, *, payload: bool, outside: Collection[str]) -> PackedEngine:
        """The same engine in another container.

        Args:
            payload: Whether it holds the payload.
            outside: SHA-256 of the constants that it only refers to.

        Raises:
            EngineError: A constant that it shall hold is not there.
        """
        names = {"source", "payload"} if payload else {"source"}
        contents = [
            Content(section.name, section.sha256, self._bytes(section))
            for section in self.sections
            if section.name in names
        ]
        inside = dict.fromkeys(constant.sha256 for constant in self.constants if constant.sha256 not in outside)
        contents += [Content("constant", sha256, self.constant(sha256)) for sha256 in inside]
        return lay_out({name: getattr(self, name) for name in _FIELDS}, self.constants, contents)

    @cached_property
    def _inside(self) -> Mapping[str, Section]:
        """Sections with constants, by their SHA-256."""
        return {section.sha256: section for section in self.sections if section.name == "constant"}

    def _find(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def _size(self, name: str) -> int:
        section = self._find(name)
        return section.size if section else 0

    def _content(self, name: str) -> memoryview | None:
        section = self._find(name)
        return self._bytes(section) if section else None

    def _bytes(self, section: Section) -> memoryview:
        start = aligned(self.header_end) + section.offset
        return self.data[start : start + section.size]

    def _fits(self) -> bool:
        """Whether sections and constants can lie as the header says."""
        parts: list[Section | Constant] = [*self.sections, *self.constants]
        if any(type(part.sha256) is not str or not _SHA256.fullmatch(part.sha256) for part in parts):
            return False
        if any(type(number) is not int or number < 0 for part in parts for number in (part.offset, part.size)):
            return False
        names = [section.name for section in self.sections if section.name != "constant"]
        if sorted(map(str, names)) not in (["payload"], ["source"], ["payload", "source"]):
            return False
        position = 0
        for section in self.sections:
            if section.offset != aligned(position):
                return False
            position = section.offset + section.size
        position = 0
        for constant in self.constants:
            inside = self._inside.get(constant.sha256)
            if constant.offset < position or (inside and inside.size != constant.size):
                return False
            position = constant.offset + constant.size
        return position <= self.source_bytes

    def _pieces(self, rest: memoryview) -> Iterator[memoryview]:
        """The portable form, piece by piece."""
        position = taken = 0
        for constant in self.constants:
            between = constant.offset - position
            yield rest[taken : taken + between]
            content = self.constant(constant.sha256)
            if constant.sha256 not in self._inside and hashlib.sha256(content).hexdigest() != constant.sha256:
                stored = find_constants(self.digest)
                place = f" (in {stored.place(constant.sha256)})" if stored else ""
                raise damaged(self.subject, f"a constant that does not match its SHA-256{place}")
            yield content
            position, taken = constant.offset + constant.size, taken + between
        yield rest[taken:]


def pack_engine(built: BuiltEngine, *, name: str, backend: str, signature: str) -> bytes:
    """The bytes of a container that holds a built engine.

    Example:
        >>> built = BuiltEngine(b"blob", None, "1.0", "CPU", {})
        >>> data = pack_engine(built, name="demo_0", backend="demo", signature="(f32[b]) -> (f32[b])")
        >>> bytes(EngineContainer.unpack(memoryview(data)).payload)
        b'blob'
    """
    fields = {
        "name": name,
        "backend": backend,
        "backend_version": built.backend_version,
        "target": built.target,
        "signature": signature,
        "options": dict(built.options),
    }
    contents: list[Content] = []
    if built.payload is not None:
        contents.append(Content("payload", _sha256(built.payload), memoryview(built.payload)))
    constants: list[Constant] = []
    if built.source is not None:
        rest, constants, parts = _split(built.source, built.constants)
        contents += [Content("source", _sha256(rest), memoryview(rest)), *parts]
    return b"".join(lay_out(fields, constants, contents).chunks)


def _are_plain(known: Mapping[str, Any]) -> bool:
    """Whether the fields of a header have the types that they should, and can be shown on a terminal."""
    texts = [value for name, value in known.items() if name != "options"]
    return isinstance(known["options"], dict) and all(type(text) is str and text.isprintable() for text in texts)


def _split(source: bytes, places: Iterable[tuple[int, int]]) -> tuple[bytes, list[Constant], list[Content]]:
    """A portable form without its large constants, where these belong in it, and each of them once."""
    view, rest, position = memoryview(source), [], 0
    constants: list[Constant] = []
    parts: dict[str, Content] = {}
    for offset, size in sorted(set(places)):
        if size < MIN_CONSTANT_BYTES or offset < position or offset + size > len(view):
            continue
        content = view[offset : offset + size]
        constants.append(Constant(offset, size, _sha256(content)))
        parts.setdefault(constants[-1].sha256, Content("constant", constants[-1].sha256, content))
        rest.append(view[position:offset])
        position = offset + size
    return b"".join((*rest, view[position:])), constants, [*parts.values()]


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
