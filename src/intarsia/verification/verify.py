"""`verify`: whether a program does what its own graph and its model do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from intarsia._torch import pytree
from intarsia.errors import ConventionError, IntarsiaError, with_article
from intarsia.verification.double import Double
from intarsia.verification.drawing import Call, Drawing
from intarsia.verification.graphs import state_key
from intarsia.verification.parity import compare_programs, excuse, no_comparison
from intarsia.verification.precision import coarsest_dtypes
from intarsia.verification.record import Model, Record
from intarsia.verification.reference import Entry, Reference, read_references
from intarsia.verification.result import Verification
from intarsia.verification.sides import Runnable, Watched, fault_text, program_side
from intarsia.verification.sizes import corners

CALLS = 3
"""How often the program is called at each corner of its ranges, and with each of the given inputs."""

Inputs: TypeAlias = Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
"""Calls to make: pairs of positional and keyword arguments."""

Progress: TypeAlias = Callable[[int, int, str], None]
"""Is told how many calls are done, how many there are, and the name of what comes next ("" at the end)."""


@dataclass(frozen=True)
class Stages:
    """What verification needs of other stages.

    Attributes:
        export: Hybrid to program, without a retrace; takes example arguments, or None twice.
        retrace: Graph module to program, by `torch.export.export`; takes example arguments.
        run: Makes a program callable, with its own copy of the state that it writes.
        run_methods: Makes the programs of several methods callable, which share their copy of the state.
    """

    export: Callable[[GraphModule, Any, Any], ExportedProgram]
    retrace: Callable[[GraphModule, Any, Any], ExportedProgram]
    run: Callable[[ExportedProgram], Runnable]
    run_methods: Callable[[Mapping[str, ExportedProgram]], Mapping[str, Runnable]]


@dataclass(frozen=True)
class Prepared:
    """What is to be compared.

    Attributes:
        program: The program.
        eager: The graph module that says what is right.
        calls: Calls to make.
        findings: What came up while they were made.
    """

    program: ExportedProgram
    eager: GraphModule
    calls: Sequence[Call]
    findings: Sequence[str]

    @property
    def steps(self) -> int:
        """How many calls it takes to compare."""
        return len(self.calls) * CALLS


def verify(
    subject: GraphModule | ExportedProgram,
    reference: Entry | None,
    inputs: Inputs | None,
    *,
    stages: Stages,
    examples: Inputs = (),
    progress: Progress | None = None,
) -> Verification:
    """Compare a program with the retraced one and with its eager graph, to the bit, and with its model.

    Args:
        subject: A hybrid, whose export is verified, or an exported program. No tensor of it is changed.
        reference: The model that it was made of, or a bound method of it, to compare outputs with, within tolerances.
            Not changed.
        inputs: Calls to make; drawn at the corners of the ranges when None.
        stages: What other stages do.
        examples: Calls whose integers tell what may be drawn where the graph does not; unused when inputs are given.
        progress: Called with calls done, calls in all, and the name of what comes next.

    Raises:
        UndrawableInput: Inputs cannot be drawn.
        ConventionError: The subject does not say how it is called, or the reference does not take its inputs.
        ArgumentError: Given inputs do not fit the program.
        CaptureError: The reference is no module, and no bound method of one.
    """
    prepared = prepare(subject, inputs, examples, stages)
    steps = Steps(prepared.steps, progress)
    result = compare(prepared, None if reference is None else read_references({"": reference})[""], stages, steps)
    steps.end()
    return result


def prepare(
    subject: GraphModule | ExportedProgram,
    inputs: Inputs | None,
    examples: Inputs,
    stages: Stages,
) -> Prepared:
    """The two that are compared, and the calls to make; arguments as for `verify`."""
    calls = None if inputs is None else _read_inputs(inputs)
    program, eager = _read_subject(subject, calls, stages)
    return Prepared(program, eager, *_given_or_drawn(program, calls, examples))


def find_calls(
    program: ExportedProgram, inputs: Inputs | None, examples: Inputs
) -> tuple[Sequence[Call], Sequence[str]]:
    """The calls to make of a program, and what came up while they were found; arguments as for `verify`."""
    return _given_or_drawn(program, None if inputs is None else _read_inputs(inputs), examples)


def _given_or_drawn(
    program: ExportedProgram,
    calls: Sequence[Call] | None,
    examples: Inputs,
) -> tuple[Sequence[Call], Sequence[str]]:
    if calls is None:
        return _draw(program, examples)
    return calls, ["inputs were given, so the corners of the ranges were not tried"]


def compare(prepared: Prepared, reference: Reference | None, stages: Stages, steps: Steps) -> Verification:
    """Compare one program; arguments as for `verify`."""
    program, eager, calls = prepared.program, prepared.eager, prepared.calls
    steps.tell("retracing")
    retraced, fault = _retrace(eager, calls, stages)
    record = _compare_calls(program, eager, retraced, reference, stages)
    sequence = [made for made in calls for _ in range(CALLS)]
    record.make(sequence, steps.begin)
    findings = [*prepared.findings, *record.findings()]
    steps.tell("comparing graphs")
    fault = fault or record.retrace_fault
    if fault:
        findings.append(f"the retrace itself is wrong: {fault}")
    parity = no_comparison("there is no retrace") if retraced is None else compare_programs(program, retraced)
    if fault:
        parity = tuple(excuse(check) for check in parity)
    return Verification(
        leaves=record.leaves.close(),
        parity=(*record.checks(), *parity),
        findings=tuple(findings),
        calls=record.calls,
        sizes=tuple(dict.fromkeys(made.place for made in sequence[: record.calls] if made.place)),
    )


class Steps:
    """Tells how far a verification has come, in calls."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._begun = 0
        self._progress = progress
        self._method = ""

    def within(self, method: str) -> None:
        """Have the names of the next steps begin with that of a method, or with nothing."""
        self._method = f"{method}: " if method else ""

    def tell(self, name: str) -> None:
        """Tell what comes next, which is no call."""
        if self._progress:
            self._progress(self._begun, self._total, self._method + name)

    def begin(self, name: str) -> None:
        """Tell which call comes next."""
        self.tell(name)
        self._begun += 1

    def end(self) -> None:
        """Tell that all is done."""
        if self._progress:
            self._progress(self._total, self._total, "")


def _read_inputs(inputs: Any) -> list[Call]:
    pairs = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    for pair in pairs:
        fits = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not (fits and isinstance(pair[0], (tuple, list)) and isinstance(pair[1], Mapping)):
            raise _bad_inputs(f"an item of type {type(pair).__name__}")
    if not pairs:
        raise _bad_inputs("no calls")
    return [Call(tuple(args), kwargs) for args, kwargs in pairs]


def _bad_inputs(found: str) -> ConventionError:
    return ConventionError(
        "argument 'inputs'",
        found=found,
        expected="pairs of positional arguments (a tuple) and keyword arguments (a dict)",
        fix="Pass inputs=[((x,), {})] for one call with one tensor.",
    )


def _read_subject(
    subject: GraphModule | ExportedProgram, calls: Sequence[Call] | None, stages: Stages
) -> tuple[ExportedProgram, GraphModule]:
    """The program to verify, and the graph module that says what is right."""
    if isinstance(subject, GraphModule):
        args, kwargs = (None, None) if calls is None else (calls[0].args, dict(calls[0].kwargs))
        return stages.export(subject, args, kwargs), subject
    if not isinstance(subject, ExportedProgram):
        raise ConventionError(
            "the subject of verify",
            found=with_article(type(subject).__qualname__),
            expected="a hybrid (torch.fx.GraphModule), an exported program, a Program, or the path of a file",
            fix="Compile or export the model first, and pass the model itself as reference=.",
        )
    module = _module_of(subject)
    module.meta["range_constraints"] = dict(subject.range_constraints)
    return subject, module


def _module_of(program: ExportedProgram) -> GraphModule:
    try:
        return program.module(check_guards=False)
    except Exception as error:
        raise ConventionError(
            "the exported program",
            found=f"a refusal of its module() ({fault_text(error)})",
            expected="a program that torch can make a module of",
            fix="Rename what the message names, and export again.",
        ) from error


def _draw(program: ExportedProgram, examples: Inputs) -> tuple[list[Call], list[str]]:
    drawing = Drawing(program, *(Call(tuple(args), kwargs) for args, kwargs in examples))
    return [drawing.draw(point, seed) for seed, point in enumerate(corners(program))], list(drawing.findings)


def _retrace(eager: GraphModule, calls: Sequence[Call], stages: Stages) -> tuple[ExportedProgram | None, str]:
    """The retraced program; traced with the largest inputs, for torch takes a size of 1 to be fixed."""
    largest = max(calls, key=_elements)
    try:
        return stages.retrace(eager, largest.args, dict(largest.kwargs)), ""
    except IntarsiaError as error:
        return None, str(error)


def _elements(made: Call) -> int:
    leaves = pytree.tree_leaves((made.args, dict(made.kwargs)))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _compare_calls(
    program: ExportedProgram,
    eager: GraphModule,
    retraced: ExportedProgram | None,
    reference: Reference | None,
    stages: Stages,
) -> Record:
    """A record of the sides, each with its own written state."""
    subject = program_side(program, stages.run)
    other = None if retraced is None else program_side(retraced, stages.run)
    programs = [subject] if other is None else [subject, other]
    written = Watched.of(program, programs).tensors
    double = Double(eager, {state_key(tensor) for tensor in written.values()})
    watched = Watched.of(program, [*programs, double])
    model = None if reference is None else read_model({"": reference}, {"": program}, written.keys(), watched)
    return Record({"": subject}, {"": double}, None if other is None else {"": other}, model, watched)


def read_model(
    references: Mapping[str, Reference],
    programs: Mapping[str, ExportedProgram],
    written: Collection[str],
    watched: Watched,
) -> Model:
    """The model to compare with, on one double of it.

    Args:
        references: By the names of the methods; all on one root.
        programs: Likewise.
        written: Names of the state that a call writes.
        watched: State to look at.
    """
    first = next(iter(references.values()))
    double = first.double({state_key(first.named[name]) for name in written if name in first.named})
    tensors = {name: first.named[name] for name in watched.tensors if name in first.named}
    sides = {name: reference.side(double) for name, reference in references.items()}
    misfits = {name: reference.misfit(programs[name]) for name, reference in references.items()}
    return Model(sides, tensors, misfits, coarsest_dtypes(programs))
