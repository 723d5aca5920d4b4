"""Capture a model as an exported program."""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sympy
import torch

from intarsia._torch import run_decompositions
from intarsia.capture.quiet import quiet_on_failure
from intarsia.errors import CaptureError

_LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(sympy.__file__).parent),
    str(Path(__file__).parents[1]),
    contextlib.__file__,
    functools.__file__,
)


def capture(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """Capture a model with `torch.export` (non-strict), as a functional graph of ATen operators.

    Operators that backends want whole (`linear`, `scaled_dot_product_attention`, `layer_norm`, `gelu`, ...) stay
    whole. Nothing is recorded for autograd. The model is left as it is, its mode too: a model in training mode is
    captured in training mode, with its dropout. Call `model.eval()` first if that is not wanted.

    Args:
        model: The model, or a program that was exported already.
        args: Example positional inputs; the shapes that `dynamic_shapes` does not free are fixed by them.
        kwargs: Example keyword inputs.
        dynamic_shapes: As `torch.export.export` takes it.

    Returns:
        A new program; its state is the model's own tensors, not copies.

    Raises:
        CaptureError: `model` is of another type, inputs are missing or given beside an exported program, or
            torch cannot capture the model.

    Example:
        >>> program = capture(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        ['aten.linear.default']
    """
    if isinstance(model, torch.export.ExportedProgram):
        _refuse_inputs(args, kwargs, dynamic_shapes)
        return _decompose(model, f"exported program {model.graph_module.__class__.__name__!r}")
    _check_types(model, args, kwargs)
    subject = f"model {type(model).__name__!r}"
    try:
        with torch.no_grad(), quiet_on_failure():
            program = torch.export.export(
                model, args or (), None if kwargs is None else dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:
        raise _explain(subject, error) from error
    return _decompose(program, subject)


def _decompose(program: torch.export.ExportedProgram, subject: str) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad():
            return run_decompositions(program)
    except Exception as error:
        raise _explain(subject, error) from error


def _refuse_inputs(args: Any, kwargs: Any, dynamic_shapes: Any) -> None:
    given = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
    names = [name for name, value in given.items() if value]
    if names:
        raise CaptureError(
            "exported program",
            found=f"{', '.join(names)} beside it",
            expected="the program alone, which fixes its inputs and their shapes already",
            fix=f"Leave out {', '.join(names)}, or pass the nn.Module instead.",
        )


def _check_types(model: Any, args: Any, kwargs: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(
            "model",
            found=f"an object of type {type(model).__name__!r}",
            expected="a torch.nn.Module or a torch.export.ExportedProgram",
            fix="Wrap a plain function in an nn.Module whose forward calls it.",
        )
    if args is None and kwargs is None:
        raise CaptureError(
            f"model {type(model).__name__!r}",
            found="no example inputs",
            expected="args, kwargs or both",
            fix="Pass example inputs as a tuple: args=(x,), or args=() for a model without inputs.",
        )
    if not isinstance(args, (tuple, type(None))):
        raise CaptureError(
            "args",
            found=f"an object of type {type(args).__name__!r}",
            expected="a tuple of example positional inputs",
            fix="Write args=(x,), with the comma.",
        )
    if not isinstance(kwargs, (Mapping, type(None))):
        raise CaptureError(
            "kwargs",
            found=f"an object of type {type(kwargs).__name__!r}",
            expected="a mapping from names to example keyword inputs",
            fix='Write kwargs={"x": x}.',
        )


def _explain(subject: str, error: Exception) -> CaptureError:
    line = _first_line(error)
    place = _user_line(error)
    return CaptureError(
        subject,
        found=f"{line} (at {place})" if place else line,
        expected="a model that torch.export can capture",
        fix=_suggestion(error) or "Change the model at that place, or keep it out of the part that is compiled.",
    )


def _first_line(error: Exception) -> str:
    """The first line of torch's message that says something, without its final stop."""
    lines = [line.strip() for line in str(error).splitlines()]
    chosen = next((line for line in lines if line), type(error).__name__)
    if chosen.startswith("Constraints violated"):
        details = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        chosen = f"{chosen.split('!')[0]}: {details[0]}" if details else chosen
    chosen = re.split(r"\s*(?:For more information|Specializations unexpectedly|If this type holds)", chosen)[0]
    return chosen.rstrip(".:! ")


def _suggestion(error: Exception) -> str:
    """What torch proposes under "Suggested fixes", on one line, or what mends an output of an unknown class."""
    if "in output, which is not a known type" in str(error):
        return "Return tensors in tuples, lists, dicts, or dataclasses that torch.export.register_dataclass knows."
    match = re.search(r"Suggested fixes:\n((?:[ \t]+\S.*\n?)+)", str(error))
    if match is None:
        return ""
    proposals = [line.strip() for line in match.group(1).splitlines() if line.strip()]
    return f"torch suggests for dynamic_shapes: {'; '.join(proposals)}."


def _user_line(error: Exception) -> str:
    """File, line and text of the innermost frame outside the libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    if not outside:
        return ""
    return f"{outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}".removesuffix(": ")
