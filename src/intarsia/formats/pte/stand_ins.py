"""Exported programs as ExecuTorch takes them: operators without bytes in the places of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import ExportGraphSignature, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import is_training, run_decompositions
from intarsia.core.backend import WIDENED
from intarsia.core.container import EngineContainer
from intarsia.core.engine_calls import check_places
from intarsia.core.op import RUN_ENGINE
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineError, MutationError
from intarsia.formats.boundary import keep_name
from intarsia.formats.engines.calls import EngineReader
from intarsia.formats.pte.operators import engine_operator
from intarsia.formats.pte.positions import guard_positions
from intarsia.formats.pte.selections import select_by_tensors

DELEGATES: Mapping[str, str] = {"openvino": "OpenvinoBackend"}
"""Backends whose payloads ExecuTorch's runtime runs, and its name for each."""


# Writes that ExecuTorch's runtime carries out on copies, or not at all.
_LOST = {OutputKind.USER_INPUT_MUTATION: "input", OutputKind.PARAMETER_MUTATION: "parameter"}


class StandIns(NamedTuple):
    """A program without engines, and the engines.

    Attributes:
        program: Its graph calls `engine_operator`s, each with the name of an engine.
        engines: The engines, by name.
    """

    program: torch.export.ExportedProgram
    engines: Mapping[str, EngineContainer]


def stand_in(program: torch.export.ExportedProgram) -> StandIns:
    """Put operators without bytes in the places of engines.

    Args:
        program: Not modified. Its tensors are shared with the new one.

    Raises:
        EngineError: An engine is damaged, or cannot travel in a `.pte`: its backend has no runtime there, it was saved
            without its payload, or it stands in a body of an operator.
        MutationError: An input or a parameter is written, which would be lost.
    """
    if is_training(program):
        program = run_decompositions(program)  # as ExecuTorch does; it declares what is written in place
    _check_writes(program)
    check_places(program)
    engines = EngineReader().read(program)
    for name, container in engines.items():
        _check_portable(name, container)
    names = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.target in engines}
    graph = _copy_graph(program.graph)
    select_by_tensors(graph)
    for node in graph.find_nodes(op="call_function", target=RUN_ENGINE):
        name = names[node.args[1].name]
        with graph.inserting_before(node):
            inputs = guard_positions(graph, node.args[0], engines[name])
        _replace(node, name, inputs)
    kept = _remove_unused(graph, program.graph_signature, set(names))
    return StandIns(_assemble(program, graph, kept), engines)


def _check_portable(name: str, container: EngineContainer) -> None:
    subject = f"engine {name!r}"
    if container.backend not in DELEGATES:
        raise EngineError(
            subject,
            found=f"an engine of the backend {container.backend!r}, which ExecuTorch has no runtime for",
            expected=f"one of {', '.join(DELEGATES)}",
            fix="Leave its operators to other delegates and kernels with engines='source', or save a .pt2 file.",
        )
    if container.payload is None:
        raise EngineError(
            subject,
            found="no compiled form",
            expected="one, for ExecuTorch builds no engine from its portable form",
            fix="Save the .pt2 file with payloads, or compile the model again.",
        )
    signature = EngineSignature.parse(container.signature)
    if not _is_widened(container, signature):
        raise EngineError(
            subject,
            found=f"a tensor without dimensions in {signature}",
            expected="one dimension or more, for ExecuTorch hands over no others",
            fix="Compile the model again with this version of intarsia.",
        )
    if signature.into:
        raise MutationError(
            subject,
            found="an output that it writes into an input",
            expected="outputs in memory of their own",
            consequence="ExecuTorch would lose the write.",
            fix="Save the program as a .pt2 file.",
        )


def _is_widened(container: EngineContainer, signature: EngineSignature) -> bool:
    """Whether the payload takes and gives every tensor with a dimension."""
    widened = container.options.get(WIDENED, {})
    bare = {
        kind: [i for i, tensor in enumerate(tensors) if not tensor.dims]
        for kind, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    return all(numbers == widened.get(kind, []) for kind, numbers in bare.items())


def _check_writes(program: torch.export.ExportedProgram) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind in _LOST:
            raise MutationError(
                f"{_LOST[spec.kind]} {spec.target!r}",
                found="a write to it",
                expected="writes to buffers only",
                consequence="ExecuTorch would lose the write.",
                fix="Return the new value, or register what is written as a buffer.",
            )


def _copy_graph(source: Graph) -> Graph:
    graph = Graph()
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(source, copies))
    for node in source.find_nodes(op="placeholder"):
        keep_name(copies[node], node)
    return graph


def _replace(node: Node, name: str, inputs: Sequence[Node]) -> None:
    """Put an operator without bytes in the place of an engine."""
    _, _, signature = node.args
    values = node.meta["val"]
    with node.graph.inserting_before(node):
        call = node.graph.call_function(engine_operator(len(values)), (inputs, name, signature))
    call.meta = {**node.meta, "val": values[0] if len(values) == 1 else tuple(values)}
    for getitem in list(node.users) if len(values) == 1 else ():
        getitem.replace_all_uses_with(call)
        node.graph.erase_node(getitem)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


def _remove_unused(graph: Graph, signature: ExportGraphSignature, engines: set[str]) -> list[InputSpec]:
    """Take out the placeholders of engines; those of everything else stay."""
    kept = []
    for placeholder, spec in zip(graph.find_nodes(op="placeholder"), signature.input_specs, strict=True):
        if placeholder.name in engines and not placeholder.users:
            graph.erase_node(placeholder)
        else:
            kept.append(spec)
    return kept


def _assemble(
    program: torch.export.ExportedProgram, graph: Graph, inputs: list[InputSpec]
) -> torch.export.ExportedProgram:
    kept = {spec.target for spec in inputs}
    return torch.export.ExportedProgram(
        root=GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, _output_specs(program, graph)),
        state_dict={name: _without_gradient(value) for name, value in program.state_dict.items()},
        range_constraints=dict(program.range_constraints),
        module_call_graph=program.module_call_graph,
        constants={name: value for name, value in program.constants.items() if name in kept},
        verifiers=program.verifiers,
    )


def _output_specs(program: torch.export.ExportedProgram, graph: Graph) -> list[OutputSpec]:
    """Outputs by the names that they have in the new graph."""
    values: Any = graph.output_node().args[0]
    return [
        replace(spec, arg=TensorArgument(value.name)) if isinstance(spec.arg, TensorArgument) else spec
        for spec, value in zip(program.graph_signature.output_specs, values, strict=True)
    ]


def _without_gradient(value: Any) -> Any:
    """The same memory without a gradient: ExecuTorch lowers no program that writes beside one that has it."""
    return torch.nn.Parameter(value.detach(), requires_grad=False) if isinstance(value, torch.nn.Parameter) else value
