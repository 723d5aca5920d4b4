"""Complex inputs, which Torch-TensorRT describes by the real tensors that its engines take.

TensorRT knows no complex numbers. `torch_tensorrt.compile` puts `aten.view_as_real` behind such an input, and leaves
the real tensor in the metadata of the input itself, which is complex still.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import copy_convention, pytree_convention

_aten = torch.ops.aten


def describe_complex_inputs(hybrid: GraphModule) -> GraphModule:
    """A hybrid whose metadata describes such inputs as they are; the hybrid itself if it has none.

    Args:
        hybrid: Not modified; the new one has the very attributes of it.
    """
    wrong = [node for node in hybrid.graph.find_nodes(op="placeholder") if _is_described_as_real(node)]
    if not wrong:
        return hybrid
    images: dict[Node, Node] = {}
    graph = Graph()
    graph.output(graph.graph_copy(hybrid.graph, images))
    for node in wrong:
        images[node].meta["val"] = _complex(node)
    if pytree_convention(hybrid.graph) is not None:
        copy_convention(hybrid.graph, graph)
    described = GraphModule(hybrid, graph)
    described.meta = dict(hybrid.meta)
    return described


def _is_described_as_real(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return False
    return any(user.target is _aten.view_as_real.default for user in node.users)


def _complex(node: Node) -> Any:
    """What describes the input: of double precision where its parts are cast to what the engine takes."""
    value = node.meta["val"]
    is_cast = any(user.target is _aten.to.dtype for parts in node.users for user in parts.users)
    with value.fake_mode:
        return torch.view_as_complex(value.double() if is_cast else value)
