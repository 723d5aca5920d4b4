"""Writes that Torch-TensorRT keeps beside the graph: buffers whose new values are its last outputs.

`torch_tensorrt.compile` turns a buffer that the model writes into an input of the engine, and back into a buffer of the
hybrid. Where no engine writes it in place, its new value is appended to the outputs of the graph; the generated
`forward` leaves it out, and `meta["_copyback_mutation_buffers"]` names the buffers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import copy_convention, pytree_convention
from intarsia.errors import HybridError

_KEY = "_copyback_mutation_buffers"


def show_lifted_writes(hybrid: GraphModule) -> GraphModule:
    """A hybrid whose graph shows such writes, as `aten.copy_` into the buffers; the hybrid itself if it has none.

    Args:
        hybrid: Not modified; the new one has the very attributes of it.

    Raises:
        HybridError: The graph has fewer outputs than such buffers.
    """
    buffers: list[str] = getattr(hybrid, "meta", {}).get(_KEY, [])
    if not buffers:
        return hybrid
    graph = Graph()
    returned: Any = graph.graph_copy(hybrid.graph, {})
    if not isinstance(returned, (tuple, list)) or len(returned) < len(buffers):
        raise HybridError(
            "the hybrid's outputs",
            found=f"fewer than the {len(buffers)} values of buffers that should be the last",
            expected="these values behind the outputs of the model",
            fix="Export the hybrid as torch_tensorrt.compile returned it.",
        )
    count = len(returned) - len(buffers)
    for name, value in zip(buffers, returned[count:], strict=True):
        graph.call_function(torch.ops.aten.copy_.default, (_read(graph, name), value))
    graph.output(type(returned)(returned[:count]))
    if pytree_convention(hybrid.graph) is not None:
        copy_convention(hybrid.graph, graph)
    shown = GraphModule(hybrid, graph)
    shown.meta = {key: value for key, value in hybrid.meta.items() if key != _KEY}
    return shown


def _read(graph: Graph, name: str) -> Node:
    known = (node for node in graph.find_nodes(op="get_attr", sort=True) if node.target == name)
    return next(known, None) or graph.get_attr(name)
