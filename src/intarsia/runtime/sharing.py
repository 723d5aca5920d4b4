"""The state of several programs of one model as one: entries of one name are one entry."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia.core.signature import SHORT_NAMES
from intarsia.core.writes import written_placeholders
from intarsia.errors import StateError
from intarsia.runtime.state import SharedState, read_state

_FIX = (
    "Export the methods from one model; where the models are unrelated, rename the state of one, "
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
            subject, found=f"{described[0]} and {described[1]}", expected="one state for one name", fix=_FIX
        )
    same_place = (first.data_ptr(), first.stride()) == (second.data_ptr(), second.stride())
    if not same_place and not bool(((first == second) | ((first != first) & (second != second))).all()):  # noqa: PLR0124 - true of NaN alone
        raise StateError(subject, found="two initial values", expected="one state for one name", fix=_FIX)
    if _storage(first) == _storage(second):
        return
    ties = [{other for other in state if _storage(state[other]) == _storage(state[name])} for state in states]
    if ties[0] != ties[1]:
        odd = min(ties[0] ^ ties[1])
        raise StateError(
            subject, found=f"a tie to {odd!r} in one of them alone", expected="the same ties in both", fix=_FIX
        )


def _storage(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else id(value)


def _describe(tensor: torch.Tensor) -> str:
    return f"{SHORT_NAMES.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)} on {tensor.device}"
