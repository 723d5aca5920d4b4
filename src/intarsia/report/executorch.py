"""Describe a method of a file for ExecuTorch, as far as such a file tells what one of torch does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch.export import ExportedProgram

from intarsia.report.program import EngineFacts, ProgramFacts, StateFacts, describe_program

DIALECT = "EXECUTORCH"


class Plan(Protocol):
    """What a method does."""

    @property
    def outputs(self) -> Sequence[str]:
        """Dtype and largest shape of each output."""
        ...

    @property
    def calls(self) -> Mapping[str, int]:
        """Kernel or delegate -> number of calls."""
        ...


def describe_method(
    boundary: ExportedProgram,
    plan: Plan,
    *,
    engines: Sequence[EngineFacts],
    written: Iterable[str],
    versions: Mapping[str, str],
) -> ProgramFacts:
    """Gather the facts about a method. Nothing is loaded.

    Args:
        boundary: A program with the inputs, ranges and structures of the method, which computes nothing.
        plan: What the method does.
        engines: Its engines.
        written: Names of the state that it writes.
        versions: What wrote the file -> version.
    """
    facts = describe_program(boundary, versions=versions)
    outputs = facts.outputs
    if len(plan.outputs) == len(outputs):
        told = zip(outputs, plan.outputs, strict=True)
        outputs = tuple(replace(leaf, type=f"{text} at most" if text else leaf.type) for leaf, text in told)
    return replace(
        facts,
        dialect=DIALECT,
        nodes=sum(plan.calls.values()),
        outputs=outputs,
        engines=tuple(engines),
        operators=dict(plan.calls),
        state=tuple(StateFacts(name, "buffer", "", 0, ("this method",)) for name in written),
        size_bytes={"engines, compiled": sum(engine.payload_bytes for engine in engines)},
    )
