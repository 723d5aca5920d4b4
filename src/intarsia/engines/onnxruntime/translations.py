"""Translations to ONNX that take the place of the exporter's own, where ONNX Runtime would compute something else.

Each is a function of ONNX values and Python numbers, as `torch.onnx` calls it; it writes ONNX operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import torch

from intarsia.engines.onnxruntime.library import NOWHERE

aten = torch.ops.aten

# ONNX's numbers of f32 and f64.
_FLOATS = (1, 11)
_TRUTH = 9


def translations() -> Mapping[Any, Callable[..., Any]]:
    """Our translations, by operator."""
    return {
        aten.embedding.default: _embedding,
        aten.clamp.default: _clamp,
        aten.clamp_max.default: _clamp_max,
        aten.clamp_min.default: _clamp,
        aten.erf.default: _erf,
        aten.gather.default: _gather,
        aten.index_select.default: _index_select,
    }


# Maxima and minima, which the exporter's own translation tells but for NaN.
EXTREMES: Mapping[Any, float] = {
    aten.amax.default: 1.0,
    aten.amin.default: -1.0,
    aten.max.default: 1.0,
    aten.max_pool1d.default: 1.0,
    aten.max_pool2d.default: 1.0,
    aten.max_pool3d.default: 1.0,
    aten.min.default: -1.0,
}

# Operators that the exporter knows under another name.
TWINS: Mapping[Any, Any] = {
    getattr(aten, "__and__").Tensor: aten.bitwise_and.Tensor,  # noqa: B009 - operators' names, and not private
    getattr(aten, "__or__").Tensor: aten.bitwise_or.Tensor,  # noqa: B009
    getattr(aten, "__xor__").Tensor: aten.bitwise_xor.Tensor,  # noqa: B009
}


def _op() -> Any:
    """ONNX's operators; onnxscript is imported when a model is first exported."""
    from onnxscript import opset20

    return opset20


def _from_the_start(index: Any) -> Any:
    """Positions as i64, of which the negative ones are nowhere."""
    op = _op()
    wide = op.Cast(index, to=7)
    return op.Where(op.Less(wide, op.Constant(value_int=0)), op.Constant(value_int=NOWHERE), wide)


def _embedding(weight: Any, indices: Any, *_: Any) -> Any:
    return _op().Gather(weight, _from_the_start(indices))


def _index_select(self: Any, dim: int, index: Any) -> Any:
    return _op().Gather(self, _from_the_start(index), axis=dim)


def _gather(self: Any, dim: int, index: Any, **_: Any) -> Any:
    return _op().GatherElements(self, _from_the_start(index), axis=dim)


def _clamp(self: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - torch's names
    """`Clip` without a bound takes the largest number for it, and so loses infinity."""
    op = _op()
    low = self if min is None else op.Max(self, op.CastLike(min, self))
    return low if max is None else op.Min(low, op.CastLike(max, self))


def _clamp_max(self: Any, max: Any) -> Any:  # noqa: A002 - torch's name
    return _clamp(self, None, max)


def _erf(self: Any) -> Any:
    """ONNX Runtime 1.23 gives 1 for NaN."""
    op = _op()
    return op.Where(op.IsNaN(self), self, op.Erf(self))


def with_nans(original: Callable[..., Any], sign: float) -> Callable[..., Any]:
    """A maximum (`sign` 1) or minimum (-1) that is NaN where an element of it is; ONNX Runtime leaves NaN out."""

    def translated(self: Any, *args: Any, **kwargs: Any) -> Any:
        op = _op()
        if self.dtype not in _FLOATS:
            return original(self, *args, **kwargs)
        flags = op.Where(op.IsNaN(self), op.CastLike(sign, self), op.CastLike(0.0, self))
        # Translations look at the shape of what they are given.
        flags.shape, flags.type = self.shape, self.type
        found = op.Not(op.Equal(original(flags, *args, **kwargs), op.CastLike(0.0, self)))
        return op.Where(found, op.CastLike(nan, self), original(self, *args, **kwargs))

    return translated


def with_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A mean that is NaN where there is nothing to take it of, as torch's is; ONNX Runtime gives 0."""

    def translated(self: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *(() if dim is None else (dim,)), *args, **kwargs)
        sizes = list(self.shape) if not dim else [self.shape[axis] for axis in dim]
        if all(isinstance(size, int) and size > 0 for size in sizes):
            return result
        op = _op()
        empty = op.Equal(op.Size(self), op.Constant(value_int=0))
        return op.Where(empty, op.CastLike(nan, result), result)

    return translated


def with_empty_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention that gives zeros to a query that may look at nothing, as torch's does, and not NaN."""

    def translated(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = original(query, key, value, attn_mask, *args, **kwargs)
        if attn_mask is None:
            return result
        op = _op()
        hidden = op.CastLike(-inf, attn_mask)
        visible = attn_mask if attn_mask.dtype == _TRUTH else op.Not(op.Equal(attn_mask, hidden))
        some = op.ReduceMax(visible, op.Constant(value_ints=[-1]), keepdims=1)
        return op.Where(some, result, op.CastLike(0.0, result))

    return translated
