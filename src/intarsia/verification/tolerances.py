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


def tolerance_of(
    dtype: torch.dtype,
    coarsest: torch.dtype | None = None,
    tolerances: Mapping[torch.dtype, Tolerance] = TOLERANCES,
) -> Tolerance:
    """The tolerance of a tensor.

    Args:
        dtype: Its dtype.
        coarsest: The coarsest dtype that it passes through, if that is known: an f32 tensor that was bf16 on the way is
            as exact as bf16. What is no floating-point number is exact whatever it passes through.
        tolerances: Of each dtype; what is left out is exact.

    Example:
        >>> str(tolerance_of(torch.float32)), str(tolerance_of(torch.int64))
        ('0.0001 + 0.0001*|x|', 'exact')
    """
    own = tolerances.get(dtype, EXACT)
    if own == EXACT or coarsest is None:
        return own
    return max(own, tolerances.get(coarsest, EXACT), key=lambda tolerance: tolerance.relative)
