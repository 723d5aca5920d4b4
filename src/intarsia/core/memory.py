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
