"""What is known of this machine without importing TensorRT."""

from __future__ import annotations

from functools import cache

from intarsia.engines import installation

_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


@cache
def find_version() -> str:
    """Version of the installed TensorRT ("10.13.3.9"), or "" when there is none."""
    return installation.find_version(*_PACKAGES)


def find_capability() -> tuple[int, int] | None:
    """Compute capability of the GPU that torch uses, or None when it has none; imports torch, which alone can tell."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
