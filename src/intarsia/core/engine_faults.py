"""What an engine does that a backend promises it does not: it fails without a word, or gives something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from intarsia.core.signature import SHORT_NAMES, EngineSignature
from intarsia.errors import EngineError, first_line, with_article


def failed(subject: str, backend: str, what: str, error: Exception) -> EngineError:
    """The error for an exception that no backend should let through.

    Args:
        subject: The engine.
        backend: Name of its backend.
        what: What failed: "a call", "loading".
        error: The exception.
    """
    return EngineError(
        subject,
        found=f"that {what} fails in the backend {backend!r} ({type(error).__name__}: {first_line(error)})",
        expected="a result",
        fix="Mend the backend, or compile with another one.",
    )


def check_outputs(subject: str, signature: EngineSignature, inputs: Sequence[torch.Tensor], outputs: Any) -> None:
    """Refuse what an engine gave where that is not what its signature says.

    Args:
        subject: The engine, for the message.
        signature: What it takes and gives.
        inputs: What it was given, which fits the signature.
        outputs: What it gave.

    Raises:
        EngineError: Names the first output that does not fit.
    """
    if not isinstance(outputs, list | tuple) or not all(isinstance(output, torch.Tensor) for output in outputs):
        kinds = sorted({type(output).__name__ for output in outputs}) if isinstance(outputs, list | tuple) else []
        found = f"{with_article(type(outputs).__name__)}{' of ' if kinds else ''}{', '.join(kinds)}"
        raise _other(subject, found, "a list of tensors")
    if len(outputs) != len(signature.outputs):
        raise _other(subject, f"{len(outputs)} outputs", f"{len(signature.outputs)}")
    shapes = signature.output_shapes([value.shape for value in inputs])
    device = inputs[0].device if inputs else torch.device("cpu")
    taken = {value.untyped_storage().data_ptr() for value in inputs if value.numel()}
    for i, (output, kind, shape) in enumerate(zip(outputs, signature.outputs, shapes, strict=True)):
        found, expected = _describe(output.dtype, output.shape, output.device), _describe(kind.dtype, shape, device)
        if found != expected:
            raise _other(subject, f"output {i} as {found}", expected)
        if not output.is_contiguous():
            raise _other(subject, f"output {i} with the strides {output.stride()}", "contiguous memory")
        if i not in signature.into and output.numel() and output.untyped_storage().data_ptr() in taken:
            raise _other(subject, f"output {i} in the memory of an input or of another output", "memory of its own")
        taken.add(output.untyped_storage().data_ptr())


def _describe(dtype: torch.dtype, shape: Sequence[Any], device: torch.device) -> str:
    return f"{SHORT_NAMES.get(dtype, dtype)}{list(shape)} on {device.type}"


def _other(subject: str, found: str, expected: str) -> EngineError:
    return EngineError(
        subject,
        found=found,
        expected=f"{expected}, as its signature and the contract of backends say",
        consequence="What reads it would compute something else.",
        fix="Mend the backend, or compile with another one.",
    )
