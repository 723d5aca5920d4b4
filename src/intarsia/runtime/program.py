"""A program that can be called: an exported program with its own copy of the state that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch.export.graph_signature import InputKind

from intarsia.core.dim import render
from intarsia.core.ledger import Ledger
from intarsia.core.writes import written_placeholders
from intarsia.errors import ConventionError
from intarsia.runtime.arguments import Arguments, read_arguments
from intarsia.runtime.checks import read_checks
from intarsia.runtime.inputs import describe_type
from intarsia.runtime.results import read_results
from intarsia.runtime.state import STATE_KINDS, own_written, read_state
from intarsia.runtime.structure import leaf_names, output_builder, read_structure


class Manifest(Protocol):
    """What a program reads of the manifest of its file."""

    @property
    def ledger(self) -> Ledger | None:
        """The account of the export, when the file holds it."""
        ...


class Program:
    """An exported program, ready to run.

    A call takes the model's own arguments and gives the model's own structure. It runs the flat graph under
    `torch.no_grad`. State that the program writes is its own copy: no call changes the tensors of the exported
    program. All other state is shared with it. A value that the model returns and that is written state is the live
    tensor, which the next call changes, as it is in the model.

    Inputs are checked for structure, dtype, device and shape, and sizes for their ranges; nothing else that the
    model demanded of them is.

    Args:
        exported_program: Not modified. Both dialects run: declared writes are carried out after the graph, and a
            graph that writes in place does so itself.
        manifest: Manifest of the file that the program was read from.

    Raises:
        ConventionError: The exported program does not tell its calling convention.
        StateError: The exported program has no value for a state entry.

    Example:
        >>> program = Program(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)))
        >>> program(torch.tensor([[1.0, -1.0, 0.0], [-2.0, 2.0, 0.5]])).tolist()
        [[1.0, 0.0, 0.0], [0.0, 2.0, 0.5]]
    """

    def __init__(self, exported_program: torch.export.ExportedProgram, manifest: Manifest | None = None) -> None:
        self.exported_program = exported_program
        self.manifest = manifest
        self._arguments = read_arguments(exported_program)
        self._flatten = self._arguments.flatten
        self._checks = read_checks(exported_program, self._arguments.leaf_names)
        _check_counts(exported_program, self._arguments)
        self._results = read_results(exported_program)
        self._state = self._read_state()
        self._leading = self._bind_state()
        self._arrange = _arrangement(exported_program)
        # `GraphModule.__call__` adds hooks, and prints the generated code when an operator raises.
        self._forward = exported_program.graph_module.forward
        self._build = _read_outputs(exported_program)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program once.

        Raises:
            ArgumentError: An argument is missing, unknown, or does not fit; names the argument and what is allowed.
            EngineError: An engine failed, or is damaged.
        """
        inputs = self._flatten(args, kwargs)
        self._checks.run(inputs)
        with torch.no_grad():
            if self._arrange is None:
                outputs = self._forward(*self._leading, *inputs)
            else:
                outputs = self._forward(*self._arrange((*self._leading, *inputs)))
            if not self._results.plain:
                outputs = self._carry_out(outputs, inputs)
        return self._build(outputs)

    @property
    def ledger(self) -> Ledger | None:
        """What the export did with every node, output and state entry, or None where the file does not tell."""
        return self.manifest.ledger if self.manifest else None

    @property
    def state(self) -> Mapping[str, Any]:
        """Live state by name: parameters, buffers and constants. The mapping cannot be changed."""
        return MappingProxyType(self._state)

    def __repr__(self) -> str:
        lines = [f"  input   {entry}" for entry in self._checks.inputs]
        lines += [f"  output  {text}" for text in _describe_outputs(self.exported_program)]
        lines += [f"  size    {render(dim)}: {allowed}" for dim, allowed in self._checks.named_sizes.ranges.items()]
        return "\n".join([f"Program of {len(self._state)} state entries", *lines])

    def _read_state(self) -> dict[str, Any]:
        program = self.exported_program
        written = {write.state for write in self._results.writes if write.state is not None}
        names = {spec.arg.name: str(spec.target) for spec in _state_specs(program)}
        written |= {names[node.name] for node in written_placeholders(program.graph_module) if node.name in names}
        return own_written(read_state(program), written)

    def _bind_state(self) -> tuple[Any, ...]:
        """What the graph gets besides the caller's inputs, in graph order."""
        return tuple(
            torch.empty(0) if spec.kind is InputKind.TOKEN else self._state[str(spec.target)]
            for spec in self.exported_program.graph_signature.input_specs
            if spec.kind is not InputKind.USER_INPUT
        )

    def _carry_out(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        results = self._results
        values = [outputs[write.output].clone() if write.shares else outputs[write.output] for write in results.writes]
        targets = []
        for write, value in zip(results.writes, values, strict=True):
            target = self._state[write.state] if write.state is not None else inputs[write.input or 0]
            targets.append(target.copy_(value))
        return [
            outputs[position] if target is None else targets[target]
            for position, target in zip(results.returned, results.returned_targets, strict=True)
        ]


def _state_specs(program: torch.export.ExportedProgram) -> list[torch.export.graph_signature.InputSpec]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind in STATE_KINDS]


def _check_counts(program: torch.export.ExportedProgram, arguments: Arguments) -> None:
    user = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    if len(user) != len(arguments.leaf_names):
        raise ConventionError(
            "exported program",
            found=f"{len(user)} graph inputs",
            expected=f"{len(arguments.leaf_names)}, as its input structure says",
            fix="Export the model again.",
        )


def _arrangement(program: torch.export.ExportedProgram) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
    """How to put state and inputs into graph order, or None where the state stands first already."""
    kinds = [spec.kind is InputKind.USER_INPUT for spec in program.graph_signature.input_specs]
    if kinds == sorted(kinds):
        return None
    next_state, next_input = iter(range(kinds.count(False))), iter(range(kinds.count(False), len(kinds)))
    return itemgetter(*[next(next_input if user else next_state) for user in kinds])


def _read_outputs(program: torch.export.ExportedProgram) -> Callable[[Sequence[Any]], Any]:
    spec = program.call_spec.out_spec
    if spec is None:
        raise ConventionError(
            "exported program",
            found="no output structure",
            expected="one",
            fix="Export the model with torch.export or intarsia.",
        )
    return output_builder(spec)


def _describe_outputs(program: torch.export.ExportedProgram) -> list[str]:
    spec = program.call_spec.out_spec
    results = read_results(program)
    output = next(node for node in reversed(program.graph.nodes) if node.op == "output")
    values = [output.args[0][position] for position in results.returned]
    names = leaf_names(read_structure(spec, "")) if spec else []
    return [f"{name or 'value'}: {describe_type(value)}" for name, value in zip(names, values, strict=True)]
