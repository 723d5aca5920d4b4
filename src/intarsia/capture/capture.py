"""Capture a model as an exported program."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from intarsia._torch import run_decompositions
from intarsia.capture.faults import explain
from intarsia.capture.quiet import quiet_on_failure
from intarsia.capture.shared_state import merge_shared_state, shared_written_state
from intarsia.core.examples import distinct
from intarsia.errors import CaptureError


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
    _check_call(subject, model, args or (), kwargs or {})
    args, kwargs = distinct((args or (), dict(kwargs or {})), (*model.parameters(), *model.buffers()))
    try:
        with torch.no_grad(), quiet_on_failure():
            program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise explain(subject, error) from error
    return _decompose(program, subject)


def _decompose(program: torch.export.ExportedProgram, subject: str) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad(), quiet_on_failure():
            return run_decompositions(merge_shared_state(program))
    except Exception as error:
        shared = shared_written_state(program)
        raise (_shared(subject, *shared) if shared else explain(subject, error)) from error


def _shared(subject: str, one: str, other: str) -> CaptureError:
    return CaptureError(
        f"{subject}, state {one!r} and {other!r}",
        found="parts of one memory, which the model writes",
        expected="that each written tensor has memory of its own",
        fix="Register the whole tensor as one buffer and take the parts of it in forward, or clone each part.",
    )


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


def _check_call(subject: str, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse examples that do not fit the parameters of the model's forward."""
    try:
        signature = inspect.signature(model.forward)
    except ValueError as error:
        raise CaptureError(
            subject,
            found="a forward that does not tell its arguments",
            expected="one that is written in Python",
            fix="Wrap the model in an nn.Module whose forward calls it.",
        ) from error
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"{subject}, example inputs",
            found=f"a call that does not fit ({error})",
            expected=f"the arguments of forward{signature}",
            fix="Pass args and kwargs such that model(*args, **kwargs) runs.",
        ) from error
