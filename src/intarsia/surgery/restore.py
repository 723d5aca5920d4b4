"""`restore`: the torch operators that engines were built from, in the places of the engines."""

from __future__ import annotations

from collections.abc import Callable

from torch.export import ExportedProgram
from torch.fx import GraphModule

from intarsia.core.container import EngineContainer
from intarsia.core.engine_calls import check_places, read_containers
from intarsia.core.op import RUN_ENGINE
from intarsia.core.torch_source import source_of
from intarsia.surgery.export import export


def restore(program: ExportedProgram, find: Callable[[EngineContainer], GraphModule] = source_of) -> ExportedProgram:
    """A program with the torch operators that its engines were built from, in the places of the engines.

    Nothing is traced, run or copied: the engines become torch partitions again, and the hybrid is exported.

    Args:
        program: Not modified. Its tensors are those of the new one.
        find: Gives the partition that an engine was built from.

    Raises:
        EngineError: What an engine was built from is not known here, or an engine stands in a body of an operator.

    Example:
        >>> import intarsia, torch
        >>> hybrid = intarsia.compile(torch.nn.ReLU(), (torch.ones(3),))
        >>> [str(node.target) for node in restore(export(hybrid)).graph.nodes if node.op == "call_function"]
        ['aten.relu.default']
    """
    engines = read_containers(program)
    if not engines:
        return program
    check_places(program)
    hybrid = program.module(check_guards=False)
    hybrid.meta["range_constraints"] = dict(program.range_constraints)
    for number, node in enumerate(hybrid.graph.find_nodes(op="call_function", target=RUN_ENGINE)):
        inputs, engine, _ = node.args
        name = next(name for name in (f"source_{number}", f"source_of_{engine.target}") if not hasattr(hybrid, name))
        hybrid.add_submodule(name, find(engines[str(engine.target)]))
        with hybrid.graph.inserting_before(node):
            call = hybrid.graph.call_module(name, tuple(inputs))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        hybrid.graph.erase_node(node)
    for node in hybrid.graph.find_nodes(op="get_attr"):
        if not node.users and node.target in engines:
            hybrid.graph.erase_node(node)
    return export(hybrid)
