"""Random changes of files, each drawn from a seed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from builders.expressions import draw_expression
from builders.good_files import GoodFile
from builders.hostile import Members, pack, zip_members
from intarsia.core.sections import PREAMBLE, aligned
from intarsia.formats.archive.layout import MANIFEST_HASH_MEMBER, MANIFEST_MEMBER, VECTOR_TENSORS_MEMBER

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, "", "x", "as_int", "\x1b[2J", "a.b",
    "s0", "None", [], {}, [[]], {"as_int": 3}, {"as_name": "x"}, "torch.ops.aten.relu.default", "NaN", "u0",
    "linear.weight", "../x", "\u202e",
    "9" * 5000, "a" * 2000, "(f32[b]) -> (f32[b*b])", {"a": {"b": [1, 2]}}, ["a", "b"],
)  # fmt: skip
_PIECES = ["", "(", ")", "'", '"', "x", "9", ".", ",", " ", "\\", "\n", "\0", "\x9b", "[", "*"]
_HEADERS = re.compile(rb"PK(?:\x01\x02|\x03\x04|\x05\x06|\x07\x08)")
_HEADER_BYTES = 46
_STORED = re.compile(r"data/(?:weights|constants)/[a-z]+_\w*[0-9]")


class Mutation(NamedTuple):
    """A kind of change.

    Attributes:
        write: Writes a changed file.
        is_honest: Whether what a file tells of itself is true of the changed one, so that it can be a good file of
            something else.
    """

    write: Callable[[random.Random, GoodFile, Path], object]
    is_honest: bool


def mutate_file(draw: random.Random, good: GoodFile, path: Path, name: str) -> bool:
    """Write a file that is changed in the way of this name; say whether it can be a good file of something else."""
    mutation = MUTATIONS[name]
    mutation.write(draw, good, path)
    return mutation.is_honest or (name in _UNHASHED and not good.has_hashes)


def applies(name: str, good: GoodFile) -> bool:
    """Whether a file can be changed so."""
    if name == "engine header":
        return bool(_engine_members(good.members))
    return name != "tensors of vectors" or VECTOR_TENSORS_MEMBER in good.members


# Bytes


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes with some of them changed, cut out, or put in again."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        position = draw.randrange(len(changed))
        change = draw.randrange(4)
        if change == 0:
            changed[position] ^= 1 << draw.randrange(8)
        elif change == 1:
            changed[position] = draw.randrange(256)
        elif change == 2:
            del changed[position : position + draw.randrange(1, 40)]
        else:
            start = draw.randrange(len(changed))
            changed[position:position] = changed[start : start + draw.randrange(1, 40)]
        if not changed:
            break
    return bytes(changed)


def _flip_bit(draw: random.Random, good: GoodFile, path: Path) -> None:
    changed = bytearray(good.data)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    path.write_bytes(changed)


def _cut(draw: random.Random, good: GoodFile, path: Path) -> None:
    path.write_bytes(good.data[: draw.randrange(len(good.data))])


def _change_bytes(draw: random.Random, good: GoodFile, path: Path) -> None:
    path.write_bytes(mutate_bytes(draw, good.data))


def _change_headers(draw: random.Random, good: GoodFile, path: Path) -> None:
    """Other offsets, sizes, flags and names in the headers of the archive."""
    changed = bytearray(good.data)
    starts = [match.start() for match in _HEADERS.finditer(good.data)]
    for _ in range(draw.choice([1, 1, 2])):
        position = draw.choice(starts) + draw.randrange(4, _HEADER_BYTES)
        form = draw.choice(["<B", "<H", "<I"])
        size = struct.calcsize(form)
        if position + size <= len(changed):
            (known,) = struct.unpack_from(form, changed, position)
            value = draw.choice([0, 1, known + 1, known - 1, known + 64, known ^ 8, 1 << 31, -1, draw.choice(starts)])
            struct.pack_into(form, changed, position, value % (1 << 8 * size))
    path.write_bytes(changed)


# Members


def _swap_members(draw: random.Random, good: GoodFile, path: Path) -> None:
    zip_members(path, _swapped(draw, good.members))


def _swap_members_honestly(draw: random.Random, good: GoodFile, path: Path) -> None:
    manifest = (MANIFEST_MEMBER, MANIFEST_HASH_MEMBER)
    others = {name: data for name, data in good.members.items() if name not in manifest}
    kept = {name: data for name, data in good.members.items() if name in manifest}
    pack(path, {**_swapped(draw, others), **kept})


def _swapped(draw: random.Random, members: Members) -> Members:
    """Members with two exchanged, or one renamed, removed, repeated under another name, or exchanged for bytes."""
    changed = dict(members)
    one, other = draw.sample([*members], 2)
    change = draw.randrange(5)
    if change == 0:
        changed[one], changed[other] = changed[other], changed[one]
    elif change == 1:
        changed[draw.choice(["../x", "x.so", "data/weights/model.pt", f"{one}0", one.upper()])] = changed.pop(one)
    elif change == 2:
        del changed[one]
    elif change == 3:
        changed[f"{one}_1"] = changed[other]
    else:
        changed[one] = draw.choice([b"", b"{}", b"[]", b"0", b"null", b"\x80\x04.", bytes(64), members[one] * 2])
    return changed


# JSON


def mutate_json(draw: random.Random, values: Any) -> Any:
    """JSON values with one of them replaced, removed, repeated or exchanged."""
    places = [
        (holder, key)
        for holder in _holders(values)
        for key in (holder if isinstance(holder, dict) else range(len(holder)))
    ]
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        holder, key = draw.choice(places)
        other_holder, other_key = draw.choice(places)
        try:
            change = draw.randrange(5)
            if change == 0:
                holder[key] = draw.choice(_VALUES)
            elif change == 1:
                del holder[key]
            elif change == 2:
                holder[key] = json.loads(json.dumps(other_holder[other_key]))
            elif change == 3 and isinstance(holder, list):
                holder.insert(key, json.loads(json.dumps(holder[key])))
            elif isinstance(holder[key], str):
                holder[key] = _mutate_text(draw, holder[key])
            elif isinstance(holder[key], int):
                holder[key] = draw.choice([-1, 0, 1, 2, 99, 2**40]) + holder[key]
        except (KeyError, IndexError):
            continue  # gone, by the change before
    return values


def mutate_members(draw: random.Random, path: Path, members: Members) -> str:
    """Write an archive with one member changed, and say which; hashes in it are those of what it holds."""
    name = _draw_text(draw, members)
    pack(path, {**members, name: _mutated_text(draw, members[name])})
    return name


def _change_values(draw: random.Random, good: GoodFile, path: Path) -> None:
    name = _draw_text(draw, good.members)
    zip_members(path, {**good.members, name: _mutated_text(draw, good.members[name])})


def _change_values_honestly(draw: random.Random, good: GoodFile, path: Path) -> None:
    mutate_members(draw, path, good.members)


def _change_expressions(draw: random.Random, good: GoodFile, path: Path) -> None:
    """Sizes that are other expressions, as torch could write them, and other ranges."""
    name = draw.choice(_graphs(good.members))
    values = json.loads(good.members[name])
    symbols = re.findall(r"Symbol\('(\w+)'", good.members[name].decode()) or ["s0"]
    texts = [draw_expression(draw, [*symbols, "u9"], draw.randrange(1, 40)) for _ in range(draw.choice([1, 1, 3]))]
    tensors = values["graph_module"]["graph"]["tensor_values"].values()
    sizes = [size for tensor in tensors for key in ("sizes", "strides") for size in tensor[key]]
    for size in draw.sample(sizes, min(len(sizes), draw.choice([1, 2, 8]))):
        hint = draw.choice([None, {"as_int": draw.choice([0, 1, 3, 2**40])}])
        size.clear()
        size["as_expr"] = {"expr_str": draw.choice(texts), "hint": hint}
    for bounds in values["range_constraints"].values():
        if draw.random() < 0.3:
            bounds[draw.choice([*bounds])] = draw.choice([None, 0, 2, 10**9, 2**62, -5])
    pack(path, {**good.members, name: json.dumps(values).encode()})


def _change_tensors_of_vectors(draw: random.Random, good: GoodFile, path: Path) -> None:
    data = good.members[VECTOR_TENSORS_MEMBER]
    (size,) = struct.unpack_from("<Q", data)
    header = _mutated_text(draw, data[8 : 8 + size])
    told = draw.choice([len(header), len(header), len(header) - 1, 2**62])
    pack(path, {**good.members, VECTOR_TENSORS_MEMBER: struct.pack("<Q", told) + header + data[8 + size :]})


def _draw_text(draw: random.Random, members: Members) -> str:
    if draw.random() < 0.5:
        return draw.choice(_graphs(members))
    return draw.choice([name for name in members if name.endswith(".json")])


def _mutated_text(draw: random.Random, text: bytes) -> bytes:
    return json.dumps(mutate_json(draw, json.loads(text))).encode()


def _mutate_text(draw: random.Random, text: str) -> str:
    position = draw.randrange(len(text) + 1)
    return text[:position] + draw.choice(_PIECES) + text[position + 1 :]


def _graphs(members: Members) -> list[str]:
    return [name for name in members if name.startswith("models/")]


def _holders(values: Any) -> list[Any]:
    found, waiting = [], [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list) and value:
            found.append(value)
            waiting += value.values() if isinstance(value, dict) else value
    return found


# Engines


def _change_engine(draw: random.Random, good: GoodFile, path: Path) -> None:
    """Another header of an engine's container; whatever tells of it tells the truth."""
    name = draw.choice(_engine_members(good.members))
    data = good.members[name]
    old = _split_container(data)
    fields = mutate_json(draw, json.loads(old[0]))
    changed = _joined_container(json.dumps(fields).encode(), old[1])
    members = {**good.members, name: changed}
    told = {"size_bytes": len(changed), "sha256": _sha256(_split_container(changed)[0])}
    told |= {key: fields[key] for key in ("name", "backend", "backend_version", "target", "signature") if key in fields}
    for table in [one for one in members if one.endswith("_config.json")]:
        values = json.loads(members[table])
        for entry in values["config"].values():
            if name.endswith(f"/{entry['path_name']}"):
                entry["tensor_meta"]["sizes"] = [{"as_int": len(changed)}]
        members[table] = json.dumps(values).encode()
    if MANIFEST_MEMBER in members:
        manifest = json.loads(members[MANIFEST_MEMBER])
        for method in manifest["methods"].values():
            for entry in method["engines"]:
                if entry["sha256"] == _sha256(old[0]):
                    entry.update(told)
        members[MANIFEST_MEMBER] = json.dumps(manifest).encode()
    pack(path, members)


def _engine_members(members: Members) -> list[str]:
    return [name for name, data in members.items() if _STORED.fullmatch(name) and data.startswith(b"INTARSIA")]


def _split_container(data: bytes) -> tuple[bytes, bytes]:
    """Header and sections of a container."""
    size = PREAMBLE.unpack(data[: PREAMBLE.size])[2]
    end = PREAMBLE.size + size
    return data[PREAMBLE.size : end], data[aligned(end) :]


def _joined_container(header: bytes, sections: bytes) -> bytes:
    head = PREAMBLE.pack(b"INTARSIA", 1, len(header), hashlib.sha256(header).digest()) + header
    return head.ljust(aligned(len(head)), b"\0") + sections


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


MUTATIONS: Mapping[str, Mutation] = {
    "bit": Mutation(_flip_bit, is_honest=False),
    "cut": Mutation(_cut, is_honest=False),
    "bytes": Mutation(_change_bytes, is_honest=False),
    "archive headers": Mutation(_change_headers, is_honest=False),
    "members": Mutation(_swap_members, is_honest=False),
    "values": Mutation(_change_values, is_honest=False),
    "honest members": Mutation(_swap_members_honestly, is_honest=True),
    "honest values": Mutation(_change_values_honestly, is_honest=True),
    "expressions": Mutation(_change_expressions, is_honest=True),
    "tensors of vectors": Mutation(_change_tensors_of_vectors, is_honest=True),
    "engine header": Mutation(_change_engine, is_honest=True),
}
"""Every kind of change, by name."""

# A file without hashes tells nothing that these make false.
_UNHASHED = {"members", "values"}
