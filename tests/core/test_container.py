"""The engine container: what is packed comes back, and no damage goes unseen."""

from __future__ import annotations

import struct

import pytest

from intarsia.core.backend import BuiltEngine
from intarsia.core.container import EngineContainer, pack_engine
from intarsia.errors import EngineError


def _pack(payload: bytes = b"payload", source: bytes | None = b"the source") -> bytes:
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
    struct.pack_into("<I", data, 8, 3)
    with pytest.raises(EngineError, match="format version 3, expected version 2"):
        EngineContainer.unpack(memoryview(data))
