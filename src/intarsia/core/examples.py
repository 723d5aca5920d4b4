"""Example inputs for `torch.export.export`, which takes two of one tensor for one input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from intarsia._torch import pytree


def distinct(examples: tuple[tuple[Any, ...], dict[str, Any]], state: Iterable[torch.Tensor]) -> Any:
    """The examples `(args, kwargs)`, with a copy for each tensor that is state or an earlier input too.

    Args:
        examples: Positional and keyword examples, of any nesting.
        state: Parameters and buffers of what is to be exported.

    Example:
        >>> x = torch.ones(2)
        >>> (one, two), _ = distinct(((x, x), {}), [])
        >>> one is x, two is x
        (True, False)
    """
    seen = {id(value) for value in state}

    def separate(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            return value.clone()
        seen.add(id(value))
        return value

    with torch.no_grad():
        return pytree.tree_map(separate, examples)
