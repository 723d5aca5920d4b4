"""Sizes that ExecuTorch can plan memory for: those with an upper bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from intarsia._torch import int_bounds, pytree
from intarsia.errors import ConventionError


def check_bounds(program: torch.export.ExportedProgram) -> None:
    """Refuse a program in which a tensor has a size without an upper bound.

    Raises:
        ConventionError: Names the size.
    """
    values = [value for node in program.graph.nodes for value in pytree.tree_leaves(node.meta.get("val"))]
    sizes = {symbol for value in values if isinstance(value, torch.Tensor) for symbol in symbols_of(value)}
    for size, bounds in program.range_constraints.items():
        lower, upper = int_bounds(bounds)
        if upper is None and size in sizes:
            raise ConventionError(
                f"size {size}",
                found=f"any number from {lower} on",
                expected="an upper bound, for ExecuTorch plans its memory beforehand",
                fix="Give it one when the model is captured: torch.export.Dim(name, max=...), or torch._check for a "
                "computed one.",
            )


def check_open(program: torch.export.ExportedProgram) -> None:
    """Refuse a program of which a size has become one number while it was lowered.

    Raises:
        ConventionError: Names the input.
    """
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else ()
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr.is_number:
                raise ConventionError(
                    f"input {node.name!r}",
                    found=f"that ExecuTorch or a partitioner fixes its size in dimension {axis} at {size}",
                    expected="a range of sizes, as the program has",
                    consequence="The file would be wrong for other sizes, and the program is now too.",
                    fix="Leave the partitioner out, or capture the model with one size; export the hybrid again.",
                )


def symbols_of(value: Any) -> Iterator[Any]:
    """Symbols in the sizes of a tensor, or in a number; a value as the metadata of a node has it."""
    for size in value.shape if isinstance(value, torch.Tensor) else (value,):
        if isinstance(size, torch.SymInt):
            yield from size.node.expr.free_symbols
