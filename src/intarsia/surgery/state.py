"""State of a hybrid, known by identity: one object is one entry and one name, wherever it is read.

A tensor read by two partitions, under one name or two, is one entry. Two tensors never share a name: the one met
later takes its full path, and a number where even that is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule

from intarsia._torch import is_buffer, non_persistent_buffers
from intarsia.errors import StateError

_OWN_ATTRIBUTES = frozenset([*dir(torch.nn.Module()), *dir(GraphModule)])
_ORDER = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


@dataclass
class StateEntry:
    """One tensor or script object that the hybrid reads.

    Attributes:
        value: The object itself.
        name: Its name in the exported program.
        path: Where it was met first ("submod_1.weight").
        kind: Parameter, buffer, constant or script object.
        persistent: Whether a buffer belongs to the state dict; True for everything else.
        aliases: Other paths under which the hybrid reads it.
    """

    value: Any
    name: str
    path: str
    kind: InputKind
    persistent: bool
    aliases: list[str]


def resolve(module: torch.nn.Module, target: str, path: str) -> tuple[torch.nn.Module, str, Any]:
    """Owner, attribute name and object that a `get_attr` of a module names.

    Raises:
        StateError: There is no such attribute.
    """
    owner: Any = module
    *parents, last = target.split(".")
    for depth, part in enumerate([*parents, last]):
        if not hasattr(owner, part):
            holder = join(path, ".".join(parents[:depth]))
            raise StateError(
                f"attribute '{join(path, target)}'",
                found=f"no '{part}' in {repr(holder) if holder else 'the hybrid'}",
                expected="a parameter, buffer, tensor, script object or submodule",
                fix="Register what the graph reads on the module whose graph reads it.",
                node=target,
            )
        if depth < len(parents):
            owner = getattr(owner, part)
    return owner, last, getattr(owner, last)


def join(path: str, name: str) -> str:
    """Dotted path of a name below a path, either of which may be empty."""
    return f"{path}.{name}" if path and name else path or name


class StateTable:
    """Entries by identity, in the order of an exported program: parameters, buffers, constants, script objects."""

    def __init__(self) -> None:
        self._entries: dict[int, StateEntry] = {}
        self._names: set[str] = set()
        self._prefixes: set[str] = set()

    def __iter__(self) -> Iterator[StateEntry]:
        return iter(sorted(self._entries.values(), key=lambda entry: _ORDER.index(entry.kind)))

    def read(self, found: tuple[torch.nn.Module, str, Any], target: str, path: str) -> StateEntry:
        """Enter what a `get_attr` reads, or find its entry.

        Args:
            found: Owner, attribute name and object, as `resolve` tells them.
            target: What the `get_attr` names, from the module whose graph holds it.
            path: Dotted path of that module.

        Raises:
            StateError: The object is of a kind that cannot be exported.
        """
        owner, last, value = found
        kind, persistent = _kind(owner, last, value, join(path, target))
        entry = self._entries.get(id(value))
        if entry is None:
            full = join(path, target)
            entry = StateEntry(value, self._free_name(target, full), full, kind, persistent, [])
            self._entries[id(value)] = entry
            return entry
        if join(path, target) not in (entry.path, *entry.aliases):
            entry.aliases.append(join(path, target))
        if _ORDER.index(kind) < _ORDER.index(entry.kind):
            entry.kind, entry.persistent = kind, persistent
        elif kind is entry.kind:
            entry.persistent = entry.persistent or persistent
        return entry

    def rename(self, entry: StateEntry) -> None:
        """Give an entry another name than the one that it has, which something else needs."""
        entry.name = self._free_name(entry.path, entry.path)

    def _free_name(self, name: str, path: str) -> str:
        for candidate in (name, path):
            if self._claim(candidate):
                return candidate
        flat = path.replace(".", "_")  # a dotted name could have a prefix that stays taken whatever follows
        return next(name for number in itertools.count(1) if self._claim(name := f"{flat}_{number}"))

    def _claim(self, name: str) -> bool:
        """Take a name unless it is taken, or a module could not have it.

        It cannot where one of two names would be a module that holds the other, nor where modules have an attribute
        of their own by that name ("type").
        """
        parts = name.split(".")
        if not _OWN_ATTRIBUTES.isdisjoint(parts):
            return False
        prefixes = {".".join(parts[:end]) for end in range(1, len(parts))}
        if name in self._names or name in self._prefixes or prefixes & self._names:
            return False
        self._names.add(name)
        self._prefixes |= prefixes
        return True


def _kind(owner: torch.nn.Module, name: str, value: Any, path: str) -> tuple[InputKind, bool]:
    if isinstance(value, torch.nn.Parameter) and type(value.data) is torch.Tensor:
        return InputKind.PARAMETER, True
    if type(value) is torch.Tensor:
        if not is_buffer(owner, name):
            return InputKind.CONSTANT_TENSOR, True
        return InputKind.BUFFER, name not in non_persistent_buffers(owner)
    if isinstance(value, torch.ScriptObject):
        return InputKind.CUSTOM_OBJ, True
    raise StateError(
        f"attribute '{path}'",
        found=f"a {type(value).__module__}.{type(value).__qualname__}",
        expected="a parameter, a buffer, a plain tensor or a script object",
        fix="Store its plain tensors as attributes and rebuild it inside the model.",
        node=name,
    )
