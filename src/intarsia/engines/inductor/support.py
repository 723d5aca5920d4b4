"""Whether inductor computes a node as torch does."""

from __future__ import annotations

import operator

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from intarsia._torch import OpOverload, schema_of
from intarsia.core.compiled.positions import UNGUARDED, packet_name
from intarsia.core.signature import SHORT_NAMES
from intarsia.engines.nodes import SIZE_ARITHMETIC, draws_numbers, is_size, operands_of, results_of

_DEVICES = ("cpu", "cuda")


def reason_against(node: torch.fx.Node) -> str | None:
    """None when an engine may hold the node, else why it stays in torch, as a short phrase."""
    if node.op != "call_function":
        return "is no operator"
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return reason_against(node.args[0])
    if is_size(node):
        return None if node.target in SIZE_ARITHMETIC else "is a size that engines do not compute"
    if not isinstance(node.target, OpOverload) or node.target.namespace not in {"aten", "prims"}:
        return "is no ATen operator"
    return _against_values(node) or _against_operator(node, node.target)


def _against_operator(node: torch.fx.Node, target: OpOverload) -> str | None:
    if draws_numbers(node, target):
        return "draws random numbers"
    if schema_of(target).written:
        return "writes its arguments"
    if packet_name(node) in UNGUARDED:
        return "reads at positions that inductor does not check safely"
    return None


def _against_values(node: torch.fx.Node) -> str | None:
    results, operands = results_of(node), operands_of(node)
    if not results or any(not isinstance(result, torch.Tensor) for result in results):
        return "returns something else than tensors"
    if not operands:
        return "has no tensor among its arguments"
    values = [value for value in [*operands, *results] if isinstance(value, torch.Tensor)]
    for value in values:
        if value.layout is not torch.strided or value.is_quantized:
            return f"meets a {'quantized' if value.is_quantized else value.layout} tensor"
        if value.device.type not in _DEVICES or value.device.type != values[0].device.type:
            return f"runs on {value.device}"
        if value.dtype not in SHORT_NAMES:
            return f"engines do not take {value.dtype}"
    known = {symbol for value in operands for symbol in free_unbacked_symbols(value)}
    if any(free_unbacked_symbols(result) - known for result in results):
        return "has an output size that depends on data"
    return None
