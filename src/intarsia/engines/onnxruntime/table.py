"""In which dtypes ONNX Runtime computes operators as torch does, by what they do; each is tested against torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from intarsia.engines.nodes import CASTS, COMPARISONS

# The exporter decomposes these into others that it translates.
ADDED = frozenset(
    {
        "adaptive_avg_pool1d.default",
        "adaptive_avg_pool2d.default",
        "alias_copy.default",
        "conv_transpose2d.input",
        "conv1d.padding",
        "conv3d.padding",
        "cosine_similarity.default",
        "diff.default",
        "expand_copy.default",
        "meshgrid.indexing",
        "var_mean.correction",
    }
)

Dtypes = frozenset[torch.dtype]

PLAIN: Dtypes = frozenset({torch.float32})
"""What an operator is taken in that stands in none of the tables."""

_DOUBLES: Dtypes = PLAIN | {torch.float64}
_NUMBERS: Dtypes = _DOUBLES | {torch.int32, torch.int64}
_ORDERED: Dtypes = _NUMBERS | {torch.bool, torch.int8, torch.int16, torch.uint8}
_INTEGERS: Dtypes = frozenset({torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
_TRUTHS: Dtypes = _DOUBLES | {torch.bool, torch.int32, torch.int64}
_EVERY: Dtypes = _ORDERED | {torch.bfloat16, torch.float16}
_REPEATED = _EVERY - {torch.bfloat16}
_CHOSEN = _NUMBERS | {torch.float16, torch.int8, torch.uint8}

MOVERS = frozenset(
    {
        "_unsafe_view.default",
        "alias.default",
        "cat.default",
        "clone.default",
        "detach.default",
        "embedding.default",
        "flip.default",
        "gather.default",
        "index.Tensor",
        "index_select.default",
        "permute.default",
        "roll.default",
        "select.int",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "stack.default",
        "t.default",
        "transpose.int",
        "unbind.int",
        "unfold.default",
        "unsqueeze.default",
        "view.default",
    }
)
"""Operators that only move values; what other tensors they take says where to."""

_REPEATERS = frozenset({"expand.default", "meshgrid.indexing", "repeat.default", "repeat_interleave.self_int"})
_REPEATERS |= {"slice_scatter.default", "tile.default"}

CHOOSERS = frozenset(
    {"masked_fill.Scalar", "masked_fill.Tensor", "where.ScalarOther", "where.ScalarSelf", "where.self"}
)
"""Operators that move values to where a mask says."""

_FILLERS = frozenset(
    {
        "full_like.default",
        "new_ones.default",
        "new_zeros.default",
        "ones_like.default",
        "tril.default",
        "triu.default",
        "zeros_like.default",
    }
)

_LOGIC = frozenset(
    {
        "all.default",
        "all.dim",
        "any.default",
        "any.dim",
        "logical_and.default",
        "logical_not.default",
        "logical_or.default",
        "logical_xor.default",
    }
)

_BITS = frozenset(
    {
        "__and__.Tensor",
        "__or__.Tensor",
        "__xor__.Tensor",
        "bitwise_and.Scalar",
        "bitwise_and.Tensor",
        "bitwise_not.default",
        "bitwise_or.Scalar",
        "bitwise_or.Tensor",
        "bitwise_xor.Scalar",
        "bitwise_xor.Tensor",
    }
)

PROMOTED = frozenset(
    {
        "add.Tensor",
        "div.Tensor",
        "maximum.default",
        "minimum.default",
        "mul.Tensor",
        "sub.Tensor",
        "where.self",
    }
)
"""Operators that may meet several dtypes at once, which the exporter casts to one as torch does."""

# Whole numbers too: ONNX Runtime keeps 64 bits.
_ARITHMETIC = PROMOTED | {
    "abs.default",
    "amax.default",
    "amin.default",
    "argmax.default",
    "argmin.default",
    "bmm.default",
    "clamp.default",
    "clamp_max.default",
    "clamp_min.default",
    "cumsum.default",
    "dot.default",
    "floor_divide.default",
    "fmod.Scalar",
    "matmul.default",
    "max.default",
    "max.other",
    "min.default",
    "min.other",
    "mm.default",
    "mul.Scalar",
    "mv.default",
    "neg.default",
    "remainder.Scalar",
    "rsub.Scalar",
    "square.default",
    "sub.Scalar",
    "add.Scalar",
}

_FLOATING = frozenset(
    {
        "addcmul.default",
        "addmm.default",
        "ceil.default",
        "cos.default",
        "div.Scalar",
        "exp.default",
        "floor.default",
        "isnan.default",
        "layer_norm.default",
        "linalg_vector_norm.default",
        "linear.default",
        "log.default",
        "logsumexp.default",
        "mean.default",
        "mean.dim",
        "pow.Tensor_Scalar",
        "reciprocal.default",
        "relu.default",
        "round.default",
        "rsqrt.default",
        "sigmoid.default",
        "silu.default",
        "sin.default",
        "softmax.int",
        "sqrt.default",
        "tanh.default",
        "var.correction",
        "var.dim",
    }
)

DTYPES: Mapping[str, Dtypes] = {
    **dict.fromkeys(MOVERS | CASTS, _EVERY),
    **dict.fromkeys(_REPEATERS, _REPEATED),
    **dict.fromkeys(_LOGIC, _TRUTHS),
    **dict.fromkeys(_BITS, _INTEGERS),
    **dict.fromkeys(COMPARISONS, _ORDERED),
    **dict.fromkeys(_FILLERS, _TRUTHS),
    **dict.fromkeys(_FLOATING, _DOUBLES),
    **dict.fromkeys(_ARITHMETIC, _NUMBERS),
    **dict.fromkeys(CHOOSERS, _CHOSEN),
    # ONNX Runtime adds and multiplies up in f64; torch gives an i64 for i32, whose sums do not get that large.
    **dict.fromkeys(("sum.default", "sum.dim_IntList"), _DOUBLES | {torch.int32}),
    **dict.fromkeys(("einsum.default", "prod.dim_int"), _DOUBLES),
    "scaled_dot_product_attention.default": PLAIN | {torch.bool},
    "pad.default": _CHOSEN | {torch.bool},
}
"""The dtypes that operators are taken in, other than `PLAIN`."""
