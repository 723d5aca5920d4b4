"""Nested arguments to flat leaves and flat outputs to nested ones, each after a structure that is read once."""

from __future__ import annotations

import collections
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from intarsia._torch import TreeSpec, close_container, container_kind, open_container
from intarsia.errors import ArgumentError, with_article

# Each flattens like the plain type, and a caller means the plain type by it.
_PLAIN_KINDS: dict[Any, Any] = {immutable_dict: dict, immutable_list: list, torch.Size: tuple}


@dataclass(frozen=True)
class Leaf:
    """One value of the arguments, under the name that the user knows it by (`tokens['ids']`)."""

    name: str


@dataclass(frozen=True)
class Branch:
    """One container of the arguments.

    Attributes:
        name: Name that the user knows it by.
        kind: Type of the container, as torch flattens it.
        context: What else torch remembers of it: the keys of a dict, the class of a named tuple.
        children: Structures of what it holds, in torch's order.
    """

    name: str
    kind: Any
    context: Any
    children: tuple[Structure, ...]


Structure: TypeAlias = Leaf | Branch


def read_structure(spec: TreeSpec, name: str) -> Structure:
    """The structure that a torch spec describes, with names below `name`."""
    if spec.is_leaf():
        return Leaf(name)
    children = spec.children()
    keys = _child_keys(spec, len(children))
    kind = _PLAIN_KINDS.get(spec.type, spec.type)
    named = tuple(read_structure(child, f"{name}{key}") for child, key in zip(children, keys, strict=True))
    return Branch(name, kind, spec.context, named)


def _child_keys(spec: TreeSpec, count: int) -> list[str]:
    context = spec.context
    if _is_dict(spec.type):
        keys = context[1] if spec.type is collections.defaultdict else context
        return [f"[{key!r}]" for key in keys]
    if spec.type is collections.namedtuple:
        return [f".{field}" for field in context._fields]
    # `torch.export.register_dataclass` keeps the field names as the first part of the context.
    if isinstance(context, list) and context and isinstance(context[0], list) and len(context[0]) == count:
        return [f".{field}" for field in context[0]]
    return [f"[{i}]" for i in range(count)]


def _is_dict(kind: Any) -> bool:
    """Whether a container type is a dict that torch flattens by its keys."""
    return kind in (dict, immutable_dict, collections.OrderedDict, collections.defaultdict)


def flatten(structure: Structure, value: Any, leaves: list[Any]) -> None:
    """Append the leaves of `value` to `leaves`, in the order of `structure`.

    Raises:
        ArgumentError: A container is of another type, or holds other things, than `structure` says.
    """
    if isinstance(structure, Leaf):
        leaves.append(value)
        return
    for child, child_value in zip(structure.children, _open(structure, value), strict=True):
        flatten(child, child_value, leaves)


def _open(branch: Branch, value: Any) -> list[Any]:
    kind = container_kind(value)
    if _PLAIN_KINDS.get(kind, kind) is not branch.kind:
        raise _misfit(branch, with_article(type(value).__name__), with_article(_kind_name(branch)))
    if branch.kind is dict:
        return _read_keys(branch, value)
    children, context = open_container(kind, value)
    if len(children) != len(branch.children):
        raise _misfit(branch, f"{len(children)} entries", f"{len(branch.children)}")
    if context != branch.context:
        raise _misfit(branch, _context_text(branch, context), _context_text(branch, branch.context))
    return children


def _read_keys(branch: Branch, value: dict[Any, Any]) -> list[Any]:
    keys = branch.context
    if len(value) == len(keys) and all(key in value for key in keys):
        return [value[key] for key in keys]
    missing = [key for key in keys if key not in value]
    extra = [key for key in value if key not in keys]
    raise ArgumentError(
        f"input {branch.name!r}",
        found=" and ".join(
            f"{what} {', '.join(map(repr, which))}" for what, which in (("no key", missing), ("key", extra)) if which
        ),
        expected=f"the keys {', '.join(map(repr, keys))}",
        fix=suggest(extra, missing) or "Pass exactly these keys.",
    )


def suggest(unknown: Sequence[Any], known: Sequence[Any]) -> str:
    """A sentence that names what a misspelt name was meant to be, or nothing."""
    names = [name for name in known if isinstance(name, str)]
    for name in unknown:
        near = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
        if near:
            return f"Did you mean {near[0]!r} by {name!r}?"
    return ""


def _misfit(branch: Branch, found: str, expected: str) -> ArgumentError:
    return ArgumentError(
        f"input {branch.name!r}",
        found=found,
        expected=expected,
        fix="Pass the structure that the program was exported with.",
    )


def _kind_name(branch: Branch) -> str:
    named = branch.context if branch.kind is collections.namedtuple else branch.kind
    return str(getattr(named, "__name__", named))


def _context_text(branch: Branch, context: Any) -> str:
    return with_article(getattr(context, "__name__", None) or f"{_kind_name(branch)} of {context!r}")


def output_builder(spec: TreeSpec) -> Callable[[Sequence[Any]], Any]:
    """A function from flat outputs to the structure of `spec`, made of plain dicts, lists and tuples."""
    if spec.is_leaf():
        return itemgetter(0)
    kind = _PLAIN_KINDS.get(spec.type, spec.type)
    if kind in (tuple, list, dict) and all(child.is_leaf() for child in spec.children()):
        return _flat_builder(kind, spec.context)
    build = _builder(spec)
    return lambda leaves: build(iter(leaves))


def _flat_builder(kind: type, keys: Any) -> Callable[[Sequence[Any]], Any]:
    return (lambda leaves: dict(zip(keys, leaves, strict=True))) if kind is dict else kind


def _builder(spec: TreeSpec) -> Callable[[Iterator[Any]], Any]:
    if spec.is_leaf():
        return next
    kind, context = _PLAIN_KINDS.get(spec.type, spec.type), spec.context
    children = [_builder(child) for child in spec.children()]
    return lambda leaves: close_container(kind, [child(leaves) for child in children], context)


def leaf_names(structure: Structure) -> Iterator[str]:
    """Names of the leaves of a structure, in order."""
    if isinstance(structure, Leaf):
        return iter((structure.name,))
    return chain.from_iterable(map(leaf_names, structure.children))
