"""Make a graph right for engines, which return contiguous memory that aliases nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from intarsia._torch import OpOverload
from intarsia.partition.blocks import Block, block_outputs
from intarsia.partition.operators import has_own_sizes, is_getitem, is_layout, is_symbolic, is_tensor, operator_name

Node = torch.fx.Node

_READ_STRIDES = ("aten.as_strided", "aten.sym_stride", "aten.sym_storage_offset")
_NEED_STRIDES = ("aten.view.", "aten._unsafe_view.", "aten.view_as_complex.", "aten.view_as_real.")


def copy_shared_layouts(graph: torch.fx.Graph, block: Block) -> None:
    """Work out in torch, too, each layout operator of a block whose result is used inside and outside.

    So no engine returns a view: what leaves it is the tensor that was viewed, and the view stays a view of it.

    Args:
        graph: Changed in place.
        block: Nodes of one partition, in graph order.
    """
    for node in reversed(block):
        outside = [user for user in node.users if user not in block]
        if not is_layout(node) or not outside:
            continue
        with graph.inserting_after(node):
            copy = graph.node_copy(node)
        for user in outside:
            user.replace_input_with(node, copy)


def make_outputs_contiguous(graph: torch.fx.Graph, blocks: Sequence[Block]) -> dict[Node, str]:
    """Let each block return contiguous memory, and follow what that changes downstream.

    A block output of another layout gets a `clone` at the block's end: a fact about the engine, not work for it.
    The `val` of each node that depends on it is computed again; a view that became illegal gets a `clone` before it.

    Args:
        graph: Changed in place.
        blocks: The partitions' nodes; the clones are added to them.

    Returns:
        Block outputs whose original layout something reads -> why they must stay in torch. When there are any,
        the graph is of no further use.
    """
    return _Relayout(graph, blocks).run()


class _Relayout:
    def __init__(self, graph: torch.fx.Graph, blocks: Sequence[Block]) -> None:
        self._graph = graph
        self._owners = {node: block for block in blocks for node in block}
        self._outputs = {node for block in blocks for node in block_outputs(block)}
        # Nodes whose layout changed -> the block outputs that it changed for.
        self._origins: dict[Node, frozenset[Node]] = {}
        self._faults: dict[Node, str] = {}

    def run(self) -> dict[Node, str]:
        with torch.no_grad():
            for node in list(self._graph.nodes):
                origins = frozenset[Node]().union(*(self._origins.get(part, ()) for part in node.all_input_nodes))
                if origins and node.op == "call_function" and self._refresh(node, origins):
                    self._origins[node] = origins
                if node in self._outputs and is_tensor(node) and not _is_contiguous(node.meta["val"]):
                    self._append_clone(node)
        return self._faults

    def _append_clone(self, node: Node) -> None:
        block = self._owners[node]
        outside = [user for user in node.users if user not in block]
        clone = self._clone(node, after=node)
        block[clone] = None
        for user in outside:
            user.replace_input_with(node, clone)
        self._origins[clone] = frozenset((node,))

    def _clone(self, node: Node, after: Node) -> Node:
        with self._graph.inserting_after(after):
            clone = self._graph.call_function(
                torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        clone.meta["val"] = _evaluate(clone)
        return clone

    def _refresh(self, node: Node, origins: frozenset[Node]) -> bool:
        """Compute the node's `val` again; tell whether its layout changed."""
        name = operator_name(node)
        if name.startswith(_READ_STRIDES) or not (
            isinstance(node.target, OpOverload) or is_getitem(node) or is_symbolic(node)
        ):
            self._refuse(node, origins)
            return False
        if is_symbolic(node) or has_own_sizes(node) or name.startswith("aten.copy_."):
            return False
        if name.startswith(_NEED_STRIDES):
            self._repair_view(node)
        before = node.meta["val"]
        try:
            node.meta["val"] = _evaluate(node)
        except (RuntimeError, ValueError, TypeError):
            # Whatever torch says, it says that the operator does not take this layout.
            self._refuse(node, origins)
            return False
        return not _same_layout(before, node.meta["val"])

    def _repair_view(self, node: Node) -> None:
        for part in node.all_input_nodes:
            if part not in self._origins or _is_contiguous(part.meta["val"]):
                continue
            clone = self._clone(part, after=part)
            node.replace_input_with(part, clone)
            if node in self._owners:
                self._insert_before(self._owners[node], clone, node)

    @staticmethod
    def _insert_before(block: Block, clone: Node, node: Node) -> None:
        order = list(block)
        order.insert(order.index(node), clone)
        block.clear()
        block.update(dict.fromkeys(order))

    def _refuse(self, node: Node, origins: frozenset[Node]) -> None:
        for origin in origins:
            self._faults[origin] = f"%{node.name} ({operator_name(node)}) reads the memory layout of its result"


def _evaluate(node: Node) -> Any:
    operator: Any = node.target
    args, kwargs = map_arg((node.args, node.kwargs), lambda part: part.meta["val"])
    return operator(*args, **kwargs)


def _is_contiguous(value: torch.Tensor) -> bool:
    """Whether the layout is contiguous at all sizes; asks no question that would constrain the sizes."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(stride == expected)):
            return False
        expected = expected * size
    return True


def _same_layout(before: Any, after: Any) -> bool:
    if not isinstance(before, torch.Tensor):
        return all(_same_layout(*pair) for pair in zip(before, after, strict=True) if isinstance(pair[0], torch.Tensor))
    return all(statically_known_true(old == new) for old, new in zip(before.stride(), after.stride(), strict=True))
