"""Refuse what a file without pickles cannot hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia._torch import FakeTensor, dtype_codes
from intarsia.errors import FormatError, StateError


def check_storable(program: object, subject: str) -> None:
    """Refuse a program that cannot be stored.

    Raises:
        FormatError: It is no exported program, or has no outputs, or a text among them; `subject` names the file.
        StateError: A state entry is no plain tensor, or has no value.
    """
    exported = checked_program(program)
    _check_state(exported)
    _check_outputs(exported, subject)


def checked_program(program: object) -> torch.export.ExportedProgram:
    """The program, where it is one.

    Raises:
        FormatError: It is something else.
    """
    if isinstance(program, torch.export.ExportedProgram):
        return program
    raise FormatError(
        "program",
        found=f"an object of type {type(program).__name__!r}",
        expected="a hybrid or a torch.export.ExportedProgram",
        fix="Save what intarsia.compile or intarsia.export returned; of a file that holds no graph, copy the file.",
    )


def _check_state(program: torch.export.ExportedProgram) -> None:
    for name, value in (*program.state_dict.items(), *program.constants.items()):
        found = _unstorable(value)
        if found:
            raise StateError(
                f"state {name!r}",
                found=found,
                expected="a plain tensor",
                consequence="A file without pickles cannot hold it.",
                fix="Replace it by a dense torch.Tensor before the export.",
            )
    missing = [
        str(spec.target)
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT
        and spec.target is not None
        and spec.target not in program.state_dict
        and spec.target not in program.constants
    ]
    if missing:
        raise StateError(
            f"state {missing[0]!r}", found="no value", expected="a tensor in the program", fix="Export the model again."
        )


def _check_outputs(program: torch.export.ExportedProgram, subject: str) -> None:
    """Refuse no outputs, which torch cannot write, and a text among them: torch writes it and then cannot read it."""
    outputs: Any = program.graph.output_node().args[0]
    if not outputs:
        raise FormatError(
            subject,
            found="a program that returns and writes nothing",
            expected="at least one output",
            fix="Let the model return a tensor.",
        )
    texts = [value for value in outputs if isinstance(value, str)]
    if texts:
        raise FormatError(
            subject,
            found=f"the text {texts[0]!r} among the outputs",
            expected="tensors, numbers and None",
            fix="Let the model return tensors only.",
        )


def _unstorable(value: Any) -> str:
    """Why a state entry cannot be stored as raw bytes, or nothing."""
    if not isinstance(value, torch.Tensor):
        return f"an object of type {type(value).__name__}"
    if isinstance(value, FakeTensor) or value.is_meta:
        return "a tensor without memory"
    if type(value.data) is not torch.Tensor:
        return f"a tensor subclass {type(value.data).__name__}"
    if value.layout is not torch.strided or value.is_quantized:
        return f"a tensor of layout {value.layout}" if not value.is_quantized else "a quantized tensor"
    if value.dtype not in dtype_codes():
        return f"a tensor of {value.dtype}"
    if value.is_conj() or value.is_neg():
        return "a lazily conjugated or negated tensor"
    return ""
