"""Whether inductor computes a node as torch does."""

from __future__ import annotations

import torch

from intarsia._torch import OpOverload, schema_of
from intarsia.core.compiled.positions import UNGUARDED, packet_name
from intarsia.core.signature import SHORT_NAMES
from intarsia.engines.nodes import draws_numbers, reason_against_node, reason_against_values

_DEVICES = ("cpu", "cuda")


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
    if packet_name(node) in UNGUARDED:
        return "reads at positions that inductor does not check safely"
    return None
