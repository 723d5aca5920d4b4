"""What is known of this machine without importing OpenVINO, in OpenVINO's words."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from intarsia.engines import installation

_PROCESSORS = Path("/proc/cpuinfo")


@cache
def find_version() -> str:
    """Version of the installed OpenVINO ("2025.4.1"), or "" when there is none."""
    return installation.find_version("openvino")


@cache
def find_processor() -> str:
    """What OpenVINO calls the full name of the CPU device, single-spaced; or "" where only OpenVINO could tell."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""  # not Linux
    names = (" ".join(line.partition(":")[2].split()) for line in lines if line.startswith("model name"))
    return next(names, "")
