"""How far a program's outputs may be from its model's, by dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """Allowed error of one element: `absolute + relative * |expected|`.

    Example:
        >>> str(Tolerance(relative=1e-4, absolute=0.001))
        '0.001 + 0.0001*|x|'
    """

    relative: float
    absolute: float

    def __str__(self) -> str:
        return "exact" if not (self.relative or self.absolute) else f"{self.absolute:g} + {self.relative:g}*|x|"


EXACT = Tolerance(0.0, 0.0)
"""Integers, bools, and every dtype that `TOLERANCES` does not list."""

TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-7, 1e-7),
    torch.complex128: Tolerance(1e-7, 1e-7),
    torch.float32: Tolerance(1e-4, 1e-4),
    torch.complex64: Tolerance(1e-4, 1e-4),
    torch.float16: Tolerance(1e-2, 1e-3),
    torch.bfloat16: Tolerance(2e-2, 1e-2),
}


def tolerance_of(dtype: torch.dtype, coarsest: torch.dtype | None = None) -> Tolerance:
    """The tolerance of a tensor.

    Args:
        dtype: Its dtype.
        coarsest: The coarsest dtype that it passes through, if that is known: an f32 tensor that was bf16 on the way is
            as exact as bf16. What is no floating-point number is exact whatever it passes through.

    Example:
        >>> str(tolerance_of(torch.float32)), str(tolerance_of(torch.int64))
        ('0.0001 + 0.0001*|x|', 'exact')
    """
    own = TOLERANCES.get(dtype, EXACT)
    if own is EXACT or coarsest is None:
        return own
    return max(own, TOLERANCES.get(coarsest, EXACT), key=lambda tolerance: tolerance.relative)
