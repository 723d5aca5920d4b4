"""Calls that OpenVINO 2025.4 gets wrong, though its table lists their operators; each is tested against torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from intarsia.core.dim import Size

Check = Callable[[torch.fx.Node], bool]


def known_fault(name: str, node: torch.fx.Node) -> str | None:
    """What OpenVINO gets wrong in a call of the operator `name`, or None when nothing is known to be."""
    if _has_empty_list(node):
        return "has an empty list among its arguments, of which OpenVINO crashes"
    check, reason = FAULTS.get(name, (None, ""))
    return reason if check is not None and check(node) else None


def _has_empty_list(node: torch.fx.Node) -> bool:
    return any(isinstance(argument, Sequence) and len(argument) == 0 for argument in node.args)


def _argument(node: torch.fx.Node, position: int) -> Any:
    return node.args[position] if position < len(node.args) else None


def _shape(argument: Any) -> torch.Size:
    shape: torch.Size = argument.meta["val"].shape
    return shape


def _always(_: torch.fx.Node) -> bool:
    return True


def _is_not_f32(node: torch.fx.Node) -> bool:
    value: torch.Tensor = _argument(node, 0).meta["val"]
    return value.dtype is not torch.float32


def _reduces_everything(node: torch.fx.Node) -> bool:
    return _argument(node, 1) is None


def _corrects_otherwise(node: torch.fx.Node) -> bool:
    correction = node.kwargs.get("correction")
    return _reduces_everything(node) if correction is None else correction not in {0, 1}


def _counts_or_flattens(node: torch.fx.Node) -> bool:
    order = _argument(node, 1)
    return order == 0 or _argument(node, 2) is None


def _splits_unevenly(node: torch.fx.Node) -> bool:
    size: Size = _shape(node.args[0])[_argument(node, 2) or 0]
    part: Any = node.args[1]
    return isinstance(size, torch.SymInt) or not isinstance(part, int) or size % part != 0


def _gathers_from_part(node: torch.fx.Node) -> bool:
    source, index = _shape(node.args[0]), _shape(node.args[2])
    axis: Any = node.args[1]
    return any(
        i != axis % len(source) and not statically_known_true(have == want)
        for i, (have, want) in enumerate(zip(source, index, strict=True))
    )


def _has_no_axes(node: torch.fx.Node) -> bool:
    return len(_shape(node.args[0])) == 0


def _pads_with_content(node: torch.fx.Node) -> bool:
    return _argument(node, 2) not in {None, "constant"}


def _pools_beyond_the_border(node: torch.fx.Node) -> bool:
    padding: Any = _argument(node, 3)
    return bool(_argument(node, 4)) and any(padding or ())


def _divides_otherwise(node: torch.fx.Node) -> bool:
    return _argument(node, 6) is not None or _pools_beyond_the_border(node)


def _averages_channels_last(node: torch.fx.Node) -> bool:
    """Whether torch decomposes it to an `as_strided`: one window, over an input whose channels lie side by side."""
    value: torch.Tensor = _argument(node, 0).meta["val"]
    sizes: Any = node.args[1]
    strides = value.stride()
    if len(strides) != len(sizes) + 2 or any(size != 1 for size in sizes):
        return False
    return statically_known_true(strides[1] == 1) and not statically_known_true(strides[-1] == 1)


def _indexes_several_axes(node: torch.fx.Node) -> bool:
    indices: Any = node.args[1]
    return sum(isinstance(index, torch.fx.Node) for index in indices) > 1


def _accumulates_or_masks_otherwise(node: torch.fx.Node) -> bool:
    if _argument(node, 3):
        return True
    indices: Any = node.args[1]
    masks = [index for index in indices if index is not None and index.meta["val"].dtype is torch.bool]
    if not masks:
        return False
    return len(indices) > 1 or len(_shape(masks[0])) < len(_shape(node)) or len(_shape(node.args[2])) > 0


def _drops_or_groups(node: torch.fx.Node) -> bool:
    return _argument(node, 4) not in {None, 0.0} or bool(node.kwargs.get("enable_gqa"))


def _contracts_otherwise(node: torch.fx.Node) -> bool:
    equation: Any = node.args[0]
    operands = equation.partition("->")[0].replace("...", "").replace(" ", "").split(",")
    diagonal = any(len(set(letters)) < len(letters) for letters in operands)
    return diagonal or len(_shape(node)) == 0


def _keeps_a_size_beside_a_symbolic_one(node: torch.fx.Node) -> bool:
    sizes: Any = node.args[1]
    return -1 in sizes and any(isinstance(size, torch.fx.Node) for size in sizes)


def _has_a_symbolic_size(node: torch.fx.Node) -> bool:
    sizes: Any = node.args[1]
    return any(isinstance(size, torch.fx.Node) for size in sizes)


_CORRECTION = (_corrects_otherwise, "OpenVINO ignores the correction here")
_WHOLE = (_reduces_everything, "OpenVINO does not convert it without axes")
_NO_AXES = (_has_no_axes, "OpenVINO does not convert it for a tensor without axes")

_WRITES = (
    _accumulates_or_masks_otherwise,
    "OpenVINO accumulates wrongly, and writes by masks only one number, into whole tensors",
)
_UNCONVERTED = (_always, "OpenVINO does not convert it")
_PRECISION = (_is_not_f32, "OpenVINO finds the positions of maxima in f32 only")
_CHANNELS_LAST = (_averages_channels_last, "OpenVINO does not convert it where the channels lie side by side")
_DIVISION = (_always, "OpenVINO rounds quotients otherwise")
_SIZES = (_has_a_symbolic_size, "OpenVINO does not convert it with a symbolic size")
_AXES = (_indexes_several_axes, "OpenVINO reads negative positions on several axes wrongly")

FAULTS: Mapping[str, tuple[Check, str]] = {
    "_native_batch_norm_legit_functional.default": _UNCONVERTED,
    "_unsafe_index.Tensor": _AXES,
    "adaptive_avg_pool1d.default": _CHANNELS_LAST,
    "adaptive_avg_pool2d.default": _CHANNELS_LAST,
    "amax.default": _WHOLE,
    "amin.default": _WHOLE,
    "as_strided.default": _UNCONVERTED,
    "as_strided_copy.default": _UNCONVERTED,
    "avg_pool1d.default": (_pools_beyond_the_border, "OpenVINO divides otherwise where a window lies partly outside"),
    "avg_pool2d.default": (_divides_otherwise, "OpenVINO divides otherwise with a divisor or a window partly outside"),
    "avg_pool3d.default": (_always, "OpenVINO averages otherwise at the borders"),
    "cumsum.default": (_is_not_f32, "OpenVINO adds up in bf16"),
    "div.Tensor_mode": _DIVISION,
    "einsum.default": (_contracts_otherwise, "OpenVINO dies of inner products and does not convert diagonals"),
    "expand.default": (_keeps_a_size_beside_a_symbolic_one, "OpenVINO cannot tell -1 beside a symbolic size"),
    "fmod.Scalar": _DIVISION,
    "fmod.Tensor": _DIVISION,
    "gather.default": (_gathers_from_part, "OpenVINO gathers only where the other sizes are equal"),
    "index.Tensor": _AXES,
    "index_put.default": _WRITES,
    "linalg_vector_norm.default": (_counts_or_flattens, "OpenVINO does not convert it without axes or of order 0"),
    "log1p.default": (_is_not_f32, "OpenVINO rounds between its steps in bf16"),
    "log_sigmoid_forward.default": (_always, "OpenVINO overflows for large negative numbers"),
    "max.dim": _NO_AXES,
    "max_pool2d_with_indices.default": _PRECISION,
    "max_pool3d_with_indices.default": _PRECISION,
    "min.dim": _NO_AXES,
    "new_full.default": _SIZES,
    "new_ones.default": _SIZES,
    "new_zeros.default": _SIZES,
    "pad.default": (_pads_with_content, "OpenVINO reflects the wrong elements"),
    "scaled_dot_product_attention.default": (_drops_or_groups, "OpenVINO neither drops elements nor groups heads"),
    "split.Tensor": (_splits_unevenly, "OpenVINO splits only into equal parts"),
    "std.correction": _CORRECTION,
    "topk.default": _NO_AXES,
    "var.correction": _CORRECTION,
    "var_mean.correction": _CORRECTION,
}
