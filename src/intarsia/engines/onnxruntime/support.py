"""Whether ONNX Runtime computes a node as torch does: the operator, and then the dtypes that it meets."""

from __future__ import annotations

import math

import torch

from intarsia._torch import OpOverload, schema_of
from intarsia.core.signature import SHORT_NAMES
from intarsia.engines.nodes import (
    CASTS,
    COMPARISONS,
    draws_numbers,
    operands_of,
    operator_name,
    reason_against_node,
    reason_against_values,
    results_of,
)
from intarsia.engines.onnxruntime.faults import known_fault
from intarsia.engines.onnxruntime.library import element_types
from intarsia.engines.onnxruntime.registry import is_registered
from intarsia.engines.onnxruntime.table import ADDED, CHOOSERS, DTYPES, MOVERS, PLAIN, PROMOTED


def reason_against(node: torch.fx.Node) -> str | None:
    """None when an engine may hold the node, else why it stays in torch, as a short phrase."""
    return reason_against_node(node, "ONNX Runtime", _against_operator)


def _against_operator(node: torch.fx.Node, target: OpOverload) -> str | None:
    return (
        reason_against_values(node, element_types(), "ONNX Runtime")
        or _against_call(node, target)
        or known_fault(node)
        or _against_dtypes(node)
    )


def _against_call(node: torch.fx.Node, target: OpOverload) -> str | None:
    if draws_numbers(node, target):
        return "draws random numbers"
    if schema_of(target).written:
        return "writes its arguments"
    if operator_name(node) not in ADDED and not is_registered(target):
        return "is not known to torch's exporter"
    if any(isinstance(number, float) and number == 0 and math.copysign(1, number) < 0 for number in node.args):
        return "meets a negative zero, which the exporter takes for zero"
    return None


def _against_dtypes(node: torch.fx.Node) -> str | None:
    name = operator_name(node)
    taken = DTYPES.get(name, PLAIN)
    results = [result for result in results_of(node) if isinstance(result, torch.Tensor)]
    # What else those read are positions and masks.
    values = results if name in MOVERS | CHOOSERS else [*operands_of(node), *filter(_is_floating, results)]
    for value in values:
        if value.dtype not in taken:
            return f"ONNX Runtime does not compute it in {SHORT_NAMES[value.dtype]}"
    floats = {value.dtype for value in (*operands_of(node), *results) if _is_floating(value)}
    if len(floats) > 1 and name not in CASTS | PROMOTED | COMPARISONS:
        return "changes the precision"
    if torch.float64 in floats and any(isinstance(number, float) and _is_narrowed(number) for number in node.args):
        return "meets a number that the exporter narrows to f32"
    return None


def _is_narrowed(number: float) -> bool:
    return math.isfinite(number) and torch.tensor(number, dtype=torch.float32).item() != number


def _is_floating(value: torch.Tensor) -> bool:
    return value.is_floating_point()
