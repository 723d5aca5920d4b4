"""A program as bytes: its graph, and its state as it lies in memory.

    size of the header u64 | header (JSON) | graph (JSON) | tensors

The graph is torch's own serialisation. Reading it evaluates expressions, so only a source that is trusted as native
code is may be read.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import torch

from intarsia._torch import deserialize_graph, serialize_graph

_SIZE = struct.Struct("<Q")


def pack_program(program: torch.export.ExportedProgram) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a program, and where its weights lie in them: position and number of bytes."""
    graph = serialize_graph(program, {})
    tensors = {name: _plain(value) for name, value in program.constants.items() if isinstance(value, torch.Tensor)}
    entries = [
        (name, str(x.dtype).removeprefix("torch."), list(x.shape), str(program.constants[name].device), x.nbytes)
        for name, x in tensors.items()
    ]
    header = json.dumps({"graph": len(graph), "tensors": entries}).encode()
    pieces = [_SIZE.pack(len(header)), header, graph, *(_bytes_of(value) for value in tensors.values())]
    places, offset = [], sum(map(len, pieces[:3]))
    for value in tensors.values():
        places.append((offset, value.nbytes))
        offset += value.nbytes
    return b"".join(pieces), [place for place in places if place[1]]


def unpack_program(source: memoryview) -> torch.export.ExportedProgram:
    """The program that `pack_program` wrote; its tensors are copies."""
    (size,) = _SIZE.unpack(source[: _SIZE.size])
    start = _SIZE.size + size
    header: dict[str, Any] = json.loads(bytes(source[_SIZE.size : start]))
    end = start + header["graph"]
    graph = json.loads(bytes(source[start:end]))
    tensors = {}
    for name, dtype, shape, device, nbytes in header["tensors"]:
        tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        if nbytes:
            tensors[name].reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(source[end : end + nbytes], np.uint8)
        tensors[name] = tensors[name].to(device)
        end += nbytes
    return deserialize_graph(graph, {}, tensors)


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _bytes_of(value: torch.Tensor) -> bytes:
    return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.nbytes else b""
