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
from intarsia.core.writes import arguments_at
from intarsia.errors import PositionError

_ALONG_DIM = ("index_copy", "index_add", "index_fill", "scatter", "scatter_add", "scatter_reduce")
_COUNTS_BACK = ("index_fill", "index_put")
_SAME_NUMBERS = ("view", "reshape", "expand", "unsqueeze", "squeeze", "alias", "detach", "_to_copy", "to", "clone")


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
    while index.op == "call_function" and getattr(index.target, "overloadpacket", None) is not None:
        if index.target.overloadpacket.__name__ not in _SAME_NUMBERS:  # type: ignore[union-attr]
            break
        (index, *_) = index.all_input_nodes
    return names.get(index.name, f"position %{index.name}")


def check_position(index: torch.Tensor, dim: int, size: int, counts_back: bool, subject: str, consequence: str) -> None:  # noqa: FBT001, PLR0917 - called by generated code
    """Refuse a position outside of a state entry.

    Args:
        index: Integer tensor of any shape.
        dim: Dim of the entry that it counts along.
        size: Size of that dim.
        counts_back: Whether -1 is the last position.
        subject: How the user knows the index.
        consequence: What the error says of the state.

    Raises:
        PositionError: An element is out of range.
    """
    if index.numel() == 1:
        lowest = highest = index.item()
    elif index.numel():
        lowest, highest = (int(bound) for bound in index.aminmax())
    else:
        return
    least = -size if counts_back else 0
    if lowest < least or highest >= size:
        wrong = lowest if lowest < least else highest
        raise PositionError(
            subject,
            found=f"index {wrong}, which is out of bounds for dimension {dim} with size {size}",
            expected=f"{least} to {size - 1}",
            consequence=consequence,
            fix="Pass a position inside of the state, or make the state larger.",
        )
