"""`verify_methods`: whether the methods of a model do what their graphs and the model do, alone and in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from intarsia.core.examples import check_names
from intarsia.core.writes import written_state
from intarsia.errors import ConventionError, IntarsiaError
from intarsia.verification.double import Double
from intarsia.verification.graphs import state_key
from intarsia.verification.record import Record
from intarsia.verification.reference import Entry, EntrySide, Reference, read_references
from intarsia.verification.result import Replay, Verification
from intarsia.verification.sides import MethodSide, Runnable, Watched
from intarsia.verification.verify import CALLS, Inputs, Prepared, Progress, Stages, Steps, compare, prepare, read_model


@dataclass(frozen=True)
class MethodsVerification:
    """The result of `intarsia.verify` for several methods.

    Attributes:
        methods: What was found of each method alone, by its name.
        in_turn: What was found of calls of all methods in turn, on one state.
        replay: What the test vectors of the file told, or None where it has none.

    Example:
        >>> alone = Verification(leaves=(), parity=(), findings=(), calls=3, sizes=())
        >>> print(MethodsVerification({"prefill": alone}, in_turn=alone))
        verification: ok, 1 method
        <BLANKLINE>
        prefill: ok, 3 calls
        parity
        <BLANKLINE>
        all methods in turn, on one state: ok, 3 calls
        parity
    """

    methods: Mapping[str, Verification]
    in_turn: Verification
    replay: Replay | None = None

    @property
    def ok(self) -> bool:
        """Whether each method is right alone, and all of them in turn, and as the test vectors say."""
        answers = self.replay is None or self.replay.ok
        return answers and self.in_turn.ok and all(found.ok for found in self.methods.values())

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, see `Verification.to_json`."""
        methods = {name: found.to_json() for name, found in self.methods.items()}
        replay = self.replay and self.replay.to_json()
        return {"ok": self.ok, "methods": methods, "in_turn": self.in_turn.to_json(), "replay": replay}

    def __str__(self) -> str:
        count = f"{len(self.methods)} method{'' if len(self.methods) == 1 else 's'}"
        parts = [f"verification: {'ok' if self.ok else 'FAILED'}, {count}"]
        parts += [] if self.replay is None else [str(self.replay)]
        parts += [found.text(name) for name, found in self.methods.items()]
        return "\n\n".join([*parts, self.in_turn.text("all methods in turn, on one state")])


def verify_methods(
    subjects: Mapping[str, GraphModule | ExportedProgram],
    reference: torch.nn.Module | Mapping[str, Entry] | None,
    inputs: Mapping[str, Inputs] | None,
    *,
    stages: Stages,
    examples: Mapping[str, Inputs] | None = None,
    progress: Progress | None = None,
) -> MethodsVerification:
    """Verify each method alone, and then all of them in turn: what one writes, the next one reads.

    Args:
        subjects: Hybrids or exported programs by the names of the methods that they are.
        reference: The model, whose methods of the same names are called, or entry points by these names, or None.
        inputs: Calls to make by the names of the methods; drawn where a name is left out.
        stages: What other stages do.
        examples: Calls whose integers tell what may be drawn, likewise.
        progress: Called with calls done, calls in all, and the name of what comes next.

    Raises:
        ConventionError: `inputs`, `examples` or `reference` is no mapping from names of methods, or the model has no
            method of a name.
        IntarsiaError: As for `verify`; names the method.
    """
    check_names("inputs", inputs, list(subjects))
    check_names("examples", examples, list(subjects))
    entries = None if reference is None else entries_of(reference, list(subjects))
    prepared: dict[str, Prepared] = {}
    for name, subject in subjects.items():
        with IntarsiaError.of_method(name):
            prepared[name] = prepare(subject, (inputs or {}).get(name), (examples or {}).get(name, ()), stages)
    runnables = stages.run_methods({name: one.program for name, one in prepared.items()})
    known = None if entries is None else read_references(entries)
    turns = [
        replace(one.calls[round_ % len(one.calls)], method=name)
        for round_ in range(CALLS)
        for name, one in prepared.items()
    ]
    steps = Steps(sum(one.steps for one in prepared.values()) + len(turns), progress)
    alone: dict[str, Verification] = {}
    for name, one in prepared.items():
        steps.within(name)
        with IntarsiaError.of_method(name):
            alone[name] = compare(one, None if known is None else known[name], stages, steps)
    steps.within("")
    record = _record(prepared, runnables, known)
    record.make(turns, steps.begin)
    in_turn = Verification(record.leaves.close(), record.checks(), tuple(record.findings()), record.calls, sizes=())
    steps.end()
    return MethodsVerification(alone, in_turn)


def entries_of(reference: torch.nn.Module | Mapping[str, Entry], methods: Sequence[str]) -> dict[str, Entry]:
    """The entry point that each method is compared with; raises as `verify_methods`."""
    if isinstance(reference, torch.nn.Module):
        entries = {name: getattr(reference, name, None) for name in methods}
        subject = f"the reference, model {type(reference).__name__!r}"
    else:
        check_names("reference", reference, methods)
        entries = {name: reference.get(name) for name in methods}
        subject = "the reference"
    for name, entry in entries.items():
        if entry is None:
            raise ConventionError(
                subject,
                found=f"no method {name!r}",
                expected=f"the methods {', '.join(methods)}",
                fix="Pass reference={name: entry point, ...}, with the entry points that were compiled.",
            )
    return {name: entry for name, entry in entries.items() if entry is not None}


def _record(
    prepared: Mapping[str, Prepared], runnables: Mapping[str, Runnable], references: Mapping[str, Reference] | None
) -> Record:
    """A record of calls of all methods: on the programs, on the graphs, and on the model."""
    programs = {name: one.program for name, one in prepared.items()}
    written = _written(programs)
    names = {state_key(tensor): name for name, tensor in written.items()}
    # The graphs share state, so one double holds all of them.
    double = Double(torch.nn.ModuleList([one.eager for one in prepared.values()]), set(names))
    graphs = {name: double.module.get_submodule(str(i)) for i, name in enumerate(prepared)}
    watched = Watched(written)
    return Record(
        {name: MethodSide(runnable, names) for name, runnable in runnables.items()},
        {name: EntrySide(double, graph) for name, graph in graphs.items()},
        None,
        None if references is None else read_model(references, programs, written.keys(), watched),
        watched,
    )


def _written(programs: Mapping[str, ExportedProgram]) -> dict[str, torch.Tensor]:
    """State that one of the methods writes, by name."""
    held: dict[str, Any] = {}
    for program in programs.values():
        held = {**program.constants, **program.state_dict, **held}
    names = {name for program in programs.values() for name in written_state(program)}
    return {name: tensor for name, tensor in held.items() if name in names}
