"""Whether OpenVINO computes a node as torch does: the operator, and then the dtypes that it meets."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from intarsia._torch import OpOverload, schema_of
from intarsia.core.signature import SHORT_NAMES
from intarsia.engines.nodes import (
    CASTS,
    COMPARISONS,
    draws_numbers,
    operator_name,
    reason_against_node,
    reason_against_values,
    results_of,
)
from intarsia.engines.openvino.faults import known_fault
from intarsia.engines.openvino.library import element_types
from intarsia.engines.openvino.positions import reason_against_positions
from intarsia.engines.openvino.table import (
    INDEX_ARGUMENTS,
    LOGIC,
    MASK_ARGUMENTS,
    MOVERS,
    POSITIONS,
    is_taken,
)

_ARITHMETIC = "is integer arithmetic"
_NARROW = "OpenVINO keeps 64-bit integers in 32 bits"


def reason_against(node: torch.fx.Node) -> str | None:
    """None when an engine may hold the node, else why it stays in torch, as a short phrase."""
    return reason_against_node(node, "OpenVINO", _against_operator)


def _against_operator(node: torch.fx.Node, target: OpOverload) -> str | None:
    return (
        reason_against_values(node, element_types(), "OpenVINO's CPU device")
        or _against_call(node, target)
        or _against_integers(node)
        or reason_against_positions(node, lambda source: reason_against(source) is not None)
    )


def _against_call(node: torch.fx.Node, target: OpOverload) -> str | None:
    if draws_numbers(node, target):
        return "draws random numbers"
    if schema_of(target).written:
        return "writes its arguments"
    if not is_taken(node):
        return "is not known to OpenVINO"
    return known_fault(operator_name(node), node)


def _against_integers(node: torch.fx.Node) -> str | None:
    """Integers are for positions, comparisons, casts and moves; truth values also for logic.

    OpenVINO keeps 64-bit integers in 32 bits, and computes some integer arithmetic in floating point.
    """
    name = operator_name(node)
    special = [*_arguments(node, INDEX_ARGUMENTS.get(name)), *_arguments(node, MASK_ARGUMENTS.get(name))]
    data = [operand for operand in node.all_input_nodes if operand not in special and _is_integral(operand)]
    results = [result.dtype for result in results_of(node) if isinstance(result, torch.Tensor)]
    if name in CASTS:
        return _against_cast(node, results[0])
    if not data:
        return None if name in POSITIONS | COMPARISONS or all(map(_is_float, results)) else _ARITHMETIC
    if name in LOGIC:
        return None if all(_dtype(operand) is torch.bool for operand in data) else _ARITHMETIC
    if name not in MOVERS | COMPARISONS:
        return _ARITHMETIC
    if any(not _fits_32_bits(operand) for operand in data) or _exceeds_32_bits(_scalars(node)):
        return _NARROW
    fractions = name in COMPARISONS and any(isinstance(scalar, float) for scalar in _scalars(node))
    return "compares integers with a fraction" if fractions else None


def _against_cast(node: torch.fx.Node, target: torch.dtype) -> str | None:
    (source,) = node.all_input_nodes
    kept = _dtype(source)
    if target is torch.bool and (kept.is_floating_point or kept is torch.int64):
        return "OpenVINO casts NaN and 64-bit integers to bool otherwise"
    if target in {torch.float16, torch.bfloat16} and kept is not target:
        return f"OpenVINO does not round to {SHORT_NAMES[target]} inside an engine"
    if target is torch.int64 and (kept.is_floating_point or not _fits_32_bits(source)):
        return _NARROW
    return None


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def _fits_32_bits(node: torch.fx.Node) -> bool:
    """Whether the values of an integer tensor are sure to fit in 32 bits, by the operators that made it.

    True for narrower dtypes and positions, and for what only moves those. A 64-bit input may hold anything.
    """
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if _dtype(current) is not torch.int64:
            continue
        sources = _sources_of_wide_values(current)
        if sources is None:
            return False
        fresh = [source for source in sources if source not in seen]
        seen.update(fresh)
        pending.extend(fresh)
    return True


def _sources_of_wide_values(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The integer tensors from which a 64-bit one takes its values unchanged, or None when they can be any."""
    producer = node.args[0] if node.target is operator.getitem else node
    if not isinstance(producer, torch.fx.Node) or producer.op != "call_function":
        return None
    name = operator_name(producer)
    if name in POSITIONS:
        return []
    if name in CASTS:
        (source,) = producer.all_input_nodes
        return [source] if _is_integral(source) else None
    if name in MOVERS and not _exceeds_32_bits(_scalars(producer)):
        special = _arguments(producer, INDEX_ARGUMENTS.get(name))
        return [operand for operand in producer.all_input_nodes if operand not in special and _is_integral(operand)]
    return None


def _scalars(node: torch.fx.Node) -> list[int | float]:
    """Numbers in the arguments that stand for values, not for axes or positions."""
    if operator_name(node) in MOVERS - {"masked_fill.Scalar", "where.ScalarOther", "where.ScalarSelf"}:
        return []
    return [argument for argument in node.args[1:] if isinstance(argument, int | float)]


def _exceeds_32_bits(scalars: Sequence[int | float]) -> bool:
    return any(abs(scalar) >= 2**31 - 1 for scalar in scalars)


def _arguments(node: torch.fx.Node, position: int | None) -> list[torch.fx.Node]:
    """The nodes in one argument, which may be a list, or absent."""
    if position is None or position >= len(node.args):
        return []
    argument = node.args[position]
    items = argument if isinstance(argument, Sequence) else [argument]
    return [item for item in items if isinstance(item, torch.fx.Node)]


def _dtype(node: torch.fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _is_integral(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()
