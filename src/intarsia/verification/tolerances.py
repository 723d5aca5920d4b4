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


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """The tolerance of a dtype.

    Example:
        >>> str(tolerance_of(torch.float32)), str(tolerance_of(torch.int64))
        ('0.0001 + 0.0001*|x|', 'exact')
    """
    return TOLERANCES.get(dtype, EXACT)
