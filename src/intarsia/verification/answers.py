"""`verify` of a program whose file holds no graph: its answers, call after call, against those of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from intarsia._torch import pytree
from intarsia.core.examples import check_names
from intarsia.core.paths import input_paths
from intarsia.errors import ArgumentError, ConventionError, IntarsiaError, PositionError, StateError
from intarsia.verification.bits import difference
from intarsia.verification.drawing import Call
from intarsia.verification.graphs import state_key
from intarsia.verification.leaves import LeafErrors
from intarsia.verification.methods import MethodsVerification, entries_of
from intarsia.verification.record import place_text, refused_reference
from intarsia.verification.reference import Entry, Reference, read_references
from intarsia.verification.result import Check, Verification
from intarsia.verification.sides import MethodSide, Outcome, Watched, call
from intarsia.verification.verify import CALLS, Inputs, Progress, Steps, find_calls, read_model

NO_GRAPH = "the file holds no graph"
"""Why a check of parity could not be made."""

_NEEDS_GRAPH = ("outputs", "state", "inputs", "graph", "signature", "structure", "ranges")


class Answering(Protocol):
    """A program that can be called, and that tells what it takes and gives, but not how."""

    boundary: ExportedProgram
    precision: Mapping[str, torch.dtype]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program once."""
        ...

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """Live state that calls write, by name; raises `StateError` where it cannot be read."""
        ...

    @property
    def writes(self) -> Mapping[str, str]:
        """What calls write, by name -> its kind, "input" or a kind of state."""
        ...

    def reset(self) -> None:
        """Give the state its initial values, for all methods of a file."""
        ...


def verify_answers(
    subject: Answering,
    reference: Entry | None,
    inputs: Inputs | None,
    *,
    examples: Inputs = (),
    recorded: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Compare what a program answers with what its model does, within tolerances.

    Args:
        subject: Its state is written and reset.
        reference: As for `verify`; without one nothing is called.
        inputs: Likewise.
        examples: Likewise.
        recorded: Whether its file has test vectors, which can be compared without a model.
        progress: As for `verify`.

    Raises:
        ConventionError: There is nothing to compare with; or as for `verify`.
        IntarsiaError: As for `verify`.
    """
    if reference is None:
        _check_comparable(inputs, recorded=recorded)
        return _nothing_called()
    prepared = {"": _Prepared(subject, *find_calls(subject.boundary, inputs, examples))}
    calls = prepared[""].sequence()
    steps = Steps(len(calls), progress)
    result = _compare(prepared, read_references({"": reference}), calls, steps)
    steps.end()
    return result


def verify_method_answers(
    subjects: Mapping[str, Answering],
    reference: torch.nn.Module | Mapping[str, Entry] | None,
    inputs: Mapping[str, Inputs] | None,
    *,
    examples: Mapping[str, Inputs] | None = None,
    recorded: bool = False,
    progress: Progress | None = None,
) -> MethodsVerification:
    """The same of several methods on one state: each alone, and then all of them in turn.

    Args:
        subjects: By the names of the methods. Their state is written and reset.
        reference: As for `verify_methods`; without one nothing is called.
        inputs: Likewise.
        examples: Likewise.
        recorded: As for `verify_answers`.
        progress: As for `verify_methods`.

    Raises:
        ConventionError: There is nothing to compare with; or as for `verify_methods`.
        IntarsiaError: As for `verify_methods`.
    """
    check_names("inputs", inputs, list(subjects))
    check_names("examples", examples, list(subjects))
    if reference is None:
        _check_comparable(inputs, recorded=recorded)
        return MethodsVerification({name: _nothing_called() for name in subjects}, _nothing_called())
    references = read_references(entries_of(reference, list(subjects)))
    prepared = {}
    for name, subject in subjects.items():
        with IntarsiaError.of_method(name):
            found = find_calls(subject.boundary, (inputs or {}).get(name), (examples or {}).get(name, ()))
            prepared[name] = _Prepared(subject, *found)
    turns = [
        replace(one.calls[round_ % len(one.calls)], method=name)
        for round_ in range(CALLS)
        for name, one in prepared.items()
    ]
    steps = Steps(sum(len(one.sequence()) for one in prepared.values()) + len(turns), progress)
    alone = {}
    for name, one in prepared.items():
        steps.within(name)
        with IntarsiaError.of_method(name):
            alone[name] = _compare({"": one}, {"": references[name]}, one.sequence(), steps)
    steps.within("")
    shared = {name: replace(one, findings=()) for name, one in prepared.items()}
    in_turn = replace(_compare(shared, references, turns, steps), sizes=())
    steps.end()
    return MethodsVerification(alone, in_turn)


@dataclass(frozen=True)
class _Prepared:
    """A program, and the calls to make of it."""

    subject: Answering
    calls: Sequence[Call]
    findings: Sequence[str]

    def sequence(self) -> list[Call]:
        return [made for made in self.calls for _ in range(CALLS)]


def _check_comparable(inputs: object, *, recorded: bool) -> None:
    if recorded and inputs is None:
        return
    raise ConventionError(
        "the program",
        found="no model to compare its answers with, and no graph in its file" + (", for inputs" if inputs else ""),
        expected="a model, or test vectors in the file",
        fix="Pass the model as reference= (--against TARGET), or save the program with test_vectors=.",
    )


def _nothing_called() -> Verification:
    return Verification((), _parity(Check("calls", None, "there is no model to compare with")), (), 0, ())


def _parity(calls: Check) -> tuple[Check, ...]:
    return calls, *(Check(name, None, NO_GRAPH) for name in _NEEDS_GRAPH)


def _compare(
    prepared: Mapping[str, _Prepared], references: Mapping[str, Reference], calls: Sequence[Call], steps: Steps
) -> Verification:
    next(iter(prepared.values())).subject.reset()
    answers = _Answers({name: one.subject for name, one in prepared.items()}, references)
    findings = [*(finding for one in prepared.values() for finding in one.findings), *answers.findings()]
    for made in calls:
        steps.begin(f"call {answers.calls + 1}{place_text(made)}")
        if not answers.add(made):
            break
    return Verification(
        leaves=answers.leaves.close(),
        parity=_parity(Check("calls", not answers.fault, answers.fault)),
        findings=(*findings, *([answers.stop] if answers.stop else [])),
        calls=answers.calls,
        sizes=tuple(dict.fromkeys(made.place for made in calls[: answers.calls] if made.place)),
    )


class _Answers:
    """Makes calls of methods and of their model, and collects how far the answers agree.

    Attributes:
        leaves: Errors against the model.
        calls: How many calls were compared.
        fault: What a call of the program raised, or no text.
        stop: Why the calls ended early without a fault, or no text.
    """

    def __init__(self, subjects: Mapping[str, Answering], references: Mapping[str, Reference]) -> None:
        self._subjects = subjects
        written = {name for one in subjects.values() for name, kind in one.writes.items() if kind != "input"}
        state = _readable_state(subjects)
        self._hidden = sorted(written - state.keys())
        known = next(iter(references.values())).named
        self._unknown = sorted(state.keys() - known.keys())
        watched = {name: known[name] for name in state if name in known}
        boundaries = {name: one.boundary for name, one in subjects.items()}
        self._model = read_model(references, boundaries, written, Watched(watched))
        self._moved = sorted(name for name, value in watched.items() if difference(state[name], value))
        names = {state_key(value): name for name, value in watched.items()}
        self._sides = {name: MethodSide(one, names) for name, one in subjects.items()}
        self._paths = {name: input_paths(boundary) for name, boundary in boundaries.items()}
        self.leaves = LeafErrors(_precision(subjects))
        self.calls = 0
        self.fault = self.stop = ""

    def findings(self) -> list[str]:
        """What of the state is not compared, or was not the model's before the first call."""
        texts = {
            "state {} cannot be read: it is compared by what later calls answer": self._hidden,
            "state {} is not compared: the model has none of the name": self._unknown,
            "before the first call, state {} of the model was not the program's: the model was called or changed after "
            "the program was made. Pass it as it was then": self._moved,
        }
        return [text.format(", ".join(f"'{name}'" for name in names)) for text, names in texts.items() if names]

    def add(self, made: Call) -> bool:
        """Make one call; tells whether another one may follow."""
        self.calls += 1
        made = replace(made, kwargs=_in_order(made.kwargs, self._subjects[made.method].boundary))
        watched = Watched(self._model.tensors)
        found = call(self._sides[made.method], made, watched, self.calls - 1)
        expected = call(self._model.sides[made.method], made, watched, self.calls - 1)
        if self.calls > 1 and _runs_out(found, expected):
            self.calls -= 1
            self.stop = f"not compared after call {self.calls}: program and model both raise ({found.fault})"
            return False
        if isinstance(found.error, ArgumentError) and not made.drawn:
            raise found.error
        if expected.fault:
            raise refused_reference(made.method, expected.fault, self._model.misfits[made.method])
        if found.fault:
            self.fault = f"call {self.calls}{place_text(made)}: the program raises {found.fault}"
            return False
        self._compare(made, found, expected)
        return True

    def _compare(self, made: Call, found: Outcome, expected: Outcome) -> None:
        prefix = f"{made.method}: " if made.method else ""
        before = pytree.tree_leaves((made.args, dict(made.kwargs)))
        leaves = []
        for outcome, other in ((found, expected), (expected, found)):
            written = _written_inputs(before, self._paths[made.method], outcome, other)
            state = {f"state '{name}'": outcome.state[name] for name in self._model.tensors}
            leaves.append({**{prefix + name: leaf for name, leaf in {**outcome.outputs, **written}.items()}, **state})
        self.leaves.add(*leaves)


def _in_order(kwargs: Mapping[str, Any], boundary: ExportedProgram) -> dict[str, Any]:
    """Keyword arguments in the order of the program's inputs."""
    in_order = {name: kwargs[name] for name in boundary.call_spec.in_spec.child(1).context if name in kwargs}
    return {**in_order, **kwargs}


def _readable_state(subjects: Mapping[str, Answering]) -> Mapping[str, torch.Tensor]:
    try:
        return next(iter(subjects.values())).state
    except StateError:
        return {}


def _precision(subjects: Mapping[str, Answering]) -> dict[str, torch.dtype]:
    """What the methods tell, by the names of leaves."""
    return {
        name if not method or name.startswith("state ") else f"{method}: {name}": dtype
        for method, subject in subjects.items()
        for name, dtype in subject.precision.items()
    }


def _runs_out(found: Outcome, expected: Outcome) -> bool:
    """Whether a later call finds no room in the state, in the program as in the model."""
    if found.error is None:
        return False
    is_position = isinstance(found.error, PositionError) and isinstance(expected.error, RuntimeError)
    return isinstance(expected.error, IndexError) or is_position


def _written_inputs(before: Sequence[Any], paths: Sequence[str], outcome: Outcome, other: Outcome) -> dict[str, Any]:
    """The inputs as a call left them, where it or that of the other side wrote them."""
    after, others = list(outcome.inputs.values()), list(other.inputs.values())
    changed = [i for i, value in enumerate(before) if difference(after[i], value) or difference(others[i], value)]
    names = paths if len(paths) == len(before) else list(outcome.inputs)
    return {f"input '{names[i]}'": after[i] for i in changed}
