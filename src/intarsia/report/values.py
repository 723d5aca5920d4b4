"""The contents of values that are compared: by their bytes, so that NaN is NaN and zero has a sign."""

from __future__ import annotations

import hashlib

import torch

from intarsia.core import memory
from intarsia.report.program import value_type


def bytes_of(value: object) -> torch.Tensor:
    """The bytes of a tensor's elements as `uint8[n]`; none of anything else, of which the type alone is compared.

    Example:
        >>> bytes_of(torch.tensor([1, 256], dtype=torch.int16))
        tensor([1, 0, 0, 1], dtype=torch.uint8)
    """
    if not isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=torch.uint8)
    return memory.bytes_of(value.detach().cpu())


def digest(content: torch.Tensor) -> str:
    """The beginning of the SHA-256 of bytes, as `bytes_of` gives them."""
    return hashlib.sha256(content.numpy().data).hexdigest()[:12]


def value_text(value: object) -> str:
    """A value as a change tells it: a tensor by its type and the beginning of its hash.

    Example:
        >>> value_text(torch.zeros(2)), value_text(0.5)
        ('f32[2], af5570f5a181', '0.5')
    """
    return f"{value_type(value)}, {digest(bytes_of(value))}" if isinstance(value, torch.Tensor) else repr(value)
