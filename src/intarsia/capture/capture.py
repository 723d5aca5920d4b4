"""Capture a model as an exported program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from intarsia._torch import run_decompositions
from intarsia.capture.assigned_buffers import kept_assignments
from intarsia.capture.assignments import recorded_assignments, refuse_lost
from intarsia.capture.entry import read_entry
from intarsia.capture.faults import explain
from intarsia.capture.quiet import quiet_on_failure
from intarsia.capture.shared_state import merge_shared_state, shared_written_state
from intarsia.core.entry import common_root, owner_of
from intarsia.core.examples import Examples, distinct
from intarsia.errors import CaptureError

EntryPoint: TypeAlias = torch.nn.Module | Callable[..., Any] | torch.export.ExportedProgram
"""A module, a bound method of one, or a program that was exported already."""


def capture(
    model: EntryPoint,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    method: str | None = None,
    root: torch.nn.Module | None = None,
) -> torch.export.ExportedProgram:
    """Capture a model with `torch.export` (non-strict), as a functional graph of ATen operators.

    Operators that backends want whole (`linear`, `scaled_dot_product_attention`, `layer_norm`, `gelu`, ...) stay
    whole. Nothing is recorded for autograd. The model is left as it is, its mode too: a model in training mode is
    captured in training mode, with its dropout. Call `model.eval()` first if that is not wanted.

    Args:
        model: The model, a bound method of it, or a program that was exported already.
        args: Example positional inputs; the shapes that `dynamic_shapes` does not free are fixed by them.
        kwargs: Example keyword inputs.
        dynamic_shapes: As `torch.export.export` takes it.
        method: Name of the method, where the model is one of several.
        root: Module whose names the state shall have, where the model is a part of it.

    Returns:
        A new program; its state is the model's own tensors, not copies.

    Raises:
        CaptureError: `model` is of another type, inputs are missing or given beside an exported program, the
            model returns the named tuple of an operator, or assigns a tensor that it reads and that is no buffer, or
            torch cannot capture the model.

    Example:
        >>> program = capture(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        ['aten.linear.default']
    """
    return _capture(model, Examples(args, kwargs, dynamic_shapes), method, root).program


def capture_methods(
    models: Mapping[str, EntryPoint], examples: Mapping[str, Examples]
) -> dict[str, torch.export.ExportedProgram]:
    """Capture several entry points of one model, as `capture` does each.

    Where one of their modules holds all others, state has the names that it has there: one tensor, one name.

    Args:
        models: Modules, bound methods or exported programs, by the names of the methods that they are.
        examples: Example inputs of each.

    Raises:
        CaptureError: As for `capture`; names the method.
    """
    owners = [
        owner_of(model, name) for name, model in models.items() if not isinstance(model, torch.export.ExportedProgram)
    ]
    root = common_root(owners)
    captured = {name: _capture(model, examples[name], name, root) for name, model in models.items()}
    programs = {name: one.program for name, one in captured.items()}
    for one in captured.values():
        for program in programs.values():
            refuse_lost(one.subject, one.assigned, program)
    return programs


class _Captured(NamedTuple):
    """A captured program, its entry point for messages, and the tensors that it assigns and that are no buffers."""

    program: torch.export.ExportedProgram
    subject: str
    assigned: Mapping[str, torch.Tensor]


def _capture(model: EntryPoint, examples: Examples, method: str | None, root: torch.nn.Module | None) -> _Captured:
    args, kwargs, dynamic_shapes = examples
    if isinstance(model, torch.export.ExportedProgram):
        given = "exported program" + (f", method {method!r}" if method else "")
        _refuse_inputs(given, args, kwargs, dynamic_shapes)
        _refuse_results_of_operators(given, model)
        return _Captured(_decompose(model, given), given, {})
    subject, module, forward = read_entry(model, method, root)
    _check_types(subject, args, kwargs)
    _check_call(subject, forward, args or (), kwargs or {})
    args, kwargs = distinct((args or (), dict(kwargs or {})), (*module.parameters(), *module.buffers()))
    try:
        with (
            torch.no_grad(),
            quiet_on_failure(),
            recorded_assignments(module) as assigned,
            kept_assignments(subject, module),
        ):
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except CaptureError:
        raise
    except Exception as error:
        raise explain(subject, error) from error
    refuse_lost(subject, assigned, program)
    _refuse_results_of_operators(subject, program)
    return _Captured(_decompose(program, subject), subject, assigned)


def _decompose(program: torch.export.ExportedProgram, subject: str) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad(), quiet_on_failure():
            return run_decompositions(merge_shared_state(program))
    except Exception as error:
        shared = shared_written_state(program)
        raise (_shared(subject, *shared) if shared else explain(subject, error)) from error


def _refuse_results_of_operators(subject: str, program: torch.export.ExportedProgram) -> None:
    """Refuse an output that is the named tuple of an operator, which no file can name."""
    pending = [spec for spec in [program.call_spec.out_spec] if spec is not None]
    for spec in pending:
        pending += spec.children()
        kind = spec.type
        if getattr(kind, "__module__", "") == "torch.return_types":
            raise CaptureError(
                subject,
                found=f"the named tuple that {kind.__name__} returns among the outputs",
                expected="outputs in tuples, lists, dicts or registered dataclasses",
                consequence="A file cannot hold its type.",
                fix=f"Return a plain tuple: tuple(x.{kind.__name__}(...)).",
            )


def _shared(subject: str, one: str, other: str) -> CaptureError:
    return CaptureError(
        f"{subject}, state {one!r} and {other!r}",
        found="parts of one memory, which the model writes",
        expected="that each written tensor has memory of its own",
        fix="Register the whole tensor as one buffer and take the parts of it in forward, or clone each part.",
    )


def _refuse_inputs(subject: str, args: Any, kwargs: Any, dynamic_shapes: Any) -> None:
    given = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
    names = [name for name, value in given.items() if value]
    if names:
        raise CaptureError(
            subject,
            found=f"{', '.join(names)} beside it",
            expected="the program alone, which fixes its inputs and their shapes already",
            fix=f"Leave out {', '.join(names)}, or pass the nn.Module instead.",
        )


def _check_types(subject: str, args: Any, kwargs: Any) -> None:
    if args is None and kwargs is None:
        raise CaptureError(
            subject,
            found="no example inputs",
            expected="args, kwargs or both",
            fix="Pass example inputs as a tuple: args=(x,), or args=() for a model without inputs.",
        )
    if not isinstance(args, (tuple, type(None))):
        raise CaptureError(
            f"{subject}, args",
            found=f"an object of type {type(args).__name__!r}",
            expected="a tuple of example positional inputs",
            fix="Write args=(x,), with the comma.",
        )
    if not isinstance(kwargs, (Mapping, type(None))):
        raise CaptureError(
            f"{subject}, kwargs",
            found=f"an object of type {type(kwargs).__name__!r}",
            expected="a mapping from names to example keyword inputs",
            fix='Write kwargs={"x": x}.',
        )


def _check_call(subject: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse examples that do not fit the parameters of the model's forward, or of the method."""
    name = getattr(forward, "__name__", "forward")
    try:
        signature = inspect.signature(forward)
    except ValueError as error:
        raise CaptureError(
            subject,
            found=f"a {name} that does not tell its arguments",
            expected="one that is written in Python",
            fix="Wrap the model in an nn.Module whose forward calls it.",
        ) from error
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"{subject}, example inputs",
            found=f"a call that does not fit ({error})",
            expected=f"the arguments of {name}{signature}",
            fix=f"Pass args and kwargs such that model{'' if name == 'forward' else f'.{name}'}(*args, **kwargs) runs.",
        ) from error
