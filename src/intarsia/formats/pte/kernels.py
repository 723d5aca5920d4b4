"""Operators that ExecuTorch's runtime has kernels for."""

from __future__ import annotations

from typing import Any

from intarsia.errors import FormatError
from intarsia.formats.pte.library import import_executorch


def check_kernels(plan: Any) -> None:
    """Refuse a method that calls an operator which the runtime that is installed here has no kernel for.

    Args:
        plan: ExecuTorch's `ExecutionPlan` of the method.

    Raises:
        FormatError: Names the operators.
    """
    known = import_executorch("runtime").Runtime.get().operator_registry.operator_names
    names = {f"{one.name}.{one.overload}" if one.overload else str(one.name) for one in plan.operators}
    missing = sorted(names - known)
    if missing:
        raise FormatError(
            "ExecuTorch",
            found=f"no kernel for {', '.join(missing)}",
            expected="operators that its runtime has kernels for",
            consequence="The file could not be run.",
            fix="Keep the operator in an engine, decompose it, or load a library with its kernel before saving.",
        )
