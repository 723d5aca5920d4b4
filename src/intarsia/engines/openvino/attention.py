"""Attention with a mask, made to give zeros where torch does."""

from __future__ import annotations

import operator
from math import inf
from typing import Any

import torch

from intarsia.engines.nodes import operator_name

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"


def clear_rows_without_keys(module: torch.fx.GraphModule) -> None:
    """Set the attention of a row that may look at nothing to zero, as torch does; OpenVINO's would be NaN.

    Args:
        module: Decomposed module, changed in place; its nodes have fake tensors as `val`.
    """
    for node in [node for node in module.graph.nodes if operator_name(node) == _ATTENTION]:
        mask = node.kwargs.get("attn_mask")
        if isinstance(mask, torch.fx.Node):
            for result in [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]:
                _clear(result, mask)


def _clear(result: torch.fx.Node, mask: torch.fx.Node) -> None:
    # OpenVINO's maximum over minus infinity is the lowest finite number, so the mask is compared element by element.
    visible = _call_after(result, torch.ops.aten.ne.Scalar, (mask, -inf))
    some = _call_after(visible, torch.ops.aten.any.dim, (visible, -1, True))
    none = _call_after(some, torch.ops.aten.logical_not.default, (some,))
    with none.graph.inserting_after(none):
        cleared = none.graph.call_function(torch.ops.aten.masked_fill.Scalar, (result, none, 0.0))
    cleared.meta["val"] = result.meta["val"]
    result.replace_all_uses_with(cleared, delete_user_cb=lambda user: user is not cleared)


def _call_after(place: torch.fx.Node, target: Any, arguments: tuple[Any, ...]) -> torch.fx.Node:
    with place.graph.inserting_after(place):
        node = place.graph.call_function(target, arguments)
    node.meta["val"] = target(arguments[0].meta["val"], *arguments[1:])
    return node
