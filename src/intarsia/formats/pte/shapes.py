"""The sizes of what an engine returned: ExecuTorch's OpenVINO runtime leaves every output at its largest size.

What the engine wrote stands row-major at the start of that memory. So an output is read from there with the sizes that
it has in this call, which copies it once, as one piece: a slice of rows that have its last sizes. Where several sizes
change, torch may know those of a view as quotients only, and bounds them too high; then it is read element by element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy

from intarsia.core.signature import EngineSignature
from intarsia.formats.pte.library import import_executorch

_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod}


def sized_outputs(
    graph: Graph, inputs: Sequence[Node], outputs: Mapping[int, Node], signature: EngineSignature
) -> dict[int, Node]:
    """The outputs of an engine with the sizes that they have in a call.

    Args:
        graph: An edge graph; new nodes go to where it inserts.
        inputs: Inputs of the engine.
        outputs: Outputs that are used, by position.
        signature: Of the engine.

    Returns:
        Nodes by position; those of outputs whose sizes never change as they are.
    """
    changing = {i for i in outputs if any(not isinstance(dim, int) for dim in signature.outputs[i].dims)}
    if not changing:
        return dict(outputs)
    shapes = [_shape(graph, node) for node in inputs]
    wanted = signature.output_shapes(shapes)
    sized = {i: _read(graph, node, wanted[i]) if i in changing else node for i, node in outputs.items()}
    _describe(graph)
    return sized


def wide(value: torch.Tensor) -> torch.Tensor:
    """What stands for a tensor at the boundary of a delegate: one without dimensions has one there."""
    return value if value.dim() > 0 else value.new_empty((1,))


def widen(graph: Graph, node: Node) -> Node:
    """A node that an engine takes, with the dimension that `wide` gives it."""
    return _view(graph, node, wide(node.meta["val"])) if node.meta["val"].dim() == 0 else node


def narrow(graph: Graph, node: Node, value: torch.Tensor) -> Node:
    """A node that an engine gives, with the shape of the value that it is."""
    return _view(graph, node, value) if value.dim() == 0 else node


def _view(graph: Graph, node: Node, value: torch.Tensor) -> Node:
    return _call(graph, "view_copy.default", node, [list(value.shape)], value)


def _shape(graph: Graph, node: Node) -> list[Any]:
    """Sizes of an input: numbers, and what stands for a node where a size may change."""
    return [
        Proxy(_size(graph, node, axis)) if isinstance(size, torch.SymInt) else int(size)
        for axis, size in enumerate(node.meta["val"].shape)
    ]


def _size(graph: Graph, node: Node, axis: int) -> Node:
    size = graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
    size.meta["val"] = node.meta["val"].shape[axis]
    return size


def _read(graph: Graph, output: Node, shape: Sequence[Any]) -> Node:
    value = output.meta["val"]
    changing = max(axis for axis, size in enumerate(shape) if not isinstance(size, int)) + 1
    width = math.prod(shape[changing:])
    if changing == 1:
        return _call(graph, "slice_copy.Tensor", output, [0, 0, *_nodes(shape[:1])], value)
    flat = value.reshape(-1, width)
    if not _is_known_again(flat, value):
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return _call(graph, "as_strided_copy.default", output, [_nodes(shape), _nodes(strides), 0], value)
    rows = _call(graph, "view_copy.default", output, [[-1, width]], flat)
    part = _call(graph, "slice_copy.Tensor", rows, [0, 0, *_nodes([math.prod(shape[:changing])])], flat)
    return _call(graph, "view_copy.default", part, [_nodes(shape)], value)


def _is_known_again(flat: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether torch finds the sizes of a value in a view of it, and no quotients."""
    view = flat.view(value.shape)
    return [str(size) for size in view.shape] == [str(size) for size in value.shape]


def _call(graph: Graph, name: str, node: Node, args: Sequence[Any], value: torch.Tensor) -> Node:
    operator_name, _, overload = name.partition(".")
    aten = import_executorch("exir.dialects._ops").ops.edge.aten
    call = graph.call_function(getattr(getattr(aten, operator_name), overload), (node, *args))
    call.meta["val"] = value
    return call


def _nodes(numbers: Sequence[Any]) -> list[Any]:
    return [getattr(number, "node", number) for number in numbers]


def _describe(graph: Graph) -> None:
    """Give the arithmetic of sizes its values."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _ARITHMETIC and "val" not in node.meta:
            given = (argument.meta["val"] if isinstance(argument, Node) else argument for argument in node.args)
            node.meta["val"] = node.target(*given)
