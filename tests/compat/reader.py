"""A reader of files of intarsia that follows docs/format.md and imports nothing of intarsia.

It shows that the page says enough: standard library, and torch for tensors alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

MANIFEST = "extra/intarsia_manifest.json"
ENGINE_OPERATOR = "torch.ops.intarsia.run_engine.default"
DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16,
    7: torch.float32, 8: torch.float64, 9: torch.complex32, 10: torch.complex64, 11: torch.complex128,
    12: torch.bool, 13: torch.bfloat16, 28: torch.uint16, 29: torch.float8_e4m3fn, 30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz, 32: torch.float8_e5m2fnuz, 33: torch.float8_e8m0fnu, 34: torch.uint32,
    35: torch.uint64,
}  # fmt: skip
SAFETENSORS = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "C64": torch.complex64, "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64,
}  # fmt: skip


class Bad(Exception):
    """The file is not as the page says."""


class Engine(NamedTuple):
    """An engine container; `portable` is the whole portable form, and `payload` the compiled one, where it has them."""

    header: Mapping[str, Any]
    header_sha256: str
    portable: bytes | None
    payload: bytes | None


class Method(NamedTuple):
    """A method: what the manifest says, its graph, its tensors by name, their memories, and its engines by constant."""

    facts: Mapping[str, Any]
    graph: Mapping[str, Any]
    weights: Mapping[str, torch.Tensor]
    constants: Mapping[str, torch.Tensor]
    memories: Mapping[str, int]
    engines: Mapping[str, Engine]


class Call(NamedTuple):
    """A test vector."""

    method: str
    inputs: list[Any]
    outputs: list[Any]
    written: dict[int, Any]


class File:
    """A file, read whole: every hash is compared.

    Attributes:
        members: Bytes of each member.
        positions: Where each begins in the file.
        manifest: The manifest.
        methods: The methods by name.
        calls: The test vectors.
    """

    def __init__(self, path: Path) -> None:
        self.members, self.positions = _read_archive(path.read_bytes(), path)
        self.manifest = self._read_manifest()
        self.methods = {name: self._read_method(facts) for name, facts in self.manifest["methods"].items()}
        self.calls = list(self._read_calls())

    def _read_manifest(self) -> Any:
        text = self.members[MANIFEST]
        manifest = json.loads(text)
        _require(manifest["format_version"] == 1, "format version")
        _require(_sha256(text) == self.members["extra/intarsia_manifest.sha256"].decode(), "hash of the manifest")
        listed = manifest["members"]
        own = {MANIFEST, "extra/intarsia_manifest.sha256"}
        _require(listed.keys() == self.members.keys() - own, "members")
        for name, entry in listed.items():
            _require(entry["size_bytes"] == len(self.members[name]), name)
            _require(entry["sha256"] == _sha256(self.members[name]), name)
        _require(self.members["byteorder"].decode() == manifest["byte_order"] == "little", "byte order")
        return manifest

    def _read_method(self, facts: Mapping[str, Any]) -> Method:
        program = facts["program"]
        tables = {
            kind: json.loads(self.members[f"data/{kind}/{program}_{kind}_config.json"])["config"]
            for kind in ("weights", "constants")
        }
        tensors = {
            kind: {name: self._read_tensor(kind, entry) for name, entry in table.items()}
            for kind, table in tables.items()
        }
        graph = json.loads(self.members[f"models/{program}.json"])
        version = graph["schema_version"]
        _require(f"{version['major']}.{version['minor']}" == self.manifest["graph_schema"], "schema")
        holders = {**tensors["weights"], **tensors["constants"]}
        engines = {
            entry["constant"]: self._read_engine(bytes(holders[entry["constant"]].numpy()))
            for entry in facts["engines"]
        }
        memories = {name: entry["memory"] for table in tables.values() for name, entry in table.items()}
        return Method(facts, graph, tensors["weights"], tensors["constants"], memories, engines)

    def _read_tensor(self, kind: str, entry: Mapping[str, Any]) -> torch.Tensor:
        meta = entry["tensor_meta"]
        _require(entry["use_pickle"] is False and meta["layout"] == 7, "a dense tensor")
        data = bytearray(self.members[f"data/{kind}/{entry['path_name']}"])
        sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
        dtype = DTYPES[meta["dtype"]]
        if not data:
            return torch.empty(sizes, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).as_strided(sizes, strides, meta["storage_offset"]["as_int"])

    def _read_engine(self, data: bytes) -> Engine:
        magic, version, size, digest = struct.unpack_from("<8sII32s", data)
        _require((magic, version) == (b"INTARSIA", 1), "a container")
        text = data[48 : 48 + size]
        _require(hashlib.sha256(text).digest() == digest, "hash of a header")
        header = json.loads(text)
        start = _aligned(48 + size)
        sections: dict[str, dict[str, bytes]] = {}
        end = 0
        for section in header["sections"]:
            _require(section["offset"] == _aligned(end), "place of a section")
            _require(not any(data[start + end : start + section["offset"]]), "zeros before a section")
            end = section["offset"] + section["size"]
            content = data[start + section["offset"] : start + end]
            _require(_sha256(content) == section["sha256"], "hash of a section")
            sections.setdefault(section["name"], {})[section["sha256"]] = content
        _require(len(data) == start + end, "end of a container")
        (payload,) = sections.get("payload", {"": None}).values()
        (source,) = sections.get("source", {"": None}).values()
        portable = (
            None if source is None else self._put_together(source, header["constants"], sections.get("constant", {}))
        )
        return Engine(header, digest.hex(), portable, payload)

    def _put_together(self, rest: bytes, constants: list[Mapping[str, Any]], inside: Mapping[str, bytes]) -> bytes:
        beside = {entry["sha256"]: self.members[name] for name, entry in self.manifest["members"].items()}
        whole = bytearray()
        for constant in constants:
            gap = constant["offset"] - len(whole)
            whole += rest[:gap]
            rest = rest[gap:]
            content = inside.get(constant["sha256"]) or beside[constant["sha256"]]
            _require(len(content) == constant["size"], "size of a constant")
            whole += content
        return bytes(whole) + rest

    def _read_calls(self) -> Iterator[Call]:
        if not self.manifest["test_vectors"]:
            return
        fields = json.loads(self.members["data/test_vectors/calls.json"])
        tensors = read_safetensors(self.members["data/test_vectors/tensors.safetensors"])
        _require(len(fields["calls"]) == self.manifest["test_vectors"], "number of test vectors")
        for call in fields["calls"]:
            yield Call(
                call["method"],
                [_read_value(value, tensors) for value in call["inputs"]],
                [_read_value(value, tensors) for value in call["outputs"]],
                {position: _read_value(value, tensors) for position, value in call["written"]},
            )


def engine_calls(method: Method) -> list[tuple[str, str]]:
    """The engine calls of a method's graph, bodies left out: name of the state that holds the engine, and signature."""
    specs = [next(iter(spec.items())) for spec in method.graph["graph_module"]["signature"]["input_specs"]]
    held = {spec["arg"]["name"]: spec[f"{kind}_name"] for kind, spec in specs if f"{kind}_name" in spec}
    found = []
    for node in method.graph["graph_module"]["graph"]["nodes"]:
        if node["target"] == ENGINE_OPERATOR:
            given = {argument["name"]: argument["arg"] for argument in node["inputs"]}
            found.append((held[given["engine"]["as_tensor"]["name"]], given["signature"]["as_string"]))
    return found


def read_safetensors(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        content = bytearray(data[8 + size + start : 8 + size + end])
        dtype = SAFETENSORS[entry["dtype"]]
        empty = not math.prod(entry["shape"])
        tensors[name] = (torch.empty(0, dtype=dtype) if empty else torch.frombuffer(content, dtype=dtype)).reshape(
            entry["shape"]
        )
    return tensors


def _read_archive(data: bytes, path: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    members, positions = {}, {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            root, _, name = info.filename.partition("/")
            _require(root == "archive" and info.compress_type == 0 and info.flag_bits & 1 == 0, info.filename)
            name_size, extra_size = struct.unpack_from("<2H", data, info.header_offset + 26)
            position = info.header_offset + 30 + name_size + extra_size
            _require(position % 64 == 0, f"alignment of {name}")
            members[name], positions[name] = data[position : position + info.file_size], position
    return members, positions


def _read_value(pair: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    kind, value = pair
    if kind == "tensor":
        return tensors[value]
    if kind == "pairs":
        return torch.view_as_complex(tensors[value])
    return float(value) if kind == "float" else value


def _engine_names(facts: Mapping[str, Any]) -> list[str]:
    return [entry["constant"] for entry in facts["engines"]]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


def _require(holds: object, what: str) -> None:
    if not holds:
        raise Bad(what)
