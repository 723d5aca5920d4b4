"""The portable form of an OpenVINO engine: its IR, the XML and the weights in one run of bytes.

The bytes are::

    size of the XML u64, little-endian | XML | weights
"""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree as ET

from intarsia.engines.openvino.library import copy_bytes, find_core, import_openvino

_SIZE = struct.Struct("<Q")


def pack_model(model: Any) -> bytes:
    """The bytes of an OpenVINO model, with its weights as they are (OpenVINO's own saving would make them f16)."""
    # OpenVINO serialises to named files only.
    with TemporaryDirectory(prefix="intarsia-") as folder:
        xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        import_openvino().serialize(model, str(xml), str(weights))
        text = xml.read_bytes()
        return b"".join((_SIZE.pack(len(text)), text, weights.read_bytes()))


def find_constants(source: bytes) -> list[tuple[int, int]]:
    """Where weights lie in what `pack_model` wrote: position and number of bytes of each."""
    (size,) = _SIZE.unpack(source[: _SIZE.size])
    weights = _SIZE.size + size
    # The text is what OpenVINO wrote a moment ago.
    layers = ET.fromstring(source[_SIZE.size : weights]).iter("layer")  # noqa: S314
    data = (layer.find("data") for layer in layers if layer.get("type") == "Const")
    places = {(int(one.get("offset", 0)), int(one.get("size", 0))) for one in data if one is not None}
    return sorted((weights + offset, length) for offset, length in places)


def unpack_model(source: memoryview) -> Any:
    """The OpenVINO model that `pack_model` wrote; it owns its memory."""
    (size,) = _SIZE.unpack(source[: _SIZE.size])
    weights = _SIZE.size + size
    return find_core().read_model(bytes(source[_SIZE.size : weights]), copy_bytes(source[weights:]))
