"""What an engine returns, told from the sizes that Torch-TensorRT kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from intarsia.core.dim import Dim, Size, evaluate, from_expression, solve, symbol_names
from intarsia.errors import HybridError

Shapes = Mapping[str, Sequence[Mapping[str, Any]]]
"""Under `inputs` and `outputs` one mapping each, with `shape_exprs` (integers and sympy expressions) and `dtype`; a
number has no sizes, and `is_scalar`."""


def describe_outputs(shapes: Shapes, inputs: Sequence[torch.Tensor], subject: str) -> list[torch.Tensor]:
    """Fake tensors of an engine's outputs.

    Args:
        shapes: What Torch-TensorRT kept.
        inputs: Fake tensors of its inputs.
        subject: What errors name.

    Raises:
        HybridError: The size of an output does not follow from the inputs', or an output is a number.
    """
    known = [tuple(map(_dim, entry["shape_exprs"])) for entry in shapes["inputs"]]
    solutions = solve([tuple(dim or 0 for dim in dims) for dims in known])
    sizes: dict[str, Size] = {}
    for name, solution in solutions.items():
        sizes[name] = solution.value([tensor.shape for tensor in inputs], sizes)
    outputs = []
    with inputs[0].fake_mode:  # type: ignore[attr-defined]
        for entry in shapes["outputs"]:
            if entry.get("is_scalar"):
                raise _unknown("that is a number", subject)
            dims = [_known(dim, size, sizes, subject) for dim, size in _dims(entry)]
            shape = [evaluate(dim, sizes) for dim in dims]
            outputs.append(torch.empty(shape, dtype=entry["dtype"], device=inputs[0].device))
    return outputs


def _dims(entry: Mapping[str, Any]) -> list[tuple[Dim | None, Any]]:
    return [(_dim(size), size) for size in entry["shape_exprs"]]


def _dim(size: Any) -> Dim | None:
    return from_expression(sympy.sympify(size))


def _known(dim: Dim | None, size: Any, sizes: Mapping[str, Size], subject: str) -> Dim:
    if dim is None or not set(symbol_names(dim)) <= sizes.keys():
        raise _unknown(f"of the size {size}", subject)
    return dim


def _unknown(what: str, subject: str) -> HybridError:
    return HybridError(
        subject,
        found=f"an output {what}, which no input tells",
        expected="sizes that follow from the inputs', or metadata of the call",
        fix="Export the hybrid as torch_tensorrt.compile returned it.",
    )
