"""Positions at which a program writes its state: checked before anything is written.

Torch checks an index while it writes, when other entries may have been written already. Here every index that a write
of state takes is checked as soon as it is known, against the size of the dim that it counts along; one that the graph
itself writes in place, where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from intarsia._torch import OpOverload
from intarsia.core.positions import source_of
from intarsia.core.writes import arguments_at

_ALONG_DIM = ("index_copy", "index_add", "index_fill", "scatter", "scatter_add", "scatter_reduce")
_COUNTS_BACK = ("index_fill", "index_put")


class Position(NamedTuple):
    """An index of a write.

    Attributes:
        tensor: Node of the index tensor.
        dim: Dim of the destination that it counts along.
        size: Size of that dim.
        counts_back: Whether -1 is the last position.
    """

    tensor: Node
    dim: int
    size: int
    counts_back: bool


def positions_of(node: Node) -> Iterator[Position]:
    """Positions that a call writes at, where its operator takes them as integer tensors and the sizes are fixed."""
    if not isinstance(node.target, OpOverload):
        return
    name = node.target.overloadpacket.__name__.removesuffix("_")
    if name in _ALONG_DIM:
        destination, dim, index = arguments_at(node, (0, 1, 2))
        indices = {dim: index}
    elif name == "index_put":
        destination, listed = arguments_at(node, (0, 1))
        indices = dict(enumerate(listed))
    else:
        return
    shape = destination.meta["val"].shape
    given: dict[Any, Node] = {dim: index for dim, index in indices.items() if isinstance(index, Node)}
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in given.values()):
        return
    for dim, index in given.items():
        if shape and isinstance(shape[dim], int):
            yield Position(index, dim % len(shape), shape[dim], name in _COUNTS_BACK)


def subject_of(index: Node, names: Mapping[str, str]) -> str:
    """How the user knows an index: as the input or the state entry that holds its numbers.

    Args:
        index: Node of the index tensor.
        names: What the user calls the program's placeholders, by node name.
    """
    source = source_of(index)
    return names.get(source.name, f"position %{source.name}")
