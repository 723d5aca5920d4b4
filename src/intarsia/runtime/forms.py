"""Functional writes of part of a tensor, and the call that does each in place.

A functional write returns its destination with a part replaced. Its in-place form takes the same arguments, writes into
the destination, and returns it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from intarsia._torch import OpOverload
from intarsia.core.op import RUN_ENGINE
from intarsia.core.signature import EngineSignature
from intarsia.core.writes import PARTIAL_WRITES

aten = torch.ops.aten

Part = tuple[Any, ...]
"""Which part of a tensor a view shows: the view operator with its arguments, or nothing when it shows the whole."""


@dataclass(frozen=True)
class PartialWrite:
    """A functional write, read from its node.

    Attributes:
        destination: What it is made of.
        in_place: What does it in place; takes `args` and `kwargs`, and returns the destination.
        args: Arguments of `in_place`, with the nodes that the functional write is called with.
        kwargs: Keyword arguments of `in_place`.
        source: What takes the place of the part whole, when the part is what a view operator shows.
        part: That part; empty where indices or a mask tell it.
        inner: Nodes between source and destination that the functional form needs and the other does not.
        engine: The call of an engine that writes, when the node is an output that it writes into an input.
        position: Position of that input.
    """

    destination: Node
    in_place: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: Node | None = None
    part: Part = ()
    inner: tuple[Node, ...] = ()
    engine: Node | None = None
    position: int = 0

    def others(self) -> list[Node]:
        """Nodes besides the destination that the write reads."""
        found: list[Node] = []
        read = self.args[1:]
        if self.engine is not None:
            inputs: Any = self.engine.args[0]
            read = (*inputs[: self.position], *inputs[self.position + 1 :])
        torch.fx.map_arg((read, self.kwargs), found.append)
        return found


def write_slice(destination: torch.Tensor, source: torch.Tensor, *part: Any) -> torch.Tensor:
    """`aten.slice_scatter` in place."""
    aten.slice.Tensor(destination, *part).copy_(source)
    return destination


def write_selected(destination: torch.Tensor, source: torch.Tensor, *part: Any) -> torch.Tensor:
    """`aten.select_scatter` in place."""
    aten.select.int(destination, *part).copy_(source)
    return destination


def write_diagonal(destination: torch.Tensor, source: torch.Tensor, *part: Any) -> torch.Tensor:
    """`aten.diagonal_scatter` in place."""
    aten.diagonal.default(destination, *part).copy_(source)
    return destination


# Functional writes of what a view shows: what does it in place, and the view.
_OF_VIEWS: dict[OpOverload, tuple[Callable[..., Any], OpOverload]] = {
    aten.slice_scatter.default: (write_slice, aten.slice.Tensor),
    aten.select_scatter.default: (write_selected, aten.select.int),
    aten.diagonal_scatter.default: (write_diagonal, aten.diagonal.default),
}


def _in_place(write: OpOverload) -> OpOverload:
    """The operator of the same schema that does a functional write in place: the one with an underscore."""
    _, name, overload = str(write).split(".")
    found: OpOverload = getattr(getattr(aten, f"{name}_"), overload)
    return found


_IN_PLACE = {write: _in_place(write) for write in PARTIAL_WRITES - _OF_VIEWS.keys()}

# Arguments of views behind the tensor, where a call leaves them out; `slice` to the end and `slice` to the largest
# integer are one.
_DEFAULTS: dict[OpOverload, tuple[Any, ...]] = {
    aten.slice.Tensor: (0, None, None, 1),
    aten.diagonal.default: (0, 0, 1),
}
_LARGEST = 2**63 - 1

# Views that show each element once, without reading any, whatever the shapes and strides.
_PARTS = frozenset(
    [
        *(aten.slice.Tensor, aten.select.int, aten.diagonal.default, aten.alias.default, aten.detach.default),
        *(aten.view.default, aten.permute.default, aten.transpose.int, aten.t.default),
        *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    ]
)

_WHOLE = frozenset([aten.alias.default, aten.detach.default])

# Views that read nothing either, but show an element more than once, or are several.
_OTHER_VIEWS = frozenset(
    [aten.expand.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, operator.getitem]
)


def is_part(node: Node) -> bool:
    """Whether a node is a part of its first argument, told by position: the same memory, each element once."""
    return node.op == "call_function" and node.target in _PARTS and bool(node.args) and not node.kwargs


def reads_nothing(node: Node) -> bool:
    """Whether a node is a view, which does not read the memory that it shows."""
    return node.op == "call_function" and (node.target in _PARTS or node.target in _OTHER_VIEWS)


def part_shown(node: Node) -> Part:
    """The part of its first argument that a view shows; equal for two views of one tensor if they show the same."""
    return () if node.target in _WHOLE else _part(node.target, node.args[1:])


def read_write(node: Node) -> PartialWrite | None:
    """The functional write that a node is, or None when it is none, or its first argument is given by keyword."""
    if node.target is operator.getitem:
        return _read_engine_output(node)
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not node.args:
        return None
    in_place = _IN_PLACE.get(node.target)
    if in_place is not None:
        return PartialWrite(_node(node.args[0]), in_place, node.args, dict(node.kwargs))
    if node.target in _OF_VIEWS and not node.kwargs:
        function, view = _OF_VIEWS[node.target]
        part = _part(view, node.args[2:])
        return PartialWrite(_node(node.args[0]), function, node.args, {}, _node(node.args[1]), part)
    return _read_masked_select(node)


def _read_engine_output(node: Node) -> PartialWrite | None:
    """An output that an engine writes into one of its inputs."""
    call, output = node.args
    if not isinstance(call, Node) or call.target is not RUN_ENGINE:
        return None
    inputs: Any
    inputs, _, signature = call.args
    position = EngineSignature.parse(str(signature)).into.get(output)  # type: ignore[arg-type]
    if position is None:
        return None
    return PartialWrite(inputs[position], operator.getitem, (call, output), {}, engine=call, position=position)


def _read_masked_select(node: Node) -> PartialWrite | None:
    """`where(arange == index, source, destination)`: what torch's decomposition makes of `select_scatter`."""
    if node.target is not aten.where.self or node.kwargs:
        return None
    mask, spread, destination = map(_node, node.args)
    if not (_is_call(mask, aten.eq.Scalar) and _is_call(spread, aten.expand.default)):
        return None
    line, inserted = _node(mask.args[0]), _node(spread.args[0])
    if not (_is_call(line, aten.view.default) and _is_call(inserted, aten.unsqueeze.default)):
        return None
    counted, axes, index = _node(line.args[0]), line.args[1], mask.args[1]
    source, dim = _node(inserted.args[0]), inserted.args[1]
    shape = destination.meta["val"].shape
    alone = [-1 if axis == dim else 1 for axis in range(len(shape))]
    if not _is_call(counted, aten.arange.start_step) or axes != alone or counted.args != (0, shape[dim]):
        return None
    if spread.meta["val"].shape != shape or source.meta["val"].dtype != destination.meta["val"].dtype:
        return None
    if not isinstance(index, int) or not 0 <= index < shape[dim]:
        return None
    part = _part(aten.select.int, (dim, index))
    args = (destination, source, dim, index)
    return PartialWrite(destination, write_selected, args, {}, source, part, inner=(inserted, spread))


def _is_call(node: Node, target: OpOverload) -> bool:
    """Whether a node calls an operator with its two arguments given by position."""
    return node.op == "call_function" and node.target is target and len(node.args) == 2


def _node(argument: Any) -> Node:
    """A tensor argument; in a flat graph that is always a node."""
    return argument  # type: ignore[no-any-return]


def _part(view: Any, arguments: tuple[Any, ...]) -> Part:
    filled = (*arguments, *_DEFAULTS.get(view, ())[len(arguments) :])
    if view is aten.slice.Tensor:
        dim, start, end, step = filled
        filled = (dim, 0 if start is None else start, _LARGEST if end is None else end, step)
    return ((view, *map(_comparable, filled)),)


def _comparable(argument: Any) -> Any:
    """An argument of a view; a symbolic size as its expression, for two nodes may hold the same."""
    value = argument.meta.get("val", argument) if isinstance(argument, Node) else argument
    if isinstance(value, torch.SymInt):
        return value.node.expr
    return tuple(map(_comparable, value)) if isinstance(value, (list, tuple)) else value
