"""A partition as inductor shall compile it: equal partitions alike, inputs row-major, positions kept inside."""

from __future__ import annotations

from typing import Any, NamedTuple

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
from torch.fx.node import map_arg

from intarsia._torch import pytree, quiet_specs, verifiers_for
from intarsia.core.compiled.positions import call, guard_positions
from intarsia.errors import EngineBuildFailed


class Canonical(NamedTuple):
    """A program to compile.

    Attributes:
        program: Inputs, state and nodes are numbered; it takes and gives tensors, and holds nothing else.
        guarded: What each element of its last output tells: whether a position was outside of this. Empty where there
            is no such output.
    """

    program: torch.export.ExportedProgram
    guarded: list[str]


def make_canonical(program: torch.export.ExportedProgram) -> Canonical:
    """The program as it shall be compiled.

    Raises:
        EngineBuildFailed: The program writes state or inputs, or takes or gives something else than tensors.
    """
    specs = program.graph_signature
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in specs.output_specs):
        raise _refused("it writes state or inputs")
    graph, state = _copy(program)
    inputs = [node for node in graph.find_nodes(op="placeholder") if node.name not in state]

    def is_known(index: Node, size: int, counts_back: bool) -> bool:  # noqa: FBT001 - as `guard_positions` calls it
        values = state.get(index.name)
        if values is None:
            return False
        least = -size if counts_back else 0
        return values.numel() == 0 or (int(values.min()) >= least and int(values.max()) < size)

    guards = guard_positions(graph, is_known)
    if guards:
        _return_flags(graph, [guard.flag for guard in guards])
    return Canonical(
        _assemble(program, graph, inputs, state),
        [guard.text for guard in guards],
    )


def _copy(program: torch.export.ExportedProgram) -> tuple[Graph, dict[str, torch.Tensor]]:
    """The graph with inputs and state of numbered names, and the state by these."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    graph, state, images = Graph(), dict[str, torch.Tensor](), dict[Node, Node]()
    count = 0
    for node in program.graph.nodes:
        spec = specs.get(node.name) if node.op == "placeholder" else None
        if spec is None:
            # Named by their operators alone, for equal programs shall have equal sources.
            args, kwargs = map_arg((node.args, node.kwargs), images.__getitem__)
            # Where memory is row-major, a view that was legal need not be.
            target = torch.ops.aten.reshape.default if node.target is torch.ops.aten.view.default else node.target
            images[node] = graph.create_node(node.op, target, args, kwargs)
        elif spec.kind is InputKind.USER_INPUT:
            images[node] = graph.placeholder(f"input_{count}")
            count += 1
        else:
            name = f"state_{len(state)}"
            state[name] = _value_of(program, spec)
            images[node] = graph.placeholder(name)
        if "val" in node.meta:
            images[node].meta["val"] = _row_major(node) if node.op == "placeholder" else node.meta["val"]
    return graph, state


def _value_of(program: torch.export.ExportedProgram, spec: InputSpec) -> torch.Tensor:
    value = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
    if not isinstance(value, torch.Tensor):
        raise _refused(f"its input {spec.arg.name!r} is of the kind {spec.kind.name}")
    return value.detach().contiguous()


def _row_major(node: Node) -> torch.Tensor:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise _refused(f"its input {node.name!r} is no tensor")
    contiguous: torch.Tensor = torch.empty_like(value, memory_format=torch.contiguous_format)
    return contiguous


def _return_flags(graph: Graph, flags: list[Node]) -> None:
    """One output more: whether each of the positions was outside."""
    output = graph.output_node()
    returned: Any = output.args[0]
    with graph.inserting_before(output):
        outside = call(graph, torch.ops.aten.stack.default, flags)
    output.args = ((*returned, outside),)


def _assemble(
    program: torch.export.ExportedProgram, graph: Graph, inputs: list[Node], state: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    outputs: Any = graph.output_node().args[0]
    if not all(isinstance(output, Node) for output in outputs):
        raise _refused("it returns something else than tensors")
    input_specs = [
        InputSpec(
            InputKind.CONSTANT_TENSOR if node.name in state else InputKind.USER_INPUT,
            TensorArgument(node.name),
            node.name if node.name in state else None,
        )
        for node in graph.find_nodes(op="placeholder")
    ]
    output_specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in outputs]
    with quiet_specs():
        in_spec = pytree.tree_structure((tuple(range(len(inputs))), {}))
        out_spec = pytree.tree_structure(tuple(range(len(outputs))))
    signature = ModuleCallSignature([], [], in_spec, out_spec, [node.name for node in inputs])
    return torch.export.ExportedProgram(
        root=GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(input_specs, output_specs),
        state_dict={},
        range_constraints=dict(program.range_constraints),
        module_call_graph=[ModuleCallEntry(fqn="", signature=signature)],
        constants=dict(state),
        verifiers=verifiers_for(writes_in_place=False),
    )


def _refused(reason: str) -> EngineBuildFailed:
    return EngineBuildFailed(
        "inductor",
        found=f"that it refuses the program: {reason}",
        expected="a program of tensors that writes nothing",
        fix="Keep the operator concerned in torch with torch_executed_ops.",
    )
