"""What becomes of the flat outputs of a graph: writes to carry out, and the values that the caller gets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from intarsia.core.writes import Aliases

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class Write:
    """A flat output that is to be copied into state or into an input.

    Attributes:
        output: Position of the flat output.
        state: Name of the state entry to copy into, or None.
        input: Position of the user input to copy into, or None.
        shares: The value may share memory with what another write changes, so it is set aside first.
    """

    output: int
    state: str | None
    input: int | None
    shares: bool = False


@dataclass(frozen=True)
class Results:
    """Positions of a graph's flat outputs, by what becomes of them.

    Attributes:
        writes: Declared writes, in order.
        returned: For each value that the caller gets, the position of the flat output.
        returned_targets: For each value that the caller gets, the position in `writes` of the write whose target the
            caller gets in its place, or None. A model that returns the buffer that it wrote returns the buffer.
    """

    writes: tuple[Write, ...]
    returned: tuple[int, ...]
    returned_targets: tuple[int | None, ...] = field(repr=False)

    @property
    def plain(self) -> bool:
        """Whether the flat outputs are just what the caller gets."""
        return not self.writes and self.returned == tuple(range(len(self.returned)))

    def without(self, states: Collection[str]) -> Results:
        """The same, for a graph that writes these state entries itself; what it returns of them is the live tensor."""
        kept = [k for k, write in enumerate(self.writes) if write.state not in states]
        moved: dict[int | None, int] = {old: new for new, old in enumerate(kept)}
        targets = tuple(moved.get(target) for target in self.returned_targets)
        return Results(tuple(self.writes[k] for k in kept), self.returned, targets)


def read_results(program: torch.export.ExportedProgram) -> Results:
    """What becomes of the flat outputs of an exported program."""
    specs = program.graph_signature.output_specs
    values = _output_values(program)
    positions = [i for i, spec in enumerate(specs) if spec.kind in _WRITES]
    returned = [i for i, spec in enumerate(specs) if spec.kind not in (*_WRITES, OutputKind.TOKEN)]
    writes = _read_writes(program, positions, values) if positions else ()
    target_of = {
        values[write.output]: k for k, write in enumerate(writes) if isinstance(values[write.output], torch.fx.Node)
    }
    targets = [target_of.get(values[i]) if isinstance(values[i], torch.fx.Node) else None for i in returned]
    return Results(writes, tuple(returned), tuple(targets))


def _output_values(program: torch.export.ExportedProgram) -> Sequence[Any]:
    values: Any = program.graph.output_node().args[0]
    return tuple(values)


def _read_writes(
    program: torch.export.ExportedProgram, positions: Sequence[int], values: Sequence[Any]
) -> tuple[Write, ...]:
    inputs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    user = [spec.arg.name for spec in inputs if spec.kind is InputKind.USER_INPUT]
    by_state = {spec.target: node for spec, node in zip(inputs, placeholders, strict=True) if spec.target is not None}
    by_input = {node.name: node for node in placeholders}
    aliases = Aliases(program.graph)
    targets, writes = [], []
    for position in positions:
        spec = program.graph_signature.output_specs[position]
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            targets.append(by_input[str(spec.target)])
            writes.append(Write(position, None, user.index(str(spec.target))))
        else:
            targets.append(by_state[spec.target])
            writes.append(Write(position, spec.target, None))
    return tuple(
        Write(write.output, write.state, write.input, _shares(values[write.output], target, targets, aliases))
        for write, target in zip(writes, targets, strict=True)
    )


def _shares(value: Any, target: torch.fx.Node, targets: Sequence[torch.fx.Node], aliases: Aliases) -> bool:
    return value is not target and not aliases.of(value).isdisjoint(targets)
