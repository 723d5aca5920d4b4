"""Engines as delegates of an edge program, their bytes untouched."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import pytree
from intarsia.core.container import EngineContainer
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineError
from intarsia.formats.pte.library import import_executorch
from intarsia.formats.pte.properties import DEVICE, with_properties
from intarsia.formats.pte.shapes import narrow, sized_outputs, wide, widen
from intarsia.formats.pte.stand_ins import DELEGATES

ENGINE_SPEC = "intarsia_engine"
"""Key of the compile spec by which a delegate in a `.pte` names its engine."""


def delegate_engines(program: torch.export.ExportedProgram, engines: Mapping[str, EngineContainer]) -> None:
    """Put delegates in the places of the engines of an edge program, which is changed.

    ExecuTorch's partitioners would pass an input once that an engine takes twice, and drop outputs without users. So
    the calls are made here: each delegate takes and gives what its engine does, in the engine's order.

    Args:
        program: Its graph calls engines by `engine_operator`.
        engines: By the names that these calls give.

    Raises:
        EngineError: A partitioner has claimed an engine.
    """
    for node in _engine_nodes(program.graph):
        name = str(node.args[1])
        _delegate(program, node, name, engines[name])
    lowered = import_executorch("exir.lowered_backend_module").LoweredBackendModule
    for module in program.graph_module.modules():
        if isinstance(module, lowered):
            _check_unclaimed(module)
    _name_outputs(program)
    program.graph.eliminate_dead_code()
    program.graph.lint()
    program.graph_module.recompile()


def keep_state(programs: Sequence[torch.export.ExportedProgram]) -> None:
    """Have the state that edge programs write start with its values in each; ExecuTorch would start it with zeros.

    Args:
        programs: Those of all methods of a file. Their placeholders are marked.
    """
    written = {target for program in programs for target in program.graph_signature.buffers_to_mutate.values()}
    for program in programs:
        buffers = program.graph_signature.inputs_to_buffers
        for placeholder in program.graph.find_nodes(op="placeholder"):
            if buffers.get(placeholder.name) in written:
                placeholder.meta["et_init_buffer"] = True


def _engine_nodes(graph: Graph) -> list[Node]:
    """Calls of `engine_operator`s, which ExecuTorch has wrapped."""
    calls = (node for node in graph.nodes if node.op == "call_function" and hasattr(node.target, "name"))
    return [node for node in calls if node.target.name().startswith("intarsia::engine_")]


def _delegate(program: torch.export.ExportedProgram, node: Node, name: str, container: EngineContainer) -> None:
    library = import_executorch("exir.lowered_backend_module")
    spec = import_executorch("exir.backend.compile_spec_schema").CompileSpec
    val = node.meta["val"]
    values = list(val) if isinstance(val, list | tuple) else [val]
    delegate = library.LoweredBackendModule(
        edge_program=_engine_program(program, node, values),
        backend_id=DELEGATES[container.backend],
        processed_bytes=with_properties(container),
        # the runtime reads the device as text that ends with a zero
        compile_specs=[spec(ENGINE_SPEC, name.encode()), spec("device", f"{DEVICE}\0".encode())],
    )
    delegate.meta = {"debug_handle_map": {}}
    inputs: Any = node.args[0]
    graph = node.graph
    with graph.inserting_before(node):
        target = library.get_lowered_module_name(program.graph_module, delegate)
        reader = graph.get_attr(target)
        call = graph.call_function(library.executorch_call_delegate, (reader, *(widen(graph, one) for one in inputs)))
        call.meta = {**node.meta, "val": [wide(value) for value in values]}
        outputs = {}
        for i in sorted(_used(node)):
            outputs[i] = graph.call_function(operator.getitem, (call, i))
            outputs[i].meta["val"] = wide(values[i])
            outputs[i] = narrow(graph, outputs[i], values[i])
        sized = sized_outputs(graph, inputs, outputs, EngineSignature.parse(container.signature))
    for i, users in _used(node).items():
        for user in users:
            user.replace_all_uses_with(sized[i])
            if user is not node:
                graph.erase_node(user)
    graph.erase_node(node)


def _name_outputs(program: torch.export.ExportedProgram) -> None:
    """Have the signature name outputs as the graph does now."""
    values: Any = program.graph.output_node().args[0]
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        if isinstance(spec.arg, TensorArgument):
            spec.arg = TensorArgument(value.name)


def _used(node: Node) -> dict[int, list[Node]]:
    """For each output of an engine that is used, the nodes that stand for it."""
    if not isinstance(node.meta["val"], list | tuple):
        return {0: [node]}
    used: dict[int, list[Node]] = {}
    for user in node.users:
        used.setdefault(user.args[1], []).append(user)  # type: ignore[arg-type]  # a position
    return used


def _engine_program(
    program: torch.export.ExportedProgram, node: Node, values: list[torch.Tensor]
) -> torch.export.ExportedProgram:
    """The program that a delegate says it is: one call of the engine."""
    given: Any = node.args[0]
    shapes = [wide(argument.meta["val"]) for argument in given]
    graph = Graph()
    inputs = [graph.placeholder(f"input_{i}") for i in range(len(given))]
    for placeholder, shape in zip(inputs, shapes, strict=True):
        placeholder.meta["val"] = shape
    call = graph.create_node("call_function", node.target, (inputs, *node.args[1:]))
    call.meta["val"] = node.meta["val"]
    outputs = [call]
    if isinstance(node.meta["val"], list | tuple):
        outputs = [graph.call_function(operator.getitem, (call, i)) for i in range(len(values))]
    for output, value in zip(outputs, values, strict=True):
        output.meta["val"] = value
    outputs = [widen(graph, output) for output in outputs]
    graph.output(outputs)
    return torch.export.ExportedProgram(
        root=GraphModule({}, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(
            [InputSpec(InputKind.USER_INPUT, TensorArgument(one.name), None) for one in inputs],
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(one.name), None) for one in outputs],
        ),
        state_dict={},
        range_constraints=program.range_constraints,
        module_call_graph=[
            ModuleCallEntry(
                fqn="",
                signature=ModuleCallSignature(
                    inputs=[],
                    outputs=[],
                    in_spec=pytree.tree_flatten((tuple(shapes), {}))[1],
                    out_spec=pytree.tree_flatten(values)[1],
                ),
            )
        ],
        verifiers=[program.verifier],
    )


def _check_unclaimed(delegate: Any) -> None:
    for node in _engine_nodes(delegate.original_module.graph):
        if all(spec.key != ENGINE_SPEC for spec in delegate.compile_specs):
            raise EngineError(
                f"engine {node.args[1]!r}",
                found=f"it in a delegate of {delegate.backend_id}",
                expected="a delegate of its own",
                fix="Use a partitioner that leaves operators which it does not know.",
            )
