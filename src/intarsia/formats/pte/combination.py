"""Which versions of ExecuTorch and OpenVINO work together: told by what is installed, before native code is loaded."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from intarsia.errors import EngineUnavailable

FIX = "Install the extra intarsia[pte], or: pip install 'executorch==1.5.1' 'openvino>=2025.4,<2026'"

_TRIED = {"executorch": "1.5.1", "openvino": "2025.4"}


def check_combination() -> None:
    """Refuse what is missing, and versions that are known to crash when they meet.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or OpenVINO is one whose engines it dies of.
    """
    fault = fault_here()
    if fault:
        raise EngineUnavailable("ExecuTorch", found=fault, expected="what runs together", fix=FIX)


def find_fault(*, executorch: str, openvino: str) -> str:
    """What is wrong with a pair of versions, or nothing; a package that is not installed has the version "".

    Example:
        >>> find_fault(executorch="", openvino="2025.4.1")
        'no package executorch'
        >>> find_fault(executorch="1.5.1", openvino="2026.1.0")
        'OpenVINO 2026.1.0 beside executorch 1.5.1, which dies of its engines'
        >>> find_fault(executorch="1.5.1", openvino="2025.4.1")
        ''
    """
    if not executorch:
        return "no package executorch"
    if _numbers(openvino) >= (2026,) and _numbers(executorch) <= _numbers(_TRIED["executorch"]):
        return f"OpenVINO {openvino} beside executorch {executorch}, which dies of its engines"
    return ""


def find_untried(*, executorch: str, openvino: str) -> str:
    """A sentence that names the versions that intarsia was not tried with, or nothing.

    Example:
        >>> find_untried(executorch="1.6.0", openvino="2025.4.1")
        'intarsia was tried with executorch 1.5.1, not with 1.6.0.'
        >>> find_untried(executorch="1.5.1", openvino="2025.4.1")
        ''
    """
    found = {"executorch": executorch, "openvino": openvino}
    other = [
        f"{package} {tried}, not with {found[package]}"
        for package, tried in _TRIED.items()
        if found[package] and _numbers(found[package])[: len(_numbers(tried))] != _numbers(tried)
    ]
    return f"intarsia was tried with {' and '.join(other)}." if other else ""


def fault_here() -> str:
    """What `find_fault` says of the versions that are installed."""
    return find_fault(executorch=_version("executorch"), openvino=_version("openvino"))


def untried_here() -> str:
    """What `find_untried` says of the versions that are installed."""
    return find_untried(executorch=_version("executorch"), openvino=_version("openvino"))


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
