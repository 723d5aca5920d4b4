"""Which memory a value lies in: where one of two tensors is written, does the other change?"""

from __future__ import annotations

from typing import Any

import torch


def memory_of(value: Any) -> int:
    """Equal for values that share memory. An empty storage, a sparse tensor and what is no tensor share with nobody.

    Example:
        >>> x = torch.ones(4)
        >>> memory_of(x) == memory_of(x[1:]), memory_of(x) == memory_of(x.clone())
        (True, False)
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return id(value)
    return value.untyped_storage().data_ptr() or id(value)


def bytes_of(value: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor as uint8[bytes]; not copied where they lie side by side.

    Example:
        >>> bytes_of(torch.tensor([[1, 2], [3, 4]], dtype=torch.int16)[1:, ::2])
        tensor([3, 0], dtype=torch.uint8)
    """
    # A tensor of one element is contiguous with any stride, and reshaping keeps that.
    return value.contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8)
