"""The portable form of an ONNX Runtime engine: an ONNX model, and its weights beside it in one run of bytes.

The bytes are::

    size of the model u64, little-endian | model (ONNX protobuf) | zeros | weights

The weights begin at a multiple of 64 bytes, and so does each of them. The model refers to them as external data of
the location "weights": so it stays far below the 2 GB that protobuf allows, and files find weights where they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from intarsia.core.sections import aligned
from intarsia.engines.onnxruntime.library import import_onnx
from intarsia.errors import EngineBuildFailed, first_line

if TYPE_CHECKING:
    import onnx_ir

_SIZE = struct.Struct("<Q")
_WEIGHTS = "weights"
_DOUBLE = 11  # ONNX's number of f64
# Smaller constants stay in the model, where shapes are worked out from them.
_LEAST_BYTES = 1024


class Weight(NamedTuple):
    """A weight that lies beside the model.

    Attributes:
        name: Name of the initializer in the model.
        element_type: ONNX's number of its dtype.
        shape: Its sizes.
        offset: Where it lies among the weights, which tied ones share.
        data: Its bytes.
    """

    name: str
    element_type: int
    shape: tuple[int, ...]
    offset: int
    data: memoryview


class SeparateModel(NamedTuple):
    """What a session is made of.

    Attributes:
        model: The ONNX model, without its large weights.
        weights: These.
        signature: Text of the engine's signature.
        has_doubles: Whether some value in it is f64.
    """

    model: bytes
    weights: list[Weight]
    signature: str
    has_doubles: bool


class PackedModel(NamedTuple):
    """A portable form.

    Attributes:
        source: Its bytes.
        constants: Where weights lie in it: position and number of bytes of each.
    """

    source: bytes
    constants: list[tuple[int, int]]


def separate_weights(model: onnx_ir.Model, signature: str) -> SeparateModel:
    """The model without its large weights, and these beside it where they lie in memory.

    Args:
        model: Changed: its large initializers refer to the weights.
        signature: Text of the engine's signature.

    Raises:
        EngineBuildFailed: It has operators of its own.
    """
    import onnx_ir

    weights: list[Weight] = []
    places: dict[tuple[int, int], int] = {}
    end = 0
    for value in model.graph.initializers.values():
        tensor: Any = value.const_value
        if tensor.nbytes < _LEAST_BYTES:
            continue
        array: Any = np.ascontiguousarray(tensor.numpy())
        key = array.ctypes.data, array.nbytes
        if key not in places:
            places[key] = aligned(end)
            end = places[key] + array.nbytes
        data = memoryview(array.reshape(-1).view(np.uint8))
        weights.append(Weight(str(value.name), int(tensor.dtype), tuple(array.shape), places[key], data))
        value.const_value = onnx_ir.ExternalTensor(
            _WEIGHTS, places[key], array.nbytes, tensor.dtype, shape=tensor.shape, name=str(value.name)
        )
    proto: Any = onnx_ir.to_proto(model)
    names = _name_anew(proto)
    proto.metadata_props.add(key="signature", value=signature)
    _check_operators(proto)
    renamed = [weight._replace(name=names[weight.name]) for weight in weights]
    return SeparateModel(proto.SerializeToString(deterministic=True), renamed, signature, _has_doubles(proto))


def pack_model(separate: SeparateModel) -> PackedModel:
    """The portable form of a model."""
    pieces: list[bytes | memoryview] = []
    end = 0
    places = {weight.offset: weight.data for weight in separate.weights}
    for offset, data in places.items():
        pieces += [bytes(offset - end), data]
        end = offset + len(data)
    start = aligned(_SIZE.size + len(separate.model))
    head = (_SIZE.pack(len(separate.model)) + separate.model).ljust(start, b"\0")
    constants = [(start + offset, len(data)) for offset, data in places.items()]
    return PackedModel(b"".join((head, *pieces)), constants)


def _name_anew(model: Any) -> dict[str, str]:
    """Number values and sizes, so that equal partitions have equal models, and drop notes on where they come from.

    Returns:
        The new names of values, by the old ones.
    """
    values: dict[str, str] = {"": ""}
    sizes: dict[str, str] = {}
    model.graph.name = "engine"
    for message in _messages(model):
        kind = message.DESCRIPTOR.name
        for field in ("doc_string", "metadata_props"):
            if field in message.DESCRIPTOR.fields_by_name:
                message.ClearField(field)
        if kind == "NodeProto":
            for names in (message.input, message.output):
                names[:] = [values.setdefault(name, f"value_{len(values)}") for name in names]
        elif kind in {"ValueInfoProto", "TensorProto"} and message.name:
            message.name = values.setdefault(message.name, f"value_{len(values)}")
        elif kind == "Dimension" and message.dim_param:
            message.dim_param = sizes.setdefault(message.dim_param, f"n{len(sizes)}")
    return values


def unpack_model(source: memoryview) -> SeparateModel:
    """The model that `pack_model` wrote; its weights are views of `source`.

    ONNX Runtime reads external data from the disk wherever a model says so: a model that refers to anything else than
    the weights beside it is refused.

    Raises:
        EngineBuildFailed: It is no ONNX model of one graph, or it refers to files.
    """
    (size,) = _SIZE.unpack(source[: _SIZE.size]) if len(source) >= _SIZE.size else (0,)
    text = bytes(source[_SIZE.size : _SIZE.size + size])
    beside = source[aligned(_SIZE.size + size) :]
    model = _parse(text)
    graph = model.graph
    outside = [tensor for tensor in graph.initializer if _lies_outside(tensor)]
    if sum(map(_lies_outside, _of_kind("TensorProto", model))) != len(outside):
        raise _refused("constants that lie in files")
    _check_operators(model)
    signature = {entry.key: entry.value for entry in model.metadata_props}.get("signature")
    if signature is None:
        raise _refused("no signature")
    return SeparateModel(text, [_weight(tensor, beside) for tensor in outside], signature, _has_doubles(model))


def _has_doubles(model: Any) -> bool:
    return any(found.elem_type == _DOUBLE for found in _of_kind("Tensor", model))


def _check_operators(model: Any) -> None:
    foreign = {node.domain for node in _of_kind("NodeProto", model)} - {""}
    if foreign or model.functions:
        raise _refused(f"operators of {', '.join(sorted(foreign)) or 'its own'}")


def _parse(text: bytes) -> Any:
    onnx = import_onnx()
    try:
        return onnx.ModelProto.FromString(text)
    except Exception as error:
        raise _refused(f"bytes that cannot be read ({first_line(error)})") from error


def _messages(message: Any) -> Iterator[Any]:
    """A message of a model, and every message in it, however deep."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "add") else [value]:
                yield from _messages(part)


def _of_kind(kind: str, model: Any) -> Iterator[Any]:
    return (message for message in _messages(model) if message.DESCRIPTOR.name == kind)


def _lies_outside(tensor: Any) -> bool:
    return bool(tensor.data_location or tensor.external_data)


def _weight(tensor: Any, beside: memoryview) -> Weight:
    place = {entry.key: entry.value for entry in tensor.external_data}
    if place.pop("location", None) != _WEIGHTS or place.keys() != {"offset", "length"}:
        raise _refused("weights that lie in files")
    try:
        start, size = int(place["offset"]), int(place["length"])
    except ValueError as error:
        raise _refused("weights in no place") from error
    if not 0 <= start <= start + size <= len(beside):
        raise _refused("weights outside of it")
    return Weight(tensor.name, tensor.data_type, tuple(tensor.dims), start, beside[start : start + size])


def _refused(found: str) -> EngineBuildFailed:
    return EngineBuildFailed(
        "ONNX model",
        found=found,
        expected="a model that intarsia wrote",
        fix="Compile the model again.",
    )
