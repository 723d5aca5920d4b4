"""What compiled code needs of a machine: the kind of its processor, and the features that its instructions are of."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PROCESSORS = Path("/proc/cpuinfo")
# What inductor writes vector code for, and what its flags switch on, in the words of Linux.
_FEATURES = (
    "avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "sve", "sve2", "bf16", "vx",
)  # fmt: skip


@cache
def find_processor() -> str:
    """The kind of this machine's processor and its features, for instance "x86_64 avx2 fma f16c".

    Features are told on Linux only.
    """
    return " ".join([platform.machine(), *(name for name in _FEATURES if name in _flags())])


def reason_against_code(torch_version: str, target: str) -> str | None:
    """None when this machine runs what AOTInductor compiled, else why not, as a short phrase.

    Args:
        torch_version: Version of the torch that compiled it.
        target: The processor as `find_processor` tells it, and behind " + " the GPU, where there is one.
    """
    here = version("torch")
    if torch_version != here:
        return f"torch {torch_version} compiled it, and {here} is installed here"
    processor, _, device = target.partition(" + ")
    reason = reason_against_processor(processor)
    if reason is None and device:
        from intarsia.core.compiled.devices import reason_against_device  # noqa: PLC0415 - imports torch

        return reason_against_device(device)
    return reason


def reason_against_processor(needed: str) -> str | None:
    """None when this machine runs code for a processor that `find_processor` described elsewhere, else why not.

    Example:
        >>> reason_against_processor(find_processor()) is None
        True
        >>> reason_against_processor("abacus")[:29]
        'it was compiled for abacus, a'
    """
    machine, *features = needed.split() or [""]
    here = platform.machine()
    if machine != here:
        return f"it was compiled for {machine}, and this is {here}"
    missing = [name for name in features if name not in _flags()] if _flags() else []
    return f"it was compiled for {' '.join(missing)}, which this processor does not have" if missing else None


@cache
def _flags() -> frozenset[str]:
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()  # not Linux
    found = (line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(found, ()))
