"""Test vectors: calls of a program, with what it answered where they were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
"""The tolerance of every dtype that has none of its own."""


@dataclass(frozen=True)
class Vector:
    """One call: what the program was given, and what it answered.

    Values are tensors, numbers, texts and None.

    Attributes:
        method: Name of the method that was called.
        inputs: Values of the arguments, in the order of the program's inputs.
        outputs: Values of what was returned, likewise.
        written: Inputs that the call wrote, as it left them, by their position among the inputs.

    Example:
        >>> Vector("forward", (torch.tensor(3), None), (torch.tensor(6),), {}).outputs
        (tensor(6),)
    """

    method: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    written: Mapping[int, Any]


@dataclass(frozen=True)
class Vectors:
    """The test vectors of a program, or of several methods of one model.

    Attributes:
        calls: In the order in which they were made; the first one met the initial state.
        tolerances: How far an answer may be from the recorded one, by dtype; exact where a dtype is left out.
        coarsest: For each method, the coarsest dtype that each of its outputs passes through.

    Example:
        >>> call = Vector("forward", (torch.tensor(3),), (torch.tensor(6),), {})
        >>> len(Vectors((call,), {torch.float32: Tolerance(1e-4, 1e-4)}, {"forward": (torch.float64,)}).calls)
        1
    """

    calls: tuple[Vector, ...]
    tolerances: Mapping[torch.dtype, Tolerance]
    coarsest: Mapping[str, tuple[torch.dtype, ...]]
