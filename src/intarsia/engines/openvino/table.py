"""Which operators OpenVINO takes, and what they do with integers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from intarsia.engines.nodes import operator_name

# Not in OpenVINO's own table, which is written for decomposed graphs; each is tested against torch.
ADDED = frozenset(
    {
        "__and__.Tensor",
        "__or__.Tensor",
        "__xor__.Tensor",
        "adaptive_avg_pool1d.default",
        "adaptive_avg_pool2d.default",
        "all.dim",
        "atan.default",
        "avg_pool1d.default",
        "celu.default",
        "conv1d.default",
        "conv2d.default",
        "conv2d.padding",
        "conv3d.default",
        "conv_transpose1d.default",
        "conv_transpose2d.input",
        "cosine_similarity.default",
        "diff.default",
        "einsum.default",
        "expm1.default",
        "group_norm.default",
        "instance_norm.default",
        "layer_norm.default",
        "linear.default",
        "log_softmax.int",
        "logical_and.default",
        "matmul.default",
        "max_pool1d.default",
        "max_pool2d.default",
        "mish.default",
        "pad.default",
        "pixel_shuffle.default",
        "prelu.default",
        "relu6.default",
        "rms_norm.default",
        "scaled_dot_product_attention.default",
        "selu.default",
        "softmax.int",
        "softplus.default",
        "square.default",
        "squeeze.default",
        "std.dim",
        "threshold.default",
        "tile.default",
        "upsample_bicubic2d.vec",
        "upsample_bilinear2d.vec",
        "var.dim",
        "where.ScalarOther",
        "where.ScalarSelf",
    }
)

# Operators that only move values. OpenVINO moves every dtype rightly, save 64-bit integers that need more than 32.
MOVERS = frozenset(
    {
        "alias.default",
        "cat.default",
        "clone.default",
        "detach.default",
        "embedding.default",
        "expand.default",
        "flip.default",
        "gather.default",
        "index.Tensor",
        "index_select.default",
        "masked_fill.Scalar",
        "permute.default",
        "repeat.default",
        "select.int",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "stack.default",
        "t.default",
        "tile.default",
        "transpose.int",
        "unbind.int",
        "unsqueeze.default",
        "view.default",
        "where.ScalarOther",
        "where.ScalarSelf",
        "where.self",
    }
)

# Operators on truth values; on integers they are arithmetic.
LOGIC = frozenset(
    {
        "__and__.Tensor",
        "__or__.Tensor",
        "__xor__.Tensor",
        "all.default",
        "all.dim",
        "any.default",
        "any.dim",
        "bitwise_and.Tensor",
        "bitwise_not.default",
        "bitwise_or.Tensor",
        "bitwise_xor.Tensor",
        "logical_and.default",
        "logical_not.default",
    }
)

# Operators on floats that return positions, which fit in 32 bits.
POSITIONS = frozenset(
    {
        "adaptive_max_pool2d.default",
        "argmax.default",
        "argmin.default",
        "max.dim",
        "max_pool2d_with_indices.default",
        "min.dim",
        "sort.default",
        "topk.default",
    }
)

# Arguments that hold positions, which positions.py sees to.
INDEX_ARGUMENTS: Mapping[str, int] = {
    "_unsafe_index.Tensor": 1,
    "embedding.default": 1,
    "gather.default": 2,
    "index.Tensor": 1,
    "index_copy.default": 2,
    "index_put.default": 1,
    "index_select.default": 2,
    "scatter.src": 2,
    "scatter.value": 2,
}

# Of those operators, the ones that write: OpenVINO would write outside of its memory.
POSITION_WRITES = frozenset({"index_copy.default", "index_put.default", "scatter.src", "scatter.value"})

MASK_ARGUMENTS: Mapping[str, int] = {
    "masked_fill.Scalar": 1,
    "masked_fill.Tensor": 1,
    "scaled_dot_product_attention.default": 3,
    "where.ScalarOther": 0,
    "where.ScalarSelf": 0,
    "where.self": 0,
}


def is_taken(node: torch.fx.Node) -> bool:
    """Whether OpenVINO converts the operator, itself or after decomposing it."""
    return operator_name(node) in ADDED or is_listed(node)


def is_listed(node: torch.fx.Node) -> bool:
    """Whether OpenVINO's own table says that its conversion takes the node as it is."""
    listed: bool = _own_table().is_node_supported({}, node)
    return listed


@cache
def _own_table() -> Any:
    from openvino.frontend.pytorch.torchdynamo.op_support import OperatorSupport

    return OperatorSupport({})
