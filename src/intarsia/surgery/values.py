"""Values of the walk: a node of the new graph, a constant, or a container of such.

A partition may return any nesting of lists, tuples and dicts. While the walk goes on such a result is a container of
nodes, so that an element of it is found without a node of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from intarsia._torch import TreeSpec, pytree

Value = Any
"""A node of the new graph, a constant, or a container of such."""


def is_container(value: Value) -> bool:
    """Whether elements are taken from the value itself, without a node."""
    return isinstance(value, (tuple, list, dict))


def flatten(structure: Value) -> tuple[list[Value], TreeSpec]:
    """Leaves and structure of a value, with plain containers in place of fx's immutable ones."""
    return pytree.tree_flatten(_plain(structure))


def plain_spec(spec: TreeSpec) -> TreeSpec:
    """The structure with fx's immutable containers replaced by the plain ones that the user wrote."""
    if "immutable_" not in str(spec):
        return spec
    return flatten(pytree.tree_unflatten([_Leaf()] * spec.num_leaves, spec))[1]


def tensor_of(value: Value) -> torch.Tensor | None:
    """The fake tensor that describes a node of the new graph, or None when the value is no tensor."""
    described = value.meta.get("val") if isinstance(value, Node) else None
    return described if isinstance(described, torch.Tensor) else None


class _Leaf:
    """Stands for a leaf while a structure is rebuilt."""


def _plain(structure: Any) -> Any:
    if type(structure) in (list, immutable_list):
        return [_plain(item) for item in structure]
    if type(structure) in (dict, immutable_dict):
        return {key: _plain(item) for key, item in structure.items()}
    if type(structure) is tuple:
        return tuple(_plain(item) for item in structure)
    return structure
