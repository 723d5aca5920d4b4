"""The state of several programs of one model as one: entries of one name are one entry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch.export.graph_signature import InputKind

from intarsia.core.memory import memory_of
from intarsia.core.signature import SHORT_NAMES
from intarsia.core.writes import written_placeholders, written_state
from intarsia.errors import StateError
from intarsia.runtime.state import SharedState, read_state

Held: TypeAlias = Iterable[tuple[str, str]]
"""State that engines hold as constants: pairs of the engine's and the state's name."""

_FIX = (
    "Take the methods from one model, in one process; where the models are unrelated, rename the state of one, "
    "or save them to two files."
)


def share_state(
    programs: Mapping[str, torch.export.ExportedProgram], hidden: Mapping[str, Collection[str]]
) -> SharedState:
    """The state of some programs as one.

    Parameters, buffers, and constants that a program writes are one entry where they have one name. Other constants and
    engines are what torch or a backend named, and stay each program's own: where two differ, the second has the
    method's name before its own.

    Args:
        programs: By the names of their methods. Not modified; no tensor is copied.
        hidden: For each of them, the names of its engines.

    Raises:
        StateError: Entries of one name differ in shape, dtype, device or value, or are tied to different others.
    """
    entries: dict[str, Any] = {}
    owners: dict[str, str] = {}
    states = {method: read_state(program) for method, program in programs.items()}
    for method, program in programs.items():
        for name in _model_state(program, hidden[method]):
            if name in entries:
                _compare(name, (owners[name], method), (states[owners[name]], states[method]))
            else:
                entries[name], owners[name] = states[method][name], method
    names: dict[torch.export.ExportedProgram, dict[str, str]] = {}
    for method, program in programs.items():
        model_state = set(_model_state(program, hidden[method]))
        names[program] = {}
        for name, value in states[method].items():
            if name not in model_state:
                key = name if entries.setdefault(name, value) is value else f"{method}.{name}"
                names[program][name] = key
                entries[key] = value
    return SharedState(entries, names)


def check_one_model(programs: Mapping[str, torch.export.ExportedProgram]) -> None:
    """Refuse written state of one name that is two tensors: the models that the methods are of would not share it.

    Args:
        programs: By the names of their methods.

    Raises:
        StateError: There is such state.
    """
    states = {method: read_state(program) for method, program in programs.items()}
    writers: dict[str, str] = {}
    for method, program in programs.items():
        for name in written_state(program):
            writers.setdefault(name, method)
    for name, writer in writers.items():
        for method, state in states.items():
            if name in state and not _is_same_place(states[writer][name], state[name]):
                raise StateError(
                    f"state {name!r} of the methods {writer!r} and {method!r}",
                    found=f"two tensors, each with memory of its own, of which {writer!r} writes one",
                    expected="one tensor of one model",
                    consequence=f"In one file they would be one. {_relation(states[writer], state)}".strip(),
                    fix=_FIX,
                )


def check_held_state(programs: Mapping[str, torch.export.ExportedProgram], held: Mapping[str, Held]) -> None:
    """Refuse engines that hold as a constant what another method writes: they would not see it.

    Args:
        programs: By the names of their methods.
        held: State that engines of each hold.

    Raises:
        StateError: There is such an engine.
    """
    writers = {name: method for method, program in programs.items() for name in written_state(program)}
    for method, pairs in held.items():
        for engine, name in pairs:
            if name in writers:
                raise StateError(
                    f"engine {engine!r} of the method {method!r}",
                    found=f"state {name!r} as a constant in it, which the method {writers[name]!r} writes",
                    expected="an engine that takes it as an input",
                    consequence="It would not see what is written.",
                    fix="Compile the methods together: intarsia.compile({name: entry point, ...}).",
                )


def _is_same_place(one: Any, other: Any) -> bool:
    """Whether two entries are one tensor; what has no memory shares none, and is one wherever it is."""
    if one is other or not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return one is other
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return False
    return not one.numel() or (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride())


def _relation(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A sentence for methods that have no tensor in common, or no text."""
    in_common = {memory_of(value) for value in one.values()} & {memory_of(value) for value in other.values()}
    return "" if in_common else "The methods have no tensor in common: they seem to be of unrelated models."


def _model_state(program: torch.export.ExportedProgram, hidden: Collection[str]) -> Iterator[str]:
    written = {node.name for node in written_placeholders(program.graph_module)}
    for spec in program.graph_signature.input_specs:
        named = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        constant = spec.kind is InputKind.CONSTANT_TENSOR and spec.arg.name in written
        if (named or constant) and spec.target not in hidden:
            yield str(spec.target)


def _compare(name: str, methods: tuple[str, str], states: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    """Refuse entries of one name that cannot be one."""
    first, second = (state[name] for state in states)
    subject = f"state {name!r} of the methods {methods[0]!r} and {methods[1]!r}"
    described = [_describe(tensor) for tensor in (first, second)]
    if described[0] != described[1]:
        raise StateError(
            subject,
            found=f"{described[0]} and {described[1]}",
            expected="one state for one name",
            consequence=_relation(*states),
            fix=_FIX,
        )
    if not _is_same_place(first, second) and not bool(
        ((first == second) | ((first != first) & (second != second))).all()  # noqa: PLR0124 - true of NaN alone
    ):
        raise StateError(
            subject,
            found="two initial values",
            expected="one state for one name",
            consequence=_relation(*states),
            fix=_FIX,
        )
    if memory_of(first) == memory_of(second):
        return
    ties = [{other for other in state if memory_of(state[other]) == memory_of(state[name])} for state in states]
    if ties[0] != ties[1]:
        odd = min(ties[0] ^ ties[1])
        raise StateError(
            subject, found=f"a tie to {odd!r} in one of them alone", expected="the same ties in both", fix=_FIX
        )


def _describe(tensor: torch.Tensor) -> str:
    return f"{SHORT_NAMES.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)} on {tensor.device}"
