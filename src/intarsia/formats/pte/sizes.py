"""Sizes that ExecuTorch can plan memory for: those with an upper bound."""

from __future__ import annotations

import torch

from intarsia._torch import int_bounds
from intarsia.errors import ConventionError


def check_bounds(program: torch.export.ExportedProgram) -> None:
    """Refuse a program that has a size without an upper bound.

    Raises:
        ConventionError: Names the size.
    """
    for size, bounds in program.range_constraints.items():
        lower, upper = int_bounds(bounds)
        if upper is None:
            raise ConventionError(
                f"size {size}",
                found=f"any number from {lower} on",
                expected="an upper bound, for ExecuTorch plans its memory beforehand",
                fix="Give it one when the model is captured: torch.export.Dim(name, max=...), or torch._check for a "
                "computed one.",
            )
