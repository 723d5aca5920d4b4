"""Whether inductor computes a node as torch does."""

from __future__ import annotations

import torch

from intarsia._torch import OpOverload, schema_of
from intarsia.core.compiled.positions import UNGUARDED, packet_name
from intarsia.core.signature import SHORT_NAMES
from intarsia.engines.nodes import draws_numbers, reason_against_node, reason_against_values, results_of

_DEVICES = ("cpu", "cuda")

# Where torch rounds a quotient that lies just below a whole number down, inductor rounds it first.
_FLOORS = frozenset({"floor_divide", "remainder"})
_ADDERS = frozenset({"_unsafe_index_put", "index_put"})


def reason_against(node: torch.fx.Node) -> str | None:
    """None when an engine may hold the node, else why it stays in torch, as a short phrase."""
    return reason_against_node(node, "inductor", _against_operator)


def _against_operator(node: torch.fx.Node, target: OpOverload) -> str | None:
    if target.namespace not in {"aten", "prims"}:
        return "is no ATen operator"
    return reason_against_values(node, SHORT_NAMES, "inductor", _DEVICES) or _against_call(node, target)


def _against_call(node: torch.fx.Node, target: OpOverload) -> str | None:
    if draws_numbers(node, target):
        return "draws random numbers"
    if schema_of(target).written:
        return "writes its arguments"
    return _known_fault(node, packet_name(node))


def _known_fault(node: torch.fx.Node, name: str) -> str | None:
    """What goes wrong in a call, or None when nothing is known to; each is tested."""
    if name in UNGUARDED:
        return "reads at positions that inductor does not check safely"
    if (name in _FLOORS or node.kwargs.get("rounding_mode") == "floor") and _computes_in_floats(node):
        return "inductor rounds quotients of floats otherwise"
    if name == "index_add" or (name in _ADDERS and len(node.args) > 3 and node.args[3]):
        return "inductor adds in any order where positions are equal"
    if name == "expm1":
        return "inductor loses the sign of zero"
    return None


def _computes_in_floats(node: torch.fx.Node) -> bool:
    return any(isinstance(result, torch.Tensor) and result.is_floating_point() for result in results_of(node))
