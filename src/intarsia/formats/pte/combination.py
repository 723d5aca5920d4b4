"""Which versions of ExecuTorch and OpenVINO work together: told by what is installed, before native code is loaded."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from intarsia.errors import EngineUnavailable

_FIX = "Install the extra intarsia[pte], or: pip install 'executorch==1.5.1' 'openvino>=2025.4,<2026'"


def check_combination() -> None:
    """Refuse what is missing, and versions that are known to crash when they meet.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or OpenVINO is one whose engines it dies of.

    Example:
        >>> find_fault(executorch="1.5.1", openvino="2026.1.0")
        'OpenVINO 2026.1.0 beside executorch 1.5.1, which dies of its engines'
    """
    fault = find_fault(executorch=_version("executorch"), openvino=_version("openvino"))
    if fault:
        raise EngineUnavailable("ExecuTorch", found=fault, expected="what runs together", fix=_FIX)


def find_fault(*, executorch: str, openvino: str) -> str:
    """What is wrong with a pair of versions, or nothing; a package that is not installed has the version "".

    Example:
        >>> find_fault(executorch="", openvino="2025.4.1")
        'no package executorch'
        >>> find_fault(executorch="1.5.1", openvino="2025.4.1")
        ''
    """
    if not executorch:
        return "no package executorch"
    year = re.match(r"\d+", openvino)
    if year and int(year[0]) >= 2026:
        return f"OpenVINO {openvino} beside executorch {executorch}, which dies of its engines"
    return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
