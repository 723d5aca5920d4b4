"""Whether OpenVINO computes a node as torch does: the operator, and then the dtypes that it meets."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from intarsia._torch import OpOverload, schema_of
from intarsia.core.signature import SHORT_NAMES
from intarsia.engines.openvino.faults import known_fault
from intarsia.engines.openvino.library import element_types
from intarsia.engines.openvino.table import (
    CASTS,
    COMPARISONS,
    DROPOUTS,
    INDEX_ARGUMENTS,
    LOGIC,
    MASK_ARGUMENTS,
    MOVERS,
    POSITIONS,
    SIZE_ARITHMETIC,
    is_taken,
    operator_name,
)

_ARITHMETIC = "is integer arithmetic"
_NARROW = "OpenVINO keeps 64-bit integers in 32 bits"


def reason_against(node: torch.fx.Node) -> str | None:
    """None when an engine may hold the node, else why it stays in torch, as a short phrase."""
    if node.op != "call_function":
        return "is no operator"
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return reason_against(node.args[0])
    if _is_size(node):
        return None if node.target in SIZE_ARITHMETIC else "OpenVINO does not compute a size so"
    if not isinstance(node.target, OpOverload):
        return "is no ATen operator"
    return _against_values(node) or _against_operator(node, node.target) or _against_integers(node)


def _against_operator(node: torch.fx.Node, target: OpOverload) -> str | None:
    if torch.Tag.nondeterministic_seeded in target.tags and operator_name(node) not in DROPOUTS:
        return "draws random numbers"
    if schema_of(target).written:
        return "writes its arguments"
    if not is_taken(node):
        return "is not known to OpenVINO"
    return known_fault(operator_name(node), node)


def _against_values(node: torch.fx.Node) -> str | None:
    results = list(_results(node))
    if not results or any(not isinstance(result, torch.Tensor) for result in results):
        return "returns something else than tensors"
    operands = _operands(node)
    if not operands:
        return "has no tensor among its arguments"
    for value in (value for value in [*operands, *results] if isinstance(value, torch.Tensor)):
        if value.layout is not torch.strided or value.is_quantized:
            return f"meets a {'quantized' if value.is_quantized else value.layout} tensor"
        if value.device.type != "cpu":
            return f"runs on {value.device}"
        if value.dtype not in element_types():
            return f"OpenVINO's CPU device does not compute in {SHORT_NAMES.get(value.dtype, value.dtype)}"
    known = {symbol for value in operands for symbol in free_unbacked_symbols(value)}
    if any(free_unbacked_symbols(result) - known for result in results):
        return "has an output size that depends on data"
    return None


def _against_integers(node: torch.fx.Node) -> str | None:
    """Integers are for positions, comparisons, casts and moves; truth values also for logic.

    OpenVINO keeps 64-bit integers in 32 bits, and computes some integer arithmetic in floating point.
    """
    name = operator_name(node)
    special = [*_arguments(node, INDEX_ARGUMENTS.get(name)), *_arguments(node, MASK_ARGUMENTS.get(name))]
    data = [operand for operand in node.all_input_nodes if operand not in special and _is_integral(operand)]
    results = [result.dtype for result in _results(node) if isinstance(result, torch.Tensor)]
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


def _is_size(node: torch.fx.Node) -> bool:
    """Whether the node is arithmetic on sizes that gives a size; sizes are never negative, and fit in 32 bits."""
    numbers = [argument.meta.get("val") for argument in node.all_input_nodes]
    return not isinstance(node.target, OpOverload) and all(
        isinstance(value, int | torch.SymInt) for value in (node.meta.get("val"), *numbers)
    )


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


def _operands(node: torch.fx.Node) -> list[torch.Tensor]:
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _results(node: torch.fx.Node) -> list[object]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, tuple | list) else [value]


def _dtype(node: torch.fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _is_integral(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()
