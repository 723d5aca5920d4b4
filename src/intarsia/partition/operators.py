"""What a node's operator is, and which operators a caller named."""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from intarsia._torch import HigherOrderOperator, OpOverload, OpOverloadPacket, schema_of
from intarsia.errors import PartitionError, near_match

_SUBJECT = "torch_executed_ops"


def tensors_of(node: torch.fx.Node) -> list[Any]:
    """The leaves of a node's `val`: fake tensors, and whatever else the operator returns."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def is_tensor(node: torch.fx.Node) -> bool:
    """Whether the node stands for one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_number(node: torch.fx.Node) -> bool:
    """Whether the node stands for a (symbolic) number."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def is_getitem(node: torch.fx.Node) -> bool:
    """Whether the node takes one result of an operator that has several."""
    return node.op == "call_function" and node.target is getitem


def is_operator(node: torch.fx.Node) -> bool:
    """Whether the node computes tensors or has an effect: all calls but `getitem` and arithmetic on sizes."""
    return node.op == "call_function" and not is_getitem(node) and not is_symbolic(node)


def is_symbolic(node: torch.fx.Node) -> bool:
    """Whether the node is a symbolic size, or arithmetic on such: a number that follows from shapes alone."""
    if node.op != "call_function" or not is_number(node):
        return False
    if isinstance(node.target, OpOverload):
        return str(node.target).startswith("aten.sym_")
    return all(is_number(argument) for argument in node.all_input_nodes)


def is_layout(node: torch.fx.Node) -> bool:
    """Whether the operator's result is a view of an input (`view`, `transpose`, `slice`, ... and their `getitem`)."""
    if is_getitem(node):
        return is_layout(node.all_input_nodes[0])
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    schema = schema_of(node.target)
    return bool(schema.aliased) and not schema.written


def is_write(node: torch.fx.Node) -> bool:
    """Whether the operator writes into an argument."""
    return node.op == "call_function" and isinstance(node.target, OpOverload) and bool(schema_of(node.target).written)


def has_own_sizes(node: torch.fx.Node) -> bool:
    """Whether the operator's result has sizes that depend on data."""
    sizes = free_unbacked_symbols(_measurable(node))
    known = [free_unbacked_symbols(_measurable(argument)) for argument in node.all_input_nodes] if sizes else []
    return bool(sizes.difference(*known))


def _measurable(node: torch.fx.Node) -> list[Any]:
    return [leaf for leaf in tensors_of(node) if isinstance(leaf, (torch.Tensor, torch.SymInt))]


def operator_name(node: torch.fx.Node) -> str:
    """Name of the node's operator, for instance "aten.linear.default"."""
    return str(node.target) if isinstance(node.target, OpOverload) else _plain_name(node.target)


def _plain_name(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def module_path(node: torch.fx.Node) -> str:
    """Path of the module that calls the node's operator, as in `named_modules`; empty for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def check_operators(graphs: Iterable[torch.fx.Graph], wanted: Iterable[Any]) -> None:
    """Refuse what is no operator, or the operator of no node.

    Args:
        graphs: Graphs to look in; an operator of one of them is enough.
        wanted: Operators: objects (`torch.ops.aten.linear`, with or without overload) or names ("aten.linear",
            "aten.linear.default", with or without "torch.ops." before it).

    Raises:
        PartitionError: An entry is no operator, or matches nothing in the graphs.
    """
    if isinstance(wanted, str):
        raise PartitionError(
            _SUBJECT,
            found=f"the text {wanted!r}",
            expected="a collection of operators or names",
            fix=f"Write {{{wanted!r}}}.",
        )
    known = dict.fromkeys(operator_name(node) for graph in graphs for node in filter(is_operator, graph.nodes))
    for entry in wanted:
        name = wanted_name(_SUBJECT, entry)
        if not any(_matches(key, name) for key in known):
            raise _unmatched(name, list(known))


def find_operators(graph: torch.fx.Graph, wanted: Iterable[Any]) -> set[torch.fx.Node]:
    """The nodes whose operator is one of `wanted`, which `check_operators` has let pass."""
    names = [wanted_name(_SUBJECT, entry) for entry in wanted]
    nodes = filter(is_operator, graph.nodes)
    return {node for node in nodes if any(_matches(operator_name(node), name) for name in names)}


def _matches(operator: str, name: str) -> bool:
    """Whether a name is an operator's own, or its own without the overload."""
    return operator == name or operator.rpartition(".")[0] == name


def wanted_name(subject: str, entry: Any) -> str:
    """The name of an operator that a caller means by an object or a text.

    Raises:
        PartitionError: The entry is neither; names the subject.
    """
    if isinstance(entry, str):
        return entry.strip().removeprefix("torch.ops.").replace("::", ".")
    if isinstance(entry, (OpOverload, OpOverloadPacket)):
        return str(entry)
    if isinstance(entry, HigherOrderOperator):
        return _plain_name(entry)
    raise PartitionError(
        subject,
        found=f"an entry of type {type(entry).__name__!r}",
        expected="an operator (torch.ops.aten.linear) or the name of one ('aten.linear')",
        fix="Name the operator as coverage prints it.",
    )


def short_name(name: str, known: list[str]) -> str:
    """A sentence that names the operator of ATen that is named without its namespace, or nothing."""
    full = f"aten.{name}"
    return f"Did you mean {full!r}?" if any(key == full or key.startswith(f"{full}.") for key in known) else ""


def _unmatched(name: str, known: list[str]) -> PartitionError:
    return PartitionError(
        _SUBJECT,
        found=f"{name!r}, which no operator of the captured graph has as its name",
        expected="the name of one of its operators",
        fix=short_name(name, known)
        or near_match(name, known)
        or f"It has {', '.join(sorted(known)) or 'no operators'}.",
    )
