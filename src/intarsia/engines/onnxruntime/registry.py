"""Which operators torch exports to ONNX, by the exporter's own table with our translations in it."""

from __future__ import annotations

from functools import cache

from intarsia._torch import OnnxRegistry, OpOverload, onnx_registry
from intarsia.engines.onnxruntime.library import OPSET
from intarsia.engines.onnxruntime.translations import EXTREMES, translations, with_nans


@cache
def find_registry() -> OnnxRegistry:
    """The table, made once: that takes a second."""
    registry = onnx_registry(OPSET, translations())
    for target, sign in EXTREMES.items():
        registry.register_op(target, with_nans(registry.get_decomps(target)[0].onnx_function, sign))
    return registry


@cache
def is_registered(target: OpOverload) -> bool:
    """Whether the exporter translates an operator as it is."""
    return bool(find_registry().is_registered(target))
