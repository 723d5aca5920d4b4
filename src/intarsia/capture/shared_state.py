"""State of an exported program that shares memory, which torch's decomposition refuses once the memory is written."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument

from intarsia._torch import is_training
from intarsia.core.writes import written_state

# Of several names of one tensor the first kind gives the name: a tensor that a plain Python object holds is a constant
# for torch, though a module has registered it as a buffer.
_ORDER = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def merge_shared_state(program: ExportedProgram) -> ExportedProgram:
    """Give each written tensor of a program one entry, where it has several.

    A model that writes a buffer and also reads it under another name, or through a plain Python object, is exported
    with an entry for each way. They are one tensor: the same memory with the same dtype, shape and strides.

    Args:
        program: Not modified.

    Returns:
        A program with the same tensors, or `program` itself where nothing is to be merged.

    Example:
        >>> class Twice(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("one", torch.zeros(2))
        ...         self.register_buffer("two", self.one)
        ...     def forward(self, x):
        ...         self.one.add_(x)
        ...         return self.two * 2
        >>> program = torch.export.export(Twice(), (torch.ones(2),))
        >>> [spec.target for spec in merge_shared_state(program).graph_signature.input_specs]
        ['one', None]
    """
    kept_by = _superfluous(program)
    if not kept_by:
        return program
    graph = copy.deepcopy(program.graph)
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for name, kept in kept_by.items():
        placeholders[name].replace_all_uses_with(placeholders[kept])
        graph.erase_node(placeholders[name])
    signature = program.graph_signature
    specs = [spec for spec in signature.input_specs if spec.arg.name not in kept_by]
    named = {spec.target for spec in specs}
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, [_renamed(spec, kept_by) for spec in signature.output_specs]),
        state_dict={name: value for name, value in program.state_dict.items() if name in named},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: value for name, value in program.constants.items() if name in named},
        verifiers=program.verifiers,
    )


def shared_written_state(program: ExportedProgram) -> tuple[str, str] | None:
    """Two state entries that lie in one memory, at least one of which the program writes; None when there are none."""
    written = written_state(program)
    by_memory: dict[int, list[InputSpec]] = {}
    for spec, value in _state(program):
        by_memory.setdefault(value.untyped_storage().data_ptr(), []).append(spec)
    for specs in by_memory.values():
        for one, other in pairwise(specs):
            if any(spec.target in written for spec in specs):
                return str(one.target), str(other.target)
    return None


def _superfluous(program: ExportedProgram) -> dict[str, str]:
    """Placeholders of written tensors that have another one -> that one."""
    if not is_training(program):
        return {}
    written = written_state(program)
    groups: dict[Hashable, list[InputSpec]] = {}
    for spec, value in sorted(_state(program), key=lambda entry: _ORDER.index(entry[0].kind)):
        groups.setdefault(_identity(value), []).append(spec)
    merged = [specs for specs in groups.values() if any(spec.target in written for spec in specs)]
    return {spec.arg.name: specs[0].arg.name for specs in merged for spec in specs[1:]}


def _state(program: ExportedProgram) -> Iterator[tuple[InputSpec, torch.Tensor]]:
    for spec in program.graph_signature.input_specs:
        value = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
        if spec.kind in _ORDER and type(value) in (torch.Tensor, torch.nn.Parameter) and _has_memory(value):
            yield spec, value


def _has_memory(value: Any) -> bool:
    return value.layout is torch.strided and value.untyped_storage().data_ptr() != 0


def _identity(value: torch.Tensor) -> Hashable:
    """What two tensors have in common when they are one: memory, place in it, dtype, shape and strides."""
    address = value.untyped_storage().data_ptr()
    return address, value.storage_offset(), value.dtype, value.shape, value.stride(), value.device


def _renamed(spec: OutputSpec, kept_by: dict[str, str]) -> OutputSpec:
    if not isinstance(spec.arg, TensorArgument) or spec.arg.name not in kept_by:
        return spec
    return replace(spec, arg=TensorArgument(kept_by[spec.arg.name]))
