"""GPUs that code is compiled for."""

from __future__ import annotations

import torch


def describe_device() -> str:
    """The kind of this machine's GPU, for instance "cuda sm_90"."""
    major, minor = torch.cuda.get_device_capability()
    return f"cuda sm_{major}{minor}"


def reason_against_device(needed: str) -> str | None:
    """None when this machine has a GPU of the kind that `describe_device` told elsewhere, else why not."""
    if not torch.cuda.is_available():
        return f"it was compiled for {needed}, and this machine has no CUDA device"
    here = describe_device()
    return None if needed == here else f"it was compiled for {needed}, and this is {here}"
