"""Which operators torch exports to ONNX, by the exporter's own table with our translations in it."""

from __future__ import annotations

from functools import cache

import torch

from intarsia._torch import OnnxRegistry, OpOverload, onnx_registry
from intarsia.engines.onnxruntime.library import OPSET
from intarsia.engines.onnxruntime.translations import (
    EXTREMES,
    TWINS,
    translations,
    with_empty_rows,
    with_nans,
    with_nothing,
)


@cache
def find_registry() -> OnnxRegistry:
    """The table, made once: that takes a second."""
    registry = onnx_registry(OPSET, translations())
    for target, sign in EXTREMES.items():
        registry.register_op(target, with_nans(registry.get_decomps(target)[0].onnx_function, sign))
    for target in (torch.ops.aten.mean.default, torch.ops.aten.mean.dim):
        registry.register_op(target, with_nothing(registry.get_decomps(target)[0].onnx_function))
    for target, twin in TWINS.items():
        registry.register_op(target, registry.get_decomps(twin)[0].onnx_function)
    attention = torch.ops.aten.scaled_dot_product_attention.default
    registry.register_op(attention, with_empty_rows(registry.get_decomps(attention)[0].onnx_function))
    return registry


@cache
def is_registered(target: OpOverload) -> bool:
    """Whether the exporter translates an operator as it is."""
    return bool(find_registry().is_registered(target))
