"""A function that engines shall compute as torch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A function, and calls of it.

    What it returns is compared tensor by tensor: those that need an operator which a backend leaves to torch are left
    out.

    Attributes:
        function: Called with tensors; returns one or several. It may be a module with state.
        calls: Arguments of each call; those of the first are what the function is exported with.
        dims: Dynamic sizes, as for `torch.export.export`; their names are used by no other case.
        tolerance: Relative and absolute.
        required: Whether every backend must take all of it.
        odd: Whether it meets NaN, infinity or negative zeros where these are computed with.
        signs: Whether zeros are compared by their signs too.
        wrong: Arguments that torch refuses, for the positions among them.
    """

    function: Callable[..., Any]
    calls: tuple[Arguments, ...]
    dims: Any = None
    tolerance: float = 0.0
    required: bool = False
    odd: bool = False
    signs: bool = False
    wrong: tuple[Arguments, ...] = ()

    def answer(self, args: Arguments) -> list[torch.Tensor]:
        """What torch answers."""
        results = self.function(*args)
        return list(results) if isinstance(results, tuple | list) else [results]
