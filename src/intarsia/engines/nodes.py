"""What backends ask of a node before they take it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection

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


def reason_against_node(
    node: torch.fx.Node, library: str, against_operator: Callable[[torch.fx.Node, OpOverload], str | None]
) -> str | None:
    """None when an engine may hold a node, else why it stays in torch, as a short phrase.

    Args:
        node: Any node of a captured graph.
        library: What computes in the engine, for the phrase.
        against_operator: The reason against a call of an operator.
    """
    if node.op != "call_function":
        return "is no operator"
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return reason_against_node(node.args[0], library, against_operator)
    if is_size(node):
        return None if node.target in SIZE_ARITHMETIC else f"{library} does not compute a size so"
    if not isinstance(node.target, OpOverload):
        return "is no ATen operator"
    return against_operator(node, node.target)


def draws_numbers(node: torch.fx.Node, target: OpOverload) -> bool:
    """Whether a call draws random numbers. An operator with a dropout draws none where it drops nothing."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given: dict[str, object] = {**dict(zip(schema_of(target).argument_names, node.args, strict=False)), **node.kwargs}
    if operator_name(node) in _DROPOUTS:
        return given.get("dropout_p", 0.0) != 0.0
    return given.get("train") is not False and given.get("dropout") != 0


def is_size(node: torch.fx.Node) -> bool:
    """Whether the node is arithmetic on sizes that gives a size."""
    numbers = [argument.meta.get("val") for argument in node.all_input_nodes]
    return not isinstance(node.target, OpOverload) and all(
        isinstance(value, int | torch.SymInt) for value in (node.meta.get("val"), *numbers)
    )


def reason_against_values(
    node: torch.fx.Node, dtypes: Collection[torch.dtype], library: str, devices: Collection[str] = ("cpu",)
) -> str | None:
    """Why a library does not take what a node reads and gives, or None.

    Args:
        node: A call of an operator.
        dtypes: The dtypes that the library takes.
        library: Its name, for the reason.
        devices: The kinds of devices that it computes on, one for all values of a node.
    """
    results = results_of(node)
    if not results or any(not isinstance(result, torch.Tensor) for result in results):
        return "returns something else than tensors"
    operands = operands_of(node)
    if not operands:
        return "has no tensor among its arguments"
    values = [value for value in [*operands, *results] if isinstance(value, torch.Tensor)]
    for value in values:
        if value.layout is not torch.strided or value.is_quantized:
            return f"meets a {'quantized' if value.is_quantized else value.layout} tensor"
        if value.device.type not in devices or value.device.type != values[0].device.type:
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
