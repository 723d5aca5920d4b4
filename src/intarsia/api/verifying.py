"""What is compared with what."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, overload

import torch

from intarsia import surgery
from intarsia.api.files import Savable, load
from intarsia.core.examples import check_names
from intarsia.core.method_names import check_method_names
from intarsia.formats.archive.layout import METHOD
from intarsia.runtime.graphless import GraphlessMethods, GraphlessProgram
from intarsia.runtime.methods import Methods, run_methods
from intarsia.runtime.program import Program
from intarsia.verification import (
    Entry,
    Inputs,
    MethodsVerification,
    Replay,
    Stages,
    Verification,
    calls_by_method,
    replay_vectors,
    verify_answers,
    verify_method_answers,
    verify_methods,
)
from intarsia.verification import verify as _verify

_Graphless: TypeAlias = GraphlessProgram | GraphlessMethods[Any]


@overload
def verify(
    path_or_program: torch.fx.GraphModule | torch.export.ExportedProgram | Program | GraphlessProgram,
    reference: Entry | None = None,
    inputs: Inputs | None = None,
    *,
    example: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Verification: ...


@overload
def verify(
    path_or_program: Methods | GraphlessMethods[Any] | Mapping[str, Savable],
    reference: torch.nn.Module | Mapping[str, Entry] | None = None,
    inputs: Mapping[str, Inputs] | None = None,
    *,
    example: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> MethodsVerification: ...


@overload
def verify(
    path_or_program: str | os.PathLike[str],
    reference: Entry | Mapping[str, Entry] | None = None,
    inputs: Inputs | Mapping[str, Inputs] | None = None,
    *,
    example: Any = None,
    allow: Iterable[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Verification | MethodsVerification: ...


def verify(
    path_or_program: str | os.PathLike[str] | Savable | Methods | _Graphless | Mapping[str, Savable],
    reference: Any = None,
    inputs: Any = None,
    *,
    example: Any = None,
    allow: Iterable[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Verification | MethodsVerification:
    """Compare a program to the bit with the retraced one and with its eager graph, and with its model in tolerances.

    Args:
        path_or_program: A hybrid, whose export is verified; an exported or loaded program; or the path of a file. Or
            several methods: a mapping, or what `load` returns. No tensor of it is changed. A file without a graph
            (`.pte`, or `format="aoti"`) is compared with its model and its test vectors alone.
        reference: The model that it was made of, or a bound method of it, to compare outputs with. For several methods
            the model that has methods of their names, or a mapping of entry points. Not changed.
        inputs: Calls to make, pairs of positional and keyword arguments. When they are left out, inputs are drawn at
            the corners of the ranges. For several methods a mapping with their names, of which some may be left out.
        example: One call that suits the program. Where the graph does not tell what an integer input is for, its
            integers are drawn between the lowest and the highest of it and of the file's test vectors. For several
            methods a mapping.
        allow: What the file may hold, as for `load`; for a path alone.
        progress: Called with calls done, calls in all, and the name of what comes next.

    Returns:
        A result that prints as a table; its `ok` is the verdict. For several methods, each is verified alone, and then
        all of them are called in turn on one state. Its `replay` tells how near the answers to the calls that a file
        records are to the recorded ones; they are examples too.

    Raises:
        ConventionError: Inputs cannot be drawn: pass them, or an example. Or a name is none of a method. Or the file
            holds no graph, and there is neither a reference nor a test vector.
        ArgumentError: Given inputs do not fit the program.
        FormatError: The file cannot be read, or its test vectors do not fit.

    Example:
        >>> import intarsia
        >>> model = torch.nn.Linear(4, 2)
        >>> result = intarsia.verify(intarsia.compile(model, (torch.ones(3, 4),)), model)
        >>> result.ok, [leaf.name for leaf in result.leaves]
        (True, ['output'])
    """
    subject = path_or_program
    if isinstance(subject, GraphlessProgram | GraphlessMethods):
        subject = subject.session()
    elif isinstance(subject, (str, os.PathLike)):
        subject = load(subject, allow=allow)
    if isinstance(subject, GraphlessProgram | GraphlessMethods):
        return _verify_answers(subject, reference, inputs, example=example, progress=progress)
    replay, recorded = _replay(subject) if isinstance(subject, Program | Methods) else (None, {})
    stages = Stages(surgery.export, surgery.retrace, Program, run_methods)
    if isinstance(subject, Methods):
        subject = {name: getattr(subject, name) for name in subject.methods}
    if isinstance(subject, Mapping):
        check_method_names(subject)
        subjects = {name: _program_of(one) for name, one in subject.items()}
        examples = _examples_of(example, recorded, list(subjects))
        several = verify_methods(subjects, reference, inputs, stages=stages, examples=examples, progress=progress)
        return replace(several, replay=replay)
    own = _with(example, recorded.get(METHOD, []))
    result = _verify(_program_of(subject), reference, inputs, stages=stages, examples=own, progress=progress)
    return replace(result, replay=replay)


def _verify_answers(
    subject: _Graphless, reference: Any, inputs: Any, *, example: Any, progress: Any
) -> Verification | MethodsVerification:
    """Verify what a file without a graph answers; its state is written."""
    methods: dict[str, GraphlessProgram] = (
        {METHOD: subject}
        if isinstance(subject, GraphlessProgram)
        else {name: getattr(subject, name) for name in subject.methods}
    )
    replay, recorded = None, {}
    vectors = subject.test_vectors
    if vectors is not None:
        boundaries = {name: program.boundary for name, program in methods.items()}
        replay = replay_vectors(vectors, boundaries, methods)
        recorded = calls_by_method(vectors, boundaries)
    known: dict[str, Any] = {"recorded": vectors is not None, "progress": progress}
    result: Verification | MethodsVerification
    if isinstance(subject, GraphlessProgram):
        own = _with(example, recorded.get(METHOD, []))
        result = verify_answers(subject, reference, inputs, examples=own, **known)
    else:
        by_method = _examples_of(example, recorded, list(methods))
        result = verify_method_answers(methods, reference, inputs, examples=by_method, **known)
    return replace(result, replay=replay)


def _with(example: Any, recorded: Inputs) -> Inputs:
    return recorded if example is None else [example, *recorded]


def _examples_of(example: Any, recorded: Mapping[str, Inputs], methods: Sequence[str]) -> dict[str, Inputs]:
    check_names("example", example, methods)
    return {name: _with((example or {}).get(name), recorded.get(name, [])) for name in methods}


def _replay(loaded: Program | Methods) -> tuple[Replay | None, dict[str, Any]]:
    """What the test vectors of a file tell, and the arguments of its calls by the names of the methods."""
    vectors = loaded.test_vectors
    if vectors is None:
        return None, {}
    methods = {METHOD: loaded} if isinstance(loaded, Program) else {name: getattr(loaded, name) for name in loaded}
    programs = {name: program.exported_program for name, program in methods.items()}
    return replay_vectors(vectors, programs, run_methods(programs)), calls_by_method(vectors, programs)


def _program_of(subject: Savable) -> torch.fx.GraphModule | torch.export.ExportedProgram:
    if not isinstance(subject, Program):
        return subject
    subject.check()
    return subject.exported_program
