"""Positions in a tensor, and the check of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from intarsia.errors import PositionError

_SAME_NUMBERS = ("view", "reshape", "expand", "unsqueeze", "squeeze", "alias", "detach", "_to_copy", "to", "clone")


def source_of(index: Node) -> Node:
    """The node that an index has its numbers of: all of them, and no others.

    Example:
        >>> graph = torch.fx.Graph()
        >>> position = graph.placeholder("position")
        >>> source_of(graph.call_function(torch.ops.aten.unsqueeze.default, (position, 0)))
        position
    """
    while index.op == "call_function" and getattr(index.target, "overloadpacket", None) is not None:
        if index.target.overloadpacket.__name__ not in _SAME_NUMBERS:  # type: ignore[union-attr]
            break
        (index, *_) = index.all_input_nodes
    return index


def check_positions(  # noqa: PLR0917 - called by generated code
    index: torch.Tensor,
    dim: int,
    size: int,
    counts_back: bool,  # noqa: FBT001 - likewise
    subject: str,
    consequence: str,
    fix: str,
) -> None:
    """Refuse positions outside of a tensor.

    Args:
        index: Integer tensor of any shape.
        dim: Dim of the tensor that it counts along.
        size: Size of that dim.
        counts_back: Whether -1 is the last position.
        subject: How the user knows the index.
        consequence: What follows from it, or nothing.
        fix: What to do.

    Raises:
        PositionError: An element is out of range.

    Example:
        >>> check_positions(torch.tensor([0, 7]), 0, 8, False, "input 'position'", "", "")
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
            fix=fix,
        )


class InputPositions(NamedTuple):
    """An input that holds positions, and what they may be.

    Attributes:
        input: Its number, among an engine's inputs or a program's flat ones.
        name: Its name.
        dim: Dim that the positions count along.
        size: Size of that dim.
        counts_back: Whether -1 is the last position.
    """

    input: int
    name: str
    dim: int
    size: int
    counts_back: bool

    def check(self, inputs: Sequence[Any], subject: str) -> None:
        """Refuse inputs of which this one is out of range.

        Args:
            inputs: All of them.
            subject: What the input is called before its name.

        Raises:
            PositionError: It is.

        Example:
            >>> InputPositions(0, "ids", dim=0, size=8, counts_back=True).check([torch.tensor([-8, 7])], "input")
        """
        fix = "Pass positions inside of the tensor that is read."
        check_positions(inputs[self.input], self.dim, self.size, self.counts_back, f"{subject} {self.name!r}", "", fix)
