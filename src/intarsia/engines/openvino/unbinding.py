"""`unbind` of tensors with symbolic sizes, in operators that OpenVINO converts for them."""

from __future__ import annotations

import operator
from typing import Any

import torch

from intarsia.engines.nodes import operator_name


def split_unbinds(module: torch.fx.GraphModule) -> None:
    """Write each `unbind` as a split into parts of size 1, whose axis each result loses.

    OpenVINO asks for the whole shape of what it unbinds; its split asks for none.

    Args:
        module: Changed in place; its nodes have fake tensors as `val`.
    """
    for node in [node for node in module.graph.nodes if operator_name(node) == "unbind.int"]:
        source = node.args[0]
        if any(isinstance(size, torch.SymInt) for size in source.meta["val"].shape):
            _split(module.graph, node, source, node.args[1] if len(node.args) > 1 else 0)


def _split(graph: torch.fx.Graph, unbind: torch.fx.Node, source: torch.fx.Node, axis: Any) -> None:
    with graph.inserting_before(unbind):
        split = graph.call_function(torch.ops.aten.split.Tensor, (source, 1, axis))
    split.meta["val"] = torch.ops.aten.split.Tensor(source.meta["val"], 1, axis)
    for result in list(unbind.users):
        with graph.inserting_before(result):
            part = graph.call_function(operator.getitem, (split, result.args[1]))
            single = graph.call_function(torch.ops.aten.squeeze.dim, (part, axis))
        part.meta["val"], single.meta["val"] = split.meta["val"][result.args[1]], result.meta["val"]
        result.replace_all_uses_with(single)
        graph.erase_node(result)
    graph.erase_node(unbind)
