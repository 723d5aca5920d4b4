"""Calls that ONNX Runtime would answer otherwise than torch, though the exporter translates them; each is tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from intarsia._torch import schema_of
from intarsia.core.dim import Size
from intarsia.engines.nodes import operator_name

Check = Callable[[torch.fx.Node], bool]


def known_fault(node: torch.fx.Node) -> str | None:
    """What goes wrong in a call, or None when nothing is known to."""
    for check, reason in FAULTS.get(operator_name(node), ()):
        if check(node):
            return reason
    return None


def _argument(node: torch.fx.Node, name: str) -> Any:
    """An argument by its name in the operator's schema; None where it is left out."""
    names = schema_of(node.target).argument_names
    position = names.index(name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _first(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.all_input_nodes[0].meta["val"]
    return value


def _always(_: torch.fx.Node) -> bool:
    return True


def _may_be_empty(node: torch.fx.Node) -> bool:
    return not all(statically_known_true(size > 0) for size in _first(node).shape)


def _may_reduce_nothing(node: torch.fx.Node) -> bool:
    """Torch takes every symbol for positive, whatever its range: only a fixed size is sure to be."""
    sizes: Sequence[Size] = _first(node).shape
    return not all(isinstance(size, int) and size > 0 for size in sizes)


def _has_no_axes(node: torch.fx.Node) -> bool:
    return any(value.meta["val"].dim() == 0 for value in node.all_input_nodes)


def _reduces_everything(node: torch.fx.Node) -> bool:
    return not _argument(node, "dim")


def _indexes_narrowly(node: torch.fx.Node) -> bool:
    indices: Any = node.args[1]
    return any(index is not None and index.meta["val"].dtype is not torch.int64 for index in indices)


def _is_integral(node: torch.fx.Node) -> bool:
    return not _first(node).is_floating_point()


def _is_floating(node: torch.fx.Node) -> bool:
    return any(value.meta["val"].is_floating_point() for value in node.all_input_nodes)


def _divides_otherwise(node: torch.fx.Node) -> bool:
    """Whether a division of floats, or one of integers by anything else than a constant other than 0 and -1."""
    divisor: Any = node.args[1]
    return _is_floating(node) or type(divisor) is not int or divisor in {0, -1}


def _mixes_with_a_fraction(node: torch.fx.Node) -> bool:
    return _is_integral(node) and any(isinstance(argument, float) for argument in node.args)


def _takes_a_root(node: torch.fx.Node) -> bool:
    return _is_integral(node) or node.args[1] in {0.5, -0.5}


def _is_of_an_infinite_order(node: torch.fx.Node) -> bool:
    return _argument(node, "ord") in {inf, -inf, 0}


def _divides_by_another_number(node: torch.fx.Node) -> bool:
    return _argument(node, "divisor_override") is not None or _pools_beyond_the_border(node)


def _pools_beyond_the_border(node: torch.fx.Node) -> bool:
    return bool(_argument(node, "ceil_mode"))


def _pads_otherwise(node: torch.fx.Node) -> bool:
    if _argument(node, "mode") in {None, "constant"}:
        return False
    return _argument(node, "mode") == "circular" or any(
        not isinstance(size, int) or size < 0 for size in _argument(node, "pad")
    )


def _attends_otherwise(node: torch.fx.Node) -> bool:
    if _argument(node, "dropout_p") not in {None, 0.0} or _argument(node, "enable_gqa"):
        return True
    query, key, value = (node.args[i].meta["val"] for i in range(3))  # type: ignore[union-attr]
    return not query.dim() == key.dim() == value.dim() == 4


_ZERO = ((_always, "ONNX Runtime loses the sign of zero"),)
_LARGE = ((_always, "ONNX Runtime overflows for large numbers"),)
_OTHER = ((_always, "ONNX Runtime computes it otherwise"),)
_ORDER = ((_always, "ONNX Runtime writes in any order where positions are equal"),)
_NANS = ((_always, "ONNX Runtime does not find NaN"),)
_EMPTY = ((_may_be_empty, "ONNX Runtime computes it otherwise where there may be no elements"),)
_NOTHING = ((_may_reduce_nothing, "ONNX Runtime computes it otherwise where there may be no elements"),)
_WHOLE = ((_reduces_everything, "the exporter does not take it without axes"),)
_DIVISION = ((_divides_otherwise, "ONNX Runtime divides otherwise, save integers by a constant"),)
_DIVISOR = ((_divides_by_another_number, "ONNX Runtime divides otherwise with a divisor or a window partly outside"),)
_TARGET = ((_always, "the exporter takes it for a loss of one kind"),)

FAULTS: Mapping[str, Sequence[tuple[Check, str]]] = {
    **dict.fromkeys(
        ("celu.default", "expm1.default", "frac.default", "log1p.default", "selu.default", "trunc.default"), _ZERO
    ),
    **dict.fromkeys(("log_sigmoid.default", "special_log_ndtr.default"), _LARGE),
    **dict.fromkeys(("logaddexp.default", "logaddexp2.default"), _LARGE),
    **dict.fromkeys(("atan2.default", "heaviside.default", "sign.default", "signbit.default"), _OTHER),
    **dict.fromkeys(("lerp.Tensor", "special_erfcx.default"), _OTHER),
    **dict.fromkeys(("_native_batch_norm_legit_functional.default", "im2col.default"), _OTHER),
    **dict.fromkeys(("index_put.default", "scatter.src", "scatter.value", "scatter_add.default"), _ORDER),
    **dict.fromkeys(("scatter_reduce.two",), _ORDER),
    **dict.fromkeys(("argmax.default", "argmin.default", "max.dim", "min.dim", "sort.default"), _NANS),
    **dict.fromkeys(("argsort.default", "topk.default", "max_pool2d_with_indices.default"), _NANS),
    **dict.fromkeys(
        ("max_pool3d_with_indices.default", "adaptive_max_pool2d.default", "adaptive_max_pool1d.default"), _NANS
    ),
    **dict.fromkeys(("std.correction", "std.dim", "std.default", "std_mean.correction", "std_mean.default"), _EMPTY),
    **dict.fromkeys(("var.correction", "var.dim", "var.default", "var_mean.correction", "var_mean.default"), _EMPTY),
    **dict.fromkeys(("amax.default", "amin.default"), _WHOLE + _EMPTY),
    **dict.fromkeys(("max.default", "min.default"), _EMPTY),
    **dict.fromkeys(("group_norm.default", "native_group_norm.default"), _EMPTY),
    **dict.fromkeys(("cross_entropy_loss.default", "nll_loss_forward.default"), _TARGET),
    **dict.fromkeys(("floor_divide.default", "fmod.Scalar", "remainder.Scalar"), _DIVISION),
    "rsub.Scalar": ((_mixes_with_a_fraction, "an integer meets a fraction"),),
    **dict.fromkeys(("remainder.Tensor", "div.Tensor_mode"), _OTHER),
    **dict.fromkeys(("avg_pool2d.default", "avg_pool3d.default"), _DIVISOR),
    "cosine_similarity.default": ((_has_no_axes, "ONNX Runtime does not compute it for a tensor without axes"),),
    "index.Tensor": ((_indexes_narrowly, "the exporter takes positions in i64 alone"),),
    "linalg_vector_norm.default": ((_is_of_an_infinite_order, "ONNX Runtime computes it otherwise in this order"),),
    "pad.default": ((_pads_otherwise, "ONNX Runtime does not pad so"),),
    "pow.Tensor_Scalar": ((_takes_a_root, "ONNX Runtime takes a root otherwise"),),
    "scaled_dot_product_attention.default": (
        (_attends_otherwise, "the exporter takes four axes and one kind of heads"),
    ),
    **dict.fromkeys(("any.default", "any.dim", "any.dims", "mse_loss.default"), _NOTHING),
}
"""What to see in a call of an operator, and why it stays in torch then."""
