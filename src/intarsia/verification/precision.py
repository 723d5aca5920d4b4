"""The coarsest dtype on the way to a result, which says how exact the result can be.

An f32 output of layers that compute in bf16 is as exact as bf16: two programs that differ before in the last bit of f32
can round to different neighbours in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from intarsia.core.paths import output_paths
from intarsia.verification.tolerances import tolerance_of


def coarsest_dtypes(programs: Mapping[str, ExportedProgram]) -> dict[str, torch.dtype]:
    """The coarsest dtype that results pass through, by the names that their leaves have in a verification.

    Only what is computed of an input, or of state that a call writes, counts: a weight that is stored in bf16 and read
    as f32 is the same number in both programs.

    Args:
        programs: By the names of the methods, which share state; of one program alone the name is empty.

    Example:
        >>> class Mixed(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x + 1, x.to(torch.bfloat16).float()
        >>> coarsest_dtypes({"": torch.export.export(Mixed(), (torch.ones(2),))})
        {'output[0]': torch.float32, 'output[1]': torch.bfloat16}
    """
    state: dict[str, torch.dtype] = {}
    while True:
        known = dict(state)
        outputs = [_walk(name, program, state) for name, program in programs.items()]
        if state == known:
            return {key: dtype for found in outputs for key, dtype in found.items()} | {
                f"state {name!r}": dtype for name, dtype in state.items()
            }


def leaf_dtypes(programs: Mapping[str, ExportedProgram]) -> dict[str, dict[str, torch.dtype]]:
    """What `coarsest_dtypes` tells of each method, by the names that leaves have where it is verified alone.

    Args:
        programs: By the names of the methods, at least one.
    """
    found = coarsest_dtypes(programs)
    state = {name: dtype for name, dtype in found.items() if name.startswith("state ")}
    return {
        method: {
            **{
                name.removeprefix(f"{method}: "): dtype
                for name, dtype in found.items()
                if name.startswith(f"{method}: ")
            },
            **state,
        }
        for method in programs
    }


def _walk(method: str, program: ExportedProgram, state: dict[str, torch.dtype]) -> dict[str, torch.dtype]:
    """The dtypes of a program's outputs; those of the state that it writes are entered into `state`."""
    reached = _reach(program, state)
    specs = program.graph_signature.output_specs
    results = program.graph.output_node().args[0]
    assert isinstance(results, (tuple, list))  # noqa: S101 - so says the graph signature
    found = [reached.get(result) if isinstance(result, Node) else None for result in results]
    for spec, dtype in zip(specs, found, strict=True):
        if dtype is not None and spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            state[str(spec.target)] = _coarser(state.get(str(spec.target), dtype), dtype)
    returned = [dtype for spec, dtype in zip(specs, found, strict=True) if spec.kind is OutputKind.USER_OUTPUT]
    out_spec = program.call_spec.out_spec
    paths = output_paths(out_spec) if out_spec is not None else []
    prefix = f"{method}: " if method else ""
    return {prefix + path: dtype for path, dtype in zip(paths, returned, strict=True) if dtype is not None}


def _reach(program: ExportedProgram, state: Mapping[str, torch.dtype]) -> dict[Node, torch.dtype]:
    """For each node that depends on an input or on written state, the coarsest dtype that is computed on the way."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    written = {spec.target for spec in program.graph_signature.output_specs if spec.target is not None}
    reached: dict[Node, torch.dtype] = {}
    for node in program.graph.nodes:
        own = _dtype(node)
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT or spec.target in written or spec.target in state:
                reached[node] = _coarser(state.get(str(spec.target), own), own)
            continue
        sources = [reached[source] for source in node.all_input_nodes if source in reached]
        if sources:
            reached[node] = reduce(_coarser, sources, own)
    return reached


def _dtype(node: Node) -> torch.dtype:
    """The dtype of what a node gives; of several tensors, or of a number, none that is coarse."""
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else torch.float64


def _coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return max(one, other, key=lambda dtype: tolerance_of(dtype).relative)
