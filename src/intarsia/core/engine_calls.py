"""Which values of a graph are engines: those that `run_engine` takes, in the graph or in a body of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from intarsia._torch import HigherOrderOperator, pytree
from intarsia.core.op import RUN_ENGINE
from intarsia.core.operands import operands_of


class EngineCall(NamedTuple):
    """A call that runs an engine, itself or in a body.

    Attributes:
        node: Name of the call.
        engine: What the graph passes as the engine: a node; anything else is no engine.
    """

    node: str
    engine: Any


def engine_calls(module: GraphModule) -> list[EngineCall]:
    """Calls that run engines, in graph order; each body is read once, however many calls share it.

    Args:
        module: Its graph calls no partitions, and neither do bodies of higher-order operators in it.

    Example:
        >>> import torch
        >>> graph = torch.fx.Graph()
        >>> x, engine = graph.placeholder("x"), graph.placeholder("engine")
        >>> _ = graph.call_function(RUN_ENGINE, ([x], engine, "(f32[2]) -> (f32[2])"))
        >>> engine_calls(GraphModule({}, graph))
        [EngineCall(node='run_engine_default', engine=engine)]
    """
    return _read(module, {})


def _read(module: GraphModule, known: dict[GraphModule, list[EngineCall]]) -> list[EngineCall]:
    if module not in known:
        known[module] = []
        calls = module.graph.find_nodes(op="call_function", target=RUN_ENGINE)
        if calls or any(isinstance(child, GraphModule) for child in module.children()):
            known[module] = [call for node in module.graph.nodes for call in _of_node(module, node, known)]
    return known[module]


def _of_node(module: GraphModule, node: Node, known: dict[GraphModule, list[EngineCall]]) -> Iterator[EngineCall]:
    if node.target is RUN_ENGINE:
        yield EngineCall(node.name, node.args[1])
    if not isinstance(node.target, HigherOrderOperator):
        return
    operands = operands_of(node.target, node.args)
    for leaf in pytree.tree_leaves((node.args, node.kwargs)):
        body = getattr(module, str(leaf.target), None) if isinstance(leaf, Node) and leaf.op == "get_attr" else None
        if not isinstance(body, GraphModule):
            continue
        placeholders = body.graph.find_nodes(op="placeholder", sort=True)
        made = len(placeholders) - len(operands.passed if operands else ())
        outside = dict(zip(placeholders[made:], operands.passed if operands else (), strict=True))
        for call in _read(body, known):
            yield EngineCall(node.name, outside.get(call.engine, f"%{call.engine} in body '{leaf.target}'"))
