"""Parts of tensors at computed numbers, selected by tensors: ExecuTorch takes these whatever the numbers may be."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_NUMBERS = {aten.item.default, aten._local_scalar_dense.default}  # noqa: SLF001 - torch's only name for it
_INDICES = {torch.int32, torch.int64}


def select_by_tensors(graph: Graph) -> None:
    """Replace `select(x, dim, item(index))` by `index(x, [..., index])`, which gives the same and refuses the same.

    ExecuTorch traces a graph again, and cannot tell then whether a number that nobody bounded counts from the end.

    Args:
        graph: Is changed.

    Example:
        >>> class Row(torch.nn.Module):
        ...     def forward(self, x, i):
        ...         return x[i.item()]
        >>> program = torch.export.export(Row(), (torch.ones(4, 3), torch.tensor(2)))
        >>> select_by_tensors(program.graph)
        >>> len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.index.Tensor))
        1
    """
    for node in graph.find_nodes(op="call_function", target=aten.select.int):
        tensor, dim, number = node.args
        if isinstance(number, Node) and number.target in _NUMBERS:
            index: Any = number.args[0]
            if index.meta["val"].dtype in _INDICES:
                _replace(node, tensor, dim % tensor.meta["val"].dim(), index)
    graph.eliminate_dead_code()


def _replace(node: Node, tensor: Node, dim: int, index: Node) -> None:
    with node.graph.inserting_before(node):
        if index.meta["val"].dim() > 0:
            value = index.meta["val"].view([])
            index = node.graph.call_function(aten.view.default, (index, []))
            index.meta["val"] = value
        part = node.graph.call_function(aten.index.Tensor, (tensor, [None] * dim + [index]))
    part.meta = {**node.meta, "val": node.meta["val"].contiguous()}
    node.replace_all_uses_with(part)
    node.graph.erase_node(node)
