"""What backends ask of a node before they take it."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from intarsia._torch import OpOverload, schema_of
from intarsia.core.signature import SHORT_NAMES

# Python's operators on sizes; sizes are never negative, and fit in 32 bits.
SIZE_ARITHMETIC = frozenset({operator.add, operator.floordiv, operator.mul, operator.sub})

COMPARISONS = frozenset(
    f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")
)

CASTS = frozenset({"_to_copy.default"})

# Operators with an optional dropout; a call that drops nothing draws no random numbers.
_DROPOUTS = frozenset({"scaled_dot_product_attention.default"})


def operator_name(node: torch.fx.Node) -> str:
    """The name of an ATen operator as tables of operators write it: `add.Tensor`."""
    return str(node.target).removeprefix("aten.")


def draws_numbers(node: torch.fx.Node, target: OpOverload) -> bool:
    """Whether a call draws random numbers. An operator with a dropout draws none where it drops nothing."""
    if torch.Tag.nondeterministic_seeded not in target.tags or operator_name(node) in _DROPOUTS:
        return False
    given: dict[str, object] = {**dict(zip(schema_of(target).argument_names, node.args, strict=False)), **node.kwargs}
    return given.get("train") is not False and given.get("dropout") != 0


def is_size(node: torch.fx.Node) -> bool:
    """Whether the node is arithmetic on sizes that gives a size."""
    numbers = [argument.meta.get("val") for argument in node.all_input_nodes]
    return not isinstance(node.target, OpOverload) and all(
        isinstance(value, int | torch.SymInt) for value in (node.meta.get("val"), *numbers)
    )


def reason_against_values(node: torch.fx.Node, dtypes: Collection[torch.dtype], library: str) -> str | None:
    """Why no library that computes on the CPU takes what a node reads and gives, or None.

    Args:
        node: A call of an operator.
        dtypes: The dtypes that this library takes.
        library: Its name, for the reason.
    """
    results = results_of(node)
    if not results or any(not isinstance(result, torch.Tensor) for result in results):
        return "returns something else than tensors"
    operands = operands_of(node)
    if not operands:
        return "has no tensor among its arguments"
    for value in (value for value in [*operands, *results] if isinstance(value, torch.Tensor)):
        if value.layout is not torch.strided or value.is_quantized:
            return f"meets a {'quantized' if value.is_quantized else value.layout} tensor"
        if value.device.type != "cpu":
            return f"runs on {value.device}"
        if value.dtype not in dtypes:
            return f"{library} does not compute in {SHORT_NAMES.get(value.dtype, value.dtype)}"
    known = {symbol for value in operands for symbol in free_unbacked_symbols(value)}
    if any(free_unbacked_symbols(result) - known for result in results):
        return "has an output size that depends on data"
    return None


def operands_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """The tensors that a node reads."""
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    return [value for value in values if isinstance(value, torch.Tensor)]


def results_of(node: torch.fx.Node) -> list[object]:
    """What a node gives, one after the other."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, tuple | list) else [value]
