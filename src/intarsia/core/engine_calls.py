"""The engines of a graph or program: what `run_engine` takes, in the graph itself or in a body of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from intarsia._torch import HigherOrderOperator, pytree
from intarsia.core.container import EngineContainer
from intarsia.core.op import RUN_ENGINE
from intarsia.core.operands import operands_of
from intarsia.errors import EngineError


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
        >>> graph = torch.fx.Graph()
        >>> x, engine = graph.placeholder("x"), graph.placeholder("engine")
        >>> _ = graph.call_function(RUN_ENGINE, ([x], engine, "(f32[2]) -> (f32[2])"))
        >>> engine_calls(GraphModule({}, graph))
        [EngineCall(node='run_engine_default', engine=engine)]
    """
    return _read(module, {})


def engine_names(program: ExportedProgram) -> set[str]:
    """Names of the state entries that hold a program's engines: no state of the model."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
    engines = [call.engine for call in engine_calls(program.graph_module)]
    return {names[engine.name] for engine in engines if isinstance(engine, Node) and engine.name in names}


def read_containers(program: ExportedProgram) -> dict[str, EngineContainer]:
    """The engines of a program, by the constants that hold them, in the order of the state; their headers are read.

    Raises:
        EngineError: An engine's header is damaged.
    """
    engines = engine_names(program)
    names = [spec.target for spec in program.graph_signature.input_specs if spec.target in engines]
    held = {str(name): program.constants.get(name, program.state_dict.get(name)) for name in names}
    return {
        name: EngineContainer.unpack(value.detach().contiguous().numpy().data)
        for name, value in held.items()
        if isinstance(value, torch.Tensor)
    }


def check_places(program: ExportedProgram) -> None:
    """Refuse a program with an engine in a body of an operator.

    Raises:
        EngineError: Names the engine and the operator.
    """
    own = {node.name for node in program.graph.find_nodes(op="call_function", target=RUN_ENGINE)}
    for call in engine_calls(program.graph_module):
        if call.node not in own:
            raise EngineError(
                f"engine {call.engine}",
                found=f"it in a body of the operator %{call.node}",
                expected="an engine in the program's own graph",
                fix="Keep the operators of the body in torch with torch_executed_ops.",
            )


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
