"""Test vectors: record what programs answer to some calls, and compare what they answer now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from intarsia._torch import pytree
from intarsia.core.paths import input_paths, output_paths
from intarsia.core.signature import SHORT_NAMES
from intarsia.core.vectors import Vector, Vectors
from intarsia.errors import ArgumentError, ConventionError, IntarsiaError, near_match, with_article
from intarsia.verification.bits import difference, snapshot
from intarsia.verification.drawing import Call
from intarsia.verification.leaves import LeafErrors
from intarsia.verification.precision import coarsest_dtypes
from intarsia.verification.result import Replay
from intarsia.verification.sides import MethodSide, Outcome, Runnable, Watched, call
from intarsia.verification.tolerances import TOLERANCES

_PLAIN = (int, float, bool, str, type(None))


class Recordable(Runnable, Protocol):
    """A program that can be called, and that tells the values of its inputs apart."""

    def flatten(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """The values of a call's arguments, in the order of the program's inputs; raises where they do not fit."""
        ...


def record_vectors(
    given: Any, programs: Mapping[str, ExportedProgram], runnables: Mapping[str, Recordable], *, named: bool
) -> Vectors:
    """Make some calls one after the other, and write down what is answered.

    Args:
        given: The calls: pairs of positional and keyword arguments, or triples that begin with the name of the method.
        programs: By the names of their methods.
        runnables: The same, to be called, in their initial state.
        named: Whether the calls name their methods; otherwise there is one.

    Raises:
        ConventionError: The calls have another form, or an argument or an answer cannot be recorded.
        ArgumentError: Arguments do not fit the program, or the call raises; names the call.
    """
    vectors = []
    for number, (method, args, kwargs) in enumerate(_read_calls(given, list(programs), named=named), 1):
        with IntarsiaError.within(_place(number, method, named=named)):
            vectors.append(_record(method, programs[method], runnables[method], (args, kwargs), number))
    coarsest = coarsest_dtypes(programs)
    paths = {method: output_paths(program.call_spec.out_spec) for method, program in programs.items()}
    return Vectors(
        tuple(vectors),
        TOLERANCES,
        {
            method: tuple(coarsest.get(f"{method}: {path}", torch.float64) for path in paths[method])
            for method in {vector.method: None for vector in vectors}
        },
    )


def replay_vectors(
    vectors: Vectors, programs: Mapping[str, ExportedProgram], runnables: Mapping[str, Runnable]
) -> Replay:
    """Make the recorded calls again, and compare the answers.

    Args:
        vectors: They fit the programs.
        programs: By the names of their methods.
        runnables: The same, to be called, in their initial state.

    Raises:
        IntarsiaError: A program refuses a call; names it.
    """
    named = len(programs) > 1
    errors = LeafErrors(_coarsest_by_name(vectors, programs, named=named), vectors.tolerances)
    for number, vector in enumerate(vectors.calls, 1):
        program, place = programs[vector.method], _place(number, vector.method, named=named)
        with IntarsiaError.within(place):
            outcome = _call(program, runnables[vector.method], vector.inputs, number)
            if isinstance(outcome.error, IntarsiaError):
                raise outcome.error
        if outcome.fault:
            return Replay(number, errors.close(), f"{place} raises {outcome.fault}")
        prefix = _prefix(vector.method, named=named)
        found, expected = (
            {prefix + name: value for name, value in answers.items()} for answers in _answers(program, outcome, vector)
        )
        errors.add(found, expected)
    return Replay(len(vectors.calls), errors.close())


def calls_by_method(
    vectors: Vectors, programs: Mapping[str, ExportedProgram]
) -> dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """The arguments of the recorded calls of each of the methods, by its name."""
    return {
        method: [_arguments(program, vector.inputs) for vector in vectors.calls if vector.method == method]
        for method, program in programs.items()
    }


def calls_of(
    vectors: Vectors, programs: Mapping[str, ExportedProgram]
) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The recorded calls as they are given to `record_vectors`: the method, positional and keyword arguments."""
    return [(vector.method, *_arguments(programs[vector.method], vector.inputs)) for vector in vectors.calls]


def _coarsest_by_name(
    vectors: Vectors, programs: Mapping[str, ExportedProgram], *, named: bool
) -> dict[str, torch.dtype]:
    """The coarsest dtype of each output, by the name that it has in the result."""
    return {
        _prefix(method, named=named) + path: dtype
        for method, dtypes in vectors.coarsest.items()
        for path, dtype in zip(output_paths(programs[method].call_spec.out_spec), dtypes, strict=True)
    }


def _record(
    method: str, program: ExportedProgram, runnable: Recordable, arguments: tuple[Any, Any], number: int
) -> Vector:
    args, kwargs = arguments
    inputs = [_recorded(value, "an input") for value in runnable.flatten(*args, **kwargs)]
    outcome = _call(program, runnable, inputs, number)
    if isinstance(outcome.error, IntarsiaError):
        raise outcome.error
    if outcome.error is not None:
        raise ArgumentError(
            "call",
            found=f"that it raises {outcome.fault}",
            expected="an answer to record",
            fix="Pass arguments that the program answers; they are called in order, and state goes on.",
        ) from outcome.error
    after = list(outcome.inputs.values())
    written = [i for i, value in enumerate(inputs) if difference(after[i], value)]
    return Vector(
        method,
        tuple(inputs),
        tuple(_recorded(value, name) for name, value in outcome.outputs.items()),
        {i: _recorded(after[i], "an input") for i in written},
    )


def _call(program: ExportedProgram, runnable: Runnable, inputs: Sequence[Any], number: int) -> Outcome:
    """One call; its number seeds the random numbers."""
    args, kwargs = _arguments(program, inputs)
    return call(MethodSide(runnable, {}), Call(args, kwargs), Watched({}), number)


def _arguments(program: ExportedProgram, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = pytree.tree_unflatten(list(inputs), program.call_spec.in_spec)
    return tuple(args), kwargs


def _answers(program: ExportedProgram, outcome: Outcome, vector: Vector) -> Iterator[dict[str, Any]]:
    """What a call answered, by name, and what was recorded."""
    paths, after = input_paths(program), list(outcome.inputs.values())
    yield {**outcome.outputs, **{f"input '{paths[i]}'": after[i] for i in vector.written}}
    outputs = dict(zip(outcome.outputs, vector.outputs, strict=True))
    yield {**outputs, **{f"input '{paths[i]}'": value for i, value in vector.written.items()}}


def _recorded(value: Any, name: str) -> Any:
    """A copy of a value, which a file can hold."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_quantized and value.dtype in SHORT_NAMES:
            return snapshot(value).resolve_conj().resolve_neg().contiguous()
        found = f"a tensor of {value.dtype} and layout {value.layout}"
    elif type(value) in _PLAIN:
        return value
    else:
        found = with_article(type(value).__name__)
    raise ConventionError(
        name,
        found=found,
        expected="a dense tensor, a number, a text or None",
        fix="Leave the test vectors out: a file can record nothing else.",
    )


def _read_calls(
    given: Any, methods: Sequence[str], *, named: bool
) -> list[tuple[str, Sequence[Any], Mapping[str, Any]]]:
    calls = list(given) if isinstance(given, (tuple, list)) else [given]
    for item in calls:
        if not isinstance(item, (tuple, list)) or len(item) != (3 if named else 2):
            raise _bad_calls(with_article(type(item).__name__), methods, named=named)
        *_, args, kwargs = item
        if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
            raise _bad_calls(f"{type(args).__name__} and {type(kwargs).__name__} in one", methods, named=named)
        if named and item[0] not in methods:
            raise ConventionError(
                "test_vectors",
                found=f"the method {item[0]!r}",
                expected=f"one of {', '.join(methods)}",
                fix=near_match(str(item[0]), methods) or "Name the method that is to be called.",
            )
    return [(item[0], item[1], item[2]) if named else (methods[0], item[0], item[1]) for item in calls]


def _bad_calls(found: str, methods: Sequence[str], *, named: bool) -> ConventionError:
    form = f"({methods[0]!r}, (x,), {{}})" if named else "((x,), {})"
    return ConventionError(
        "test_vectors",
        found=found,
        expected=f"a list of calls, each {'a method, ' if named else ''}a tuple of arguments and a dict of keywords",
        fix=f"Pass test_vectors=[{form}] for one call with one tensor.",
    )


def _prefix(method: str, *, named: bool) -> str:
    return f"{method}: " if named else ""


def _place(number: int, method: str, *, named: bool) -> str:
    return f"test vector {number}" + (f", method {method!r}" if named else "")
