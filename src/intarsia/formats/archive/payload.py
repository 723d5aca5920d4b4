"""The tensors of one program in an archive, by name: where their bytes are and how they lie in them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from intarsia._torch import dtype_codes
from intarsia.errors import FormatError, first_line
from intarsia.formats.archive.refusal import quoted

_STRIDED = 7  # the number of the only layout
_MOST_DIMENSIONS = 64  # torch has no more


class Payload(NamedTuple):
    """A tensor in an archive.

    Attributes:
        member: Name of the member with its bytes, in the folder of weights or of constants.
        memory: A number: tensors of one number share memory, in all programs of the archive.
        is_parameter: Whether it is a `torch.nn.Parameter`.
        dtype: Dtype of the tensor; all tensors of one member have the same.
        device: Where the tensor was.
        requires_grad: Whether it requires grad.
        sizes: Its shape.
        strides: Its strides, in elements.
        offset: Where it begins in the member, in elements.
    """

    member: str
    memory: int
    is_parameter: bool
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Number of bytes that the tensor would have if it repeated none."""
        return math.prod(self.sizes) * self.dtype.itemsize

    @property
    def end_bytes(self) -> int:
        """Number of the member's bytes up to the tensor's last one."""
        return end_bytes(self.sizes, self.strides, self.offset, self.dtype.itemsize)


def end_bytes(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, itemsize: int) -> int:
    """Where a tensor ends in its storage, in bytes; 0 when it has no element.

    Example:
        >>> end_bytes((2, 3), (3, 1), 1, 4)
        28
    """
    if 0 in sizes:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return (offset + last + 1) * itemsize


def write_payloads(payloads: Mapping[str, Payload]) -> bytes:
    """The payloads as JSON, in the schema of torch, which overlooks our `memory`."""
    return json.dumps({"config": {name: _to_json(payload) for name, payload in payloads.items()}}).encode()


def read_payloads(text: bytes, subject: str, *, memory_of: Callable[[str], int] | None = None) -> dict[str, Payload]:
    """The payloads that `write_payloads` wrote, or torch.

    Args:
        text: JSON.
        subject: Names the file and member in errors.
        memory_of: Gives the number of a member's memory; where it is None, the table tells.

    Raises:
        FormatError: It is not such a text, or a tensor is pickled.
    """
    with _telling(subject):
        entries = _entries(text)
        return {name: _from_json(entry, memory_of) for name, entry in entries.items()}


def pickled_names(text: bytes, subject: str) -> list[str]:
    """Names of the tensors and objects in a table whose bytes are a pickle.

    Raises:
        FormatError: It is no table; `subject` names the file and member.
    """
    with _telling(subject):
        return [name for name, entry in _entries(text).items() if entry["use_pickle"] is not False]


@contextmanager
def _telling(subject: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise FormatError(
            subject,
            found=f"a table of tensors that cannot be read ({type(error).__name__}: {first_line(error)})",
            expected="tensors as raw bytes",
            fix="Save the program again.",
        ) from error


def _entries(text: bytes) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(text)["config"]
    return entries


def _to_json(payload: Payload) -> dict[str, Any]:
    meta = {
        "dtype": dtype_codes()[payload.dtype],
        "sizes": [{"as_int": size} for size in payload.sizes],
        "requires_grad": payload.requires_grad,
        "device": {"type": payload.device.type, "index": payload.device.index},
        "strides": [{"as_int": stride} for stride in payload.strides],
        "storage_offset": {"as_int": payload.offset},
        "layout": _STRIDED,
    }
    return {
        "path_name": payload.member,
        "is_param": payload.is_parameter,
        "use_pickle": False,
        "tensor_meta": meta,
        "memory": payload.memory,
    }


def _from_json(entry: Mapping[str, Any], memory_of: Callable[[str], int] | None) -> Payload:
    meta = entry["tensor_meta"]
    if entry["use_pickle"] is not False or meta["layout"] != _STRIDED:
        raise ValueError("a tensor that is pickled, or not dense")
    sizes, strides = (tuple(_count(item["as_int"]) for item in meta[key]) for key in ("sizes", "strides"))
    if len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(sizes)} sizes and {len(strides)} strides")
    device = meta["device"]
    return Payload(
        member=str(entry["path_name"]),
        memory=_count(entry["memory"]) if memory_of is None else memory_of(str(entry["path_name"])),
        is_parameter=bool(entry["is_param"]),
        dtype=_dtypes_by_code()[meta["dtype"]],
        device=torch.device(device["type"], device["index"]),
        requires_grad=bool(meta["requires_grad"]),
        sizes=sizes,
        strides=strides,
        offset=_count(meta["storage_offset"]["as_int"]),
    )


@cache
def _dtypes_by_code() -> dict[int, torch.dtype]:
    return {code: dtype for dtype, code in dtype_codes().items()}


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{quoted(value)} for a number")
    return value
