"""Random changes of files, each drawn from a seed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from builders.hostile import GRAPH, Members, pack

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63), 10**30, 0.5, "", "x", "as_int", "\x1b[2J", "a.b", "s0",
    "None", [], {}, [[]], {"as_int": 3}, {"as_name": "x"}, "torch.ops.aten.relu.default", "NaN", "u0", "linear.weight",
    "../x",
)  # fmt: skip


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


def mutate_members(draw: random.Random, path: Path, members: Members) -> str:
    """Write an archive with one member changed, and say which; hashes in it are those of what it holds."""
    texts = [name for name in members if name.endswith(".json")]
    name = GRAPH if draw.random() < 0.6 else draw.choice(texts)
    changed = json.dumps(mutate_json(draw, json.loads(members[name]))).encode()
    pack(path, {**members, name: changed})
    return name


def _mutate_text(draw: random.Random, text: str) -> str:
    position = draw.randrange(len(text) + 1)
    return (
        text[:position]
        + draw.choice(["", "(", ")", "'", '"', "x", "9", ".", ",", " ", "\\", "\n"])
        + text[position + 1 :]
    )


def _holders(values: Any) -> list[Any]:
    found, waiting = [], [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list) and value:
            found.append(value)
            waiting += value.values() if isinstance(value, dict) else value
    return found
