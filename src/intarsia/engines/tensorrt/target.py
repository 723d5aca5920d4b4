"""What an engine was built for, as text, and whether a GPU is that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.engines.tensorrt.layout import EngineInfo

_TARGET = re.compile(r"compute capability (\d+)\.(\d+)( or newer)?")
_OLDEST_COMPATIBLE = "8.0"


def describe_target(info: EngineInfo) -> str:
    """The kind of GPU and the system that an engine runs on.

    A hardware compatible engine runs on GPUs of compute capability 8.0 and newer, any other on those of its own.
    """
    capability = f"{_OLDEST_COMPATIBLE} or newer" if info.hardware_compatible else info.capability
    return f"compute capability {capability} (built on {info.device}), {info.platform}"


def misfit(target: str, capability: tuple[int, int]) -> str | None:
    """Why a GPU is not what an engine was built for, as a short phrase, or None.

    Args:
        target: What `describe_target` said.
        capability: Compute capability of the GPU.

    Example:
        >>> misfit("compute capability 8.9 (built on NVIDIA L4), linux_x86_64", (9, 0))
        'it was built for compute capability 8.9, and this GPU has 9.0'
        >>> misfit("compute capability 8.0 or newer (built on NVIDIA L4), linux_x86_64", (9, 0))
    """
    found = _TARGET.match(target)
    if found is None:
        return None
    meant, newer = (int(found[1]), int(found[2])), bool(found[3])
    if capability == meant or (newer and capability > meant):
        return None
    return f"it was built for {found[0]}, and this GPU has {capability[0]}.{capability[1]}"
