"""How far a program's outputs may be from its model's, by dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from intarsia.core.vectors import EXACT, Tolerance

TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-7, 1e-7),
    torch.complex128: Tolerance(1e-7, 1e-7),
    torch.float32: Tolerance(1e-4, 1e-4),
    torch.complex64: Tolerance(1e-4, 1e-4),
    torch.float16: Tolerance(1e-2, 1e-3),
    torch.bfloat16: Tolerance(2e-2, 1e-2),
}
"""What is not listed must be exact: integers, bools, and dtypes of eight bits."""


def tolerance_of(dtype: torch.dtype, tolerances: Mapping[torch.dtype, Tolerance] = TOLERANCES) -> Tolerance:
    """The tolerance of a dtype.

    Example:
        >>> str(tolerance_of(torch.float32)), str(tolerance_of(torch.int64))
        ('0.0001 + 0.0001*|x|', 'exact')
    """
    return tolerances.get(dtype, EXACT)
