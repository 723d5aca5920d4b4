"""Keep the positions that a graph reads and writes at inside of their tensors, and note where they were not.

Code of inductor checks them in the middle of a parallel loop, where its exception ends the process.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from intarsia._torch import OpOverload

# Operators with positions: where the arguments stand that tell the dim and the positions. Those of the second kind
# take a list of positions, for the first dims of a tensor.
_ALONG_DIM: Mapping[str, tuple[int | None, int]] = {
    "embedding": (None, 1),
    "gather": (1, 2),
    "index_add": (1, 2),
    "index_copy": (1, 2),
    "index_fill": (1, 2),
    "index_reduce": (1, 2),
    "index_select": (1, 2),
    "scatter": (1, 2),
    "scatter_add": (1, 2),
    "scatter_reduce": (1, 2),
}
_LISTED = frozenset({"_unsafe_index", "_unsafe_index_put", "index", "index_put"})
_COUNTS_BACK = _LISTED | {"index_fill"}
UNGUARDED = frozenset(
    {"_embedding_bag", "cross_entropy_loss", "embedding_bag", "max_unpool2d", "max_unpool3d", "multi_margin_loss",
     "multilabel_margin_loss", "multilabel_margin_loss_forward", "nll_loss", "nll_loss2d", "nll_loss2d_forward",
     "nll_loss_forward", "nll_loss_nd", "put", "take", "take_along_dim"}
)  # fmt: skip
"""Operators whose positions are not seen to here, without the underscore of those that write in place."""


OUTSIDE = "a position outside of"
"""How messages about positions begin."""


def reads_positions(node: Node) -> bool:
    """Whether a node is an operator with positions, guarded or not."""
    name = packet_name(node)
    return name in _ALONG_DIM or name in _LISTED or name in UNGUARDED


class Guard(NamedTuple):
    """Positions that were kept inside.

    Attributes:
        flag: b8[]: whether one was outside.
        text: What they count along, for messages.
    """

    flag: Node
    text: str


class _Position(NamedTuple):
    argument: tuple[int, ...]
    given: Node
    tensor: Node
    dim: int
    counts_back: bool


def packet_name(node: Node) -> str:
    """Name of an ATen operator, the same for its overloads and for the form that writes in place: "index_put"."""
    target = node.target
    return target.overloadpacket.__name__.removesuffix("_") if isinstance(target, OpOverload) else ""


def guard_positions(graph: Graph, is_known: Callable[[Node, int, bool], bool]) -> list[Guard]:
    """Keep all positions of a graph inside of their tensors.

    Args:
        graph: Changed in place; its nodes have fake tensors as `val`.
        is_known: Whether all that a node can hold are positions in a dim of a fixed size; and whether -1 is one.
    """
    guards = []
    for node in list(graph.nodes):
        for position in _positions_of(node):
            size = _shape_of(position.tensor)[position.dim] if _shape_of(position.tensor) else 1
            if not (isinstance(size, int) and is_known(position.given, size, position.counts_back)):
                guards.append(_guard(graph, node, position, size))
    return guards


def _positions_of(node: Node) -> Iterator[_Position]:
    name = packet_name(node)
    arguments: Any = node.args
    if name in _ALONG_DIM:
        where, at = _ALONG_DIM[name]
        dim = 0 if where is None else arguments[where]
        rank = max(len(_shape_of(arguments[0])), 1)
        yield _Position((at,), arguments[at], arguments[0], dim % rank, name in _COUNTS_BACK)
    elif name in _LISTED:
        dim = 0
        for i, index in enumerate(arguments[1]):
            if not isinstance(index, Node):
                dim += 1
            elif index.meta["val"].dtype in (torch.bool, torch.uint8):
                dim += index.meta["val"].dim()
            else:
                yield _Position((1, i), index, arguments[0], dim, counts_back=True)
                dim += 1


def _guard(graph: Graph, node: Node, position: _Position, size: Any) -> Guard:
    with graph.inserting_before(node):
        if not isinstance(size, int):
            size = call(graph, torch.ops.aten.sym_size.int, position.tensor, position.dim)
        least = _minus(graph, 0, size) if position.counts_back else 0
        inside = call(graph, torch.ops.aten.clamp.default, position.given, least, _minus(graph, size, 1))
        moved = call(graph, torch.ops.aten.ne.Tensor, position.given, inside)
        flag = call(graph, torch.ops.aten.any.default, moved)
    arguments: list[Any] = [list(one) if isinstance(one, Sequence) else one for one in node.args]
    if len(position.argument) == 2:
        arguments[1][position.argument[1]] = inside
    else:
        arguments[position.argument[0]] = inside
    node.args = tuple(arguments)
    text = f"dimension {position.dim} of what {node.target} takes"
    return Guard(flag, text + (f", of size {size}" if isinstance(size, int) else ""))


def _minus(graph: Graph, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return call(graph, operator.sub, left, right)


def call(graph: Graph, target: Any, *arguments: Any) -> Node:
    """Insert a call, with its fake value."""
    node = graph.call_function(target, arguments)
    node.meta["val"] = target(*torch.fx.map_arg(arguments, lambda argument: argument.meta["val"]))
    return node


def _shape_of(node: Node) -> Sequence[int | torch.SymInt]:
    shape: Sequence[int | torch.SymInt] = node.meta["val"].shape
    return shape
