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
    sizes = {symbol for node in program.graph.nodes for symbol in _symbols(node)}
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


def _symbols(node: torch.fx.Node) -> Iterator[Any]:
    """Symbols in the sizes of what a node gives."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        shape: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else ()
        for size in shape:
            if isinstance(size, torch.SymInt):
                yield from size.node.expr.free_symbols
