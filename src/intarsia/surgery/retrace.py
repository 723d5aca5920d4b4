"""`retrace`: the other way to the same noun, `torch.export.export` of the hybrid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from intarsia.errors import CaptureError, ConventionError
from intarsia.surgery.metadata import first_line


def retrace(
    hybrid: GraphModule,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """Export a hybrid by tracing it again, as `torch.export.export` does.

    Args:
        hybrid: Graph module whose graph calls partitions.
        args: Example positional arguments.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for `torch.export.export`.

    Raises:
        ConventionError: No example inputs were given.
        CaptureError: `torch.export.export` refuses the hybrid.
    """
    if args is None and kwargs is None:
        raise ConventionError(
            "export with retrace=True",
            found="no example inputs",
            expected="args=(...) or kwargs={...}",
            fix="Pass example inputs, or leave retrace=False, which needs none.",
        )
    try:
        with torch.no_grad():
            return torch.export.export(
                hybrid, tuple(args or ()), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:
        raise CaptureError(
            "the hybrid",
            found=f"{type(error).__name__} ({first_line(error)}) in torch.export.export",
            expected="a hybrid that torch.export can trace",
            fix="Leave retrace=False.",
        ) from error
