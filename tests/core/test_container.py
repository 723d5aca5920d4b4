"""The engine container: what is packed comes back, and no damage goes unseen."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
import torch

from intarsia.core.backend import BuiltEngine
from intarsia.core.constants import attach_constants
from intarsia.core.container import MIN_CONSTANT_BYTES, EngineContainer, pack_engine
from intarsia.core.sections import FORMAT_VERSION, PREAMBLE
from intarsia.errors import EngineError


def _pack(payload: bytes | None = b"payload", source: bytes | None = b"the source") -> bytes:
    built = BuiltEngine(payload, source, "1.2", "CPU", {"HINT": "x", "n": 3})
    return pack_engine(built, name="demo_3", backend="demo", signature="(f32[b]) -> (f32[b])")


def test_fields_and_sections_come_back() -> None:
    container = EngineContainer.unpack(memoryview(_pack()))
    container.verify()
    assert (container.name, container.backend, container.backend_version) == ("demo_3", "demo", "1.2")
    assert (container.target, container.signature) == ("CPU", "(f32[b]) -> (f32[b])")
    assert container.options == {"HINT": "x", "n": 3}
    assert bytes(container.payload) == b"payload"
    assert container.source is not None
    assert bytes(container.source) == b"the source"


@pytest.mark.parametrize("payload", [b"", b"x", bytes(64), bytes(1000)])
def test_sections_are_aligned_and_may_be_empty(payload: bytes) -> None:
    data = _pack(payload, None)
    container = EngineContainer.unpack(memoryview(data))
    container.verify()
    assert container.source is None
    assert bytes(container.payload) == payload
    assert (len(data) - len(payload)) % 64 == 0


def test_a_backend_may_give_its_source_alone() -> None:
    container = EngineContainer.unpack(memoryview(_pack(None)))
    container.verify()
    assert container.payload is None
    assert (container.payload_bytes, container.payload_sha256) == (0, "")
    assert container.source is not None
    assert bytes(container.source) == b"the source"


def test_equal_content_has_an_equal_digest() -> None:
    digests = {EngineContainer.unpack(memoryview(_pack(payload))).digest for payload in (b"a", b"a", b"b")}
    assert len(digests) == 2


def test_every_flipped_bit_is_seen() -> None:
    data = _pack()
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(EngineError, match=r"demo_3|engine container"):
            EngineContainer.unpack(memoryview(damaged)).verify()


def test_damage_in_a_section_names_engine_and_section() -> None:
    damaged = bytearray(_pack())
    damaged[-1] ^= 1
    with pytest.raises(EngineError, match="engine 'demo_3': found a source that does not match its SHA-256"):
        EngineContainer.unpack(memoryview(damaged)).verify()


def test_every_cut_and_every_surplus_byte_is_seen() -> None:
    data = _pack()
    for size in range(len(data)):
        with pytest.raises(EngineError):
            EngineContainer.unpack(memoryview(data[:size])).verify()
    with pytest.raises(EngineError, match="1 bytes after its last section"):
        EngineContainer.unpack(memoryview(data + b"\0")).verify()


def test_a_newer_format_version_is_named() -> None:
    data = bytearray(_pack())
    struct.pack_into("<I", data, 8, 2)
    with pytest.raises(EngineError, match="format version 2, expected version 1"):
        EngineContainer.unpack(memoryview(data))


# Constants of the portable form.

SIGNATURE = "(f32[b]) -> (f32[b])"
FIRST, SECOND = bytes(range(256)) * (MIN_CONSTANT_BYTES // 256), b"\x07" * (MIN_CONSTANT_BYTES + 5)
SOURCE = b"begin" + FIRST + b"middle" + SECOND + FIRST + b"small" + b"end"
PLACES = ((5, len(FIRST)), (11 + len(FIRST), len(SECOND)), (11 + len(FIRST + SECOND), len(FIRST)), (len(SOURCE) - 8, 5))


def _pack_constants(**other: Any) -> EngineContainer:
    fields: dict[str, Any] = {
        "payload": b"p" * 100,
        "source": SOURCE,
        "name": "demo_3",
        "signature": "(f32[b]) -> (f32[b])",
    }
    fields |= other
    built = BuiltEngine(fields["payload"], fields["source"], "1.2", "CPU", {"n": fields.get("n", 3)}, PLACES)
    data = pack_engine(built, name=fields["name"], backend="demo", signature=fields["signature"])
    return EngineContainer.unpack(memoryview(data))


def _repack(container: EngineContainer, **how: Any) -> EngineContainer:
    packed = container.repack(**how)
    data = b"".join(packed.chunks)
    found = EngineContainer.unpack(memoryview(data))
    assert (len(data), found.digest) == (packed.size_bytes, packed.digest)
    found.verify()
    return found


class InMemory:
    """Constants beside containers."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {hashlib.sha256(content).hexdigest(): content for content in contents}

    def read(self, sha256: str) -> memoryview:
        return memoryview(self.contents[sha256])

    def place(self, sha256: str) -> str:
        return "member 'x' of a file"


def test_a_source_comes_back_whole_and_holds_equal_constants_once() -> None:
    container = _pack_constants()
    container.verify()
    assert container.source == SOURCE
    assert (container.source_bytes, container.payload_bytes) == (len(SOURCE), 100)
    assert [bytes(container.constant(constant.sha256)) for constant in container.constants] == [FIRST, SECOND, FIRST]
    assert container.outside == ()
    assert bytes(container.data).count(FIRST) == 1


def test_places_that_cannot_be_are_no_constants() -> None:
    built = BuiltEngine(b"p", SOURCE, "1", "CPU", {}, ((0, 5000), (100, 5000), (len(SOURCE) - 10, 5000)))
    data = pack_engine(built, name="demo_3", backend="demo", signature="() -> ()")
    container = EngineContainer.unpack(memoryview(data))
    assert [(constant.offset, constant.size) for constant in container.constants] == [(0, 5000)]
    assert container.source == SOURCE


def test_a_container_without_payload_has_the_same_source() -> None:
    container = _repack(_pack_constants(), payload=False, outside=())
    assert container.payload is None
    assert container.payload_bytes == 0
    assert container.source == SOURCE


def test_repacking_as_it_was_gives_the_same_bytes() -> None:
    container = _pack_constants()
    assert b"".join(container.repack(payload=True, outside=()).chunks) == container.data


def test_repacking_copies_no_section() -> None:
    container = _pack_constants()
    first = torch.frombuffer(bytearray(container.data), dtype=torch.uint8)
    start, end = first.data_ptr(), first.data_ptr() + first.numel()
    chunks = EngineContainer.unpack(first.numpy().data).repack(payload=True, outside=()).chunks
    large = [torch.frombuffer(chunk, dtype=torch.uint8) for chunk in chunks if len(chunk) >= MIN_CONSTANT_BYTES]
    assert len(large) == 2
    assert all(start <= chunk.data_ptr() < end for chunk in large)


def test_what_is_left_out_is_found_beside_the_container() -> None:
    outside = {hashlib.sha256(FIRST).hexdigest()}
    container = _repack(_pack_constants(), payload=True, outside=outside)
    assert {constant.sha256 for constant in container.outside} == outside
    assert FIRST not in bytes(container.data)
    tensor = torch.frombuffer(bytearray(container.data), dtype=torch.uint8)
    attach_constants(tensor, container.digest, InMemory(FIRST))
    assert container.source == SOURCE
    assert _repack(container, payload=True, outside=()).data == _pack_constants().data


def test_a_source_whose_constants_are_nowhere_is_one_error() -> None:
    container = _repack(_pack_constants(), payload=True, outside={hashlib.sha256(SECOND).hexdigest()})
    with pytest.raises(EngineError, match=r"engine 'demo_3': found a portable form whose constants .*intarsia.load"):
        _ = container.source
    assert bytes(container.payload or b"") == b"p" * 100


def test_a_damaged_constant_beside_the_container_is_named_with_its_place() -> None:
    sha256 = hashlib.sha256(FIRST).hexdigest()
    container = _repack(_pack_constants(), payload=False, outside={sha256})
    tensor = torch.frombuffer(bytearray(container.data), dtype=torch.uint8)
    stored = InMemory()
    stored.contents[sha256] = b"x" + FIRST[1:]
    attach_constants(tensor, container.digest, stored)
    with pytest.raises(EngineError, match=r"engine 'demo_3': found a constant .* \(in member 'x' of a file\)"):
        _ = container.source


def test_damage_in_a_constant_is_seen() -> None:
    damaged = bytearray(_pack_constants().data)
    damaged[damaged.index(SECOND) + 17] ^= 1
    with pytest.raises(EngineError, match="engine 'demo_3': found a constant that does not match its SHA-256"):
        EngineContainer.unpack(memoryview(damaged)).verify()


@pytest.mark.parametrize(
    "same",
    [{"name": "demo_9"}, {"payload": b"compiled again"}, {"signature": "(f32[s7]) -> (f32[s7])"}],
    ids=["name", "payload", "names of sizes"],
)
def test_engines_are_equal_though_they_differ_in(same: dict[str, Any]) -> None:
    assert _pack_constants(**same).identity == _pack_constants().identity


@pytest.mark.parametrize(
    "other",
    [
        {"source": SOURCE + b"."},
        {"source": SOURCE.replace(b"\x07", b"\x08")},
        {"n": 4},
        {"signature": "(f32[b, b]) -> (f32[b])"},
    ],
    ids=["source", "constant", "options", "signature"],
)
def test_engines_are_not_equal_when_they_differ_in(other: dict[str, Any]) -> None:
    assert _pack_constants(**other).identity != _pack_constants().identity


def test_engines_without_source_are_what_they_compiled_to() -> None:
    first, again, other = (
        _pack_constants(source=None, payload=p, name=n) for p, n in ((b"a", "x"), (b"a", "y"), (b"b", "x"))
    )
    assert first.identity == again.identity
    assert first.identity != other.identity


def test_what_is_left_out_leaves_an_engine_equal() -> None:
    container = _pack_constants()
    outside = {constant.sha256 for constant in container.constants}
    assert _repack(container, payload=False, outside=outside).identity == container.identity


def _with_header(change: Any) -> bytes:
    data = bytes(_pack_constants().data)
    (size,) = struct.unpack_from("<I", data, 12)
    fields = json.loads(data[PREAMBLE.size : PREAMBLE.size + size])
    header = json.dumps(change(fields)).encode()
    return PREAMBLE.pack(b"INTARSIA", FORMAT_VERSION, len(header), hashlib.sha256(header).digest()) + header


IMPOSSIBLE: dict[str, Any] = {
    "a list": lambda fields: [],
    "nothing": lambda fields: {},
    "half a section": lambda fields: {**fields, "sections": [{"name": "payload"}]},
    "a number of constants": lambda fields: {**fields, "constants": 3},
    "before the start": lambda fields: {**fields, "constants": [{**fields["constants"][0], "offset": -1}]},
    "no number": lambda fields: {**fields, "constants": [{**fields["constants"][0], "size": "big"}]},
    "no hash": lambda fields: {**fields, "constants": [{**fields["constants"][0], "sha256": []}]},
    "backwards": lambda fields: {**fields, "constants": fields["constants"][::-1]},
    "behind the end": lambda fields: {**fields, "constants": [{**fields["constants"][0], "offset": 2**40}]},
    "a hash that is none": lambda fields: {**fields, "constants": [{**fields["constants"][0], "sha256": "\x1b[2J"}]},
    "a section of another kind": lambda fields: {
        **fields,
        "sections": [*fields["sections"], {**fields["sections"][0], "name": "other"}],
    },
    "a section with no name": lambda fields: {**fields, "sections": [{**fields["sections"][0], "name": 3}]},
    "two payloads": lambda fields: {**fields, "sections": [fields["sections"][0], *fields["sections"]]},
    "neither payload nor source": lambda fields: {**fields, "sections": fields["sections"][2:]},
    "sections apart": lambda fields: {
        **fields,
        "sections": [{**one, "offset": one["offset"] + 64} for one in fields["sections"]],
    },
    "a name that is a number": lambda fields: {**fields, "name": 3},
    "a name that steers the terminal": lambda fields: {**fields, "name": "\x1b[2J"},
    "a signature that is a list": lambda fields: {**fields, "signature": []},
    "options that are a list": lambda fields: {**fields, "options": []},
    "a section before the start": lambda fields: {**fields, "sections": [{**fields["sections"][0], "offset": -64}]},
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_header_that_says_what_cannot_be_is_one_error(case: str) -> None:
    with pytest.raises(EngineError, match=r"found a header (that|whose sections and|with other)") as raised:
        EngineContainer.unpack(memoryview(_with_header(IMPOSSIBLE[case])))
    assert str(raised.value).isprintable()
