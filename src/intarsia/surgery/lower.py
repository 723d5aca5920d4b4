"""Calls of Python functions and methods to ATen operators, on fake tensors.

A hybrid may hold what `torch.export` never leaves in a graph: `torch.relu`, `x.view(...)`, `x[0]`, an ordinary
`nn.Module`. Such a call is traced by itself, on descriptions of its arguments; the graph that it makes is inlined like
any partition.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from intarsia._torch import MODE_SWITCHES, HigherOrderOperator, OpOverload, pytree
from intarsia.errors import HybridError, first_line
from intarsia.surgery.metadata import Metadata, describe, refused_call
from intarsia.surgery.values import Value, tensor_of

_SYMBOLIC = {
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.ge, operator.le, operator.gt, operator.lt, operator.eq, operator.ne, operator.neg, operator.abs),
    *(operator.and_, operator.or_, operator.not_, operator.lshift, operator.rshift),
    *(math.ceil, math.floor, math.trunc, round),
    *(torch.sym_int, torch.sym_float, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum),
}


def is_exportable(target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether a call with these arguments may stand in an exported program as it is."""
    if isinstance(target, (OpOverload, HigherOrderOperator)) or is_mode_switch(target):
        return True
    if target is operator.getitem:
        return tensor_of(args[0]) is None
    return target in _SYMBOLIC and not any(tensor_of(leaf) is not None for leaf in pytree.tree_leaves((args, kwargs)))


def is_mode_switch(target: Any) -> bool:
    """Whether a call switches autograd or autocast for the nodes after it; it returns nothing that is described."""
    return target in MODE_SWITCHES


def trace_module(module: torch.nn.Module, path: str) -> Graph:
    """The graph of an ordinary module, down to functions and methods; its attributes are those of the module itself.

    Raises:
        HybridError: Its forward cannot be traced symbolically.
    """
    try:
        return _WholeTracer().trace(module)
    except Exception as error:
        raise HybridError(
            f"partition '{path}'",
            found=f"a {type(module).__qualname__} that symbolic tracing refuses ({first_line(error)})",
            expected="a GraphModule, or a module that torch.fx can trace",
            fix="Make it a GraphModule first, for instance by torch.export.export(...).module().",
            node=path,
        ) from error


class _WholeTracer(torch.fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return isinstance(m, GraphModule)


def trace_call(
    node: Node, arguments: tuple[Any, Any], metadata: Metadata, held: Mapping[Node, Any], path: str
) -> GraphModule:
    """The ATen graph of one function or method call; its placeholders are the nodes in `args` and `kwargs`, in order.

    Raises:
        HybridError: The call fails on its inputs' shapes and dtypes.
    """
    leaves, spec = pytree.tree_flatten(arguments)
    dynamic = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Node)]

    def call(*given: Any) -> Any:
        filled = list(leaves)
        for index, value in zip(dynamic, given, strict=True):
            filled[index] = value
        positional, keywords = pytree.tree_unflatten(filled, spec)
        if not callable(node.target):
            return getattr(positional[0], node.target)(*positional[1:], **keywords)
        return node.target(*positional, **keywords)

    descriptions = [describe(leaves[index], held) for index in dynamic]
    try:
        with metadata.mode, torch.no_grad():
            return make_fx(call, pre_dispatch=True)(*descriptions)
    except Exception as error:
        raise refused_call(node, path, error) from error
