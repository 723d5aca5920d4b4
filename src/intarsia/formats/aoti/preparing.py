"""A program as AOTInductor shall compile it, and what it cannot compile rightly."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import ASSERT, is_training, verifiers_for
from intarsia.core.compiled.positions import (
    OUTSIDE,
    UNGUARDED,
    call,
    guard_positions,
    packet_name,
    reads_positions,
)
from intarsia.core.memory import memory_of
from intarsia.core.small_sizes import misfits
from intarsia.errors import ConventionError, FormatError, MutationError
from intarsia.formats.boundary import keep_name

# Compiled code hands these over to torch, which looks at each position first.
_CHECKED_BY_TORCH = frozenset({"_embedding_bag", "embedding_bag"})


def prepare(program: torch.export.ExportedProgram, written: set[str]) -> torch.export.ExportedProgram:
    """The program with row-major inputs, and with positions kept inside of their tensors; one outside is an error.

    Args:
        program: Not modified.
        written: Names of the state that it, or another method, writes.

    Raises:
        ConventionError: It takes or gives what compiled code does not, or has sizes at which that is wrong.
        FormatError: An operator reads at positions where they cannot be kept inside.
        MutationError: Two entries of its state share memory that is written.
    """
    _check_arguments(program)
    _check_positions(program)
    _check_aliases(program, written)
    _check_shapes(program)
    graph = _copy(program)
    guards = guard_positions(graph, lambda *_: False)
    for guard in guards:
        with graph.inserting_before(guard.flag.next):
            inside = call(graph, torch.ops.aten.logical_not.default, guard.flag)
            call(graph, ASSERT, inside, f"{OUTSIDE} {guard.text}")
    return torch.export.ExportedProgram(
        root=GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=program.constants,
        verifiers=verifiers_for(writes_in_place=is_training(program)),
    )


def _copy(program: torch.export.ExportedProgram) -> Graph:
    graph, images = Graph(), dict[Node, Node]()
    user = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        images[node] = graph.node_copy(node, images.__getitem__)
        if node.op == "placeholder":
            keep_name(images[node], node)
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in user and isinstance(value, torch.Tensor):
            images[node].meta["val"] = torch.empty_like(value, memory_format=torch.contiguous_format)
    return graph


def _check_arguments(program: torch.export.ExportedProgram) -> None:
    signature = program.graph_signature
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, TensorArgument | ConstantArgument):
            what = "an integer that may differ" if isinstance(spec.arg, SymIntArgument) else type(spec.arg).__name__
            raise _refused(f"input {spec.arg.name!r}", what, "Pass it as a tensor.")
    for i, spec in enumerate(signature.output_specs):
        value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else None
        is_plain = isinstance(spec.arg, TensorArgument) or (isinstance(spec.arg, ConstantArgument) and value is None)
        if spec.kind is OutputKind.USER_OUTPUT and not is_plain:
            what = repr(value) if isinstance(spec.arg, ConstantArgument) else "a size"
            raise _refused(f"output {i}", what, "Return a tensor in its place.")


def _check_positions(program: torch.export.ExportedProgram) -> None:
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        is_body = module is not program.graph_module
        for node in module.graph.nodes:
            name = packet_name(node)
            if (is_body and reads_positions(node)) or name in UNGUARDED - _CHECKED_BY_TORCH:
                raise FormatError(
                    f"operator {node.target}",
                    found="positions that compiled code does not check" + (" in a body of a branch or loop" * is_body),
                    expected="those of index, gather, scatter, embedding and the like, outside of branches and loops",
                    consequence="One outside of its tensor would end the process, or read other memory.",
                    fix="Write it with one of these, put it into an engine, or save without format='aoti'.",
                )


def _check_aliases(program: torch.export.ExportedProgram, written: set[str]) -> None:
    names: dict[int, str] = {}
    for spec in program.graph_signature.input_specs:
        if spec.target is None:
            continue
        value: Any = program.state_dict.get(spec.target, program.constants.get(spec.target))
        other = names.setdefault(memory_of(value), spec.target)
        if other != spec.target and written & {other, spec.target}:
            raise MutationError(
                f"state {spec.target!r}",
                found=f"that it shares memory with {other!r}, and a call writes one of them",
                expected="state of its own memory",
                consequence="In an AOTInductor package each has its own, and the other would not change.",
                fix="Save a .pt2 file without format='aoti'.",
            )


def _check_shapes(program: torch.export.ExportedProgram) -> None:
    for node, misfit in misfits(program.graph, program.range_constraints).items():
        raise ConventionError(
            f"operator {node.name!r}",
            found=f"that {misfit}",
            expected="a call that torch captured rightly for all sizes in their ranges",
            consequence="Compiled code would read outside of memory.",
            fix=f"Give {misfit.size} a range that begins at {misfit.at + 1} (Dim(..., min={misfit.at + 1})), or save "
            "without format='aoti'.",
        )


def _refused(subject: str, found: str, fix: str) -> ConventionError:
    return ConventionError(
        subject, found=found, expected="a tensor, for an AOTInductor package takes and gives nothing else", fix=fix
    )
