"""`intarsia verify`: whether a file computes what its own graph and its model compute."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from intarsia.cli.console import output_console, progress_reporter
from intarsia.cli.inputs import Against, File, Imports, Inputs, drawing_faults, load_program, read_call
from intarsia.cli.options import AsJson
from intarsia.cli.target import Target, load_target
from intarsia.errors import TargetError

if TYPE_CHECKING:
    import torch

_FIX = "Add --inputs FILE.safetensors, or --against TARGET, whose example inputs tell what may stand there."


def verify_file(
    file: File, *, against: Against = None, inputs: Inputs = None, imports: Imports = None, as_json: AsJson = False
) -> None:
    """Check that FILE computes what its graph and the model do.

    Several calls are made at the corners of the ranges of all sizes, with drawn inputs, and state goes on from call to
    call. The program must equal its eager graph and the retraced program to the bit, and the model within tolerances.
    Exit code 1 when something differs.
    """
    target = load_target(against) if against else None

    from intarsia import api

    program = load_program(file, imports)
    calls = [read_call(program, path) for path in inputs] if inputs else None
    with progress_reporter("verifying") as progress, drawing_faults(_FIX):
        result = api.verify(
            program,
            reference_of(target) if target else None,
            None if calls is None else [(call.args, call.kwargs) for call in calls],
            example=(target.args, target.kwargs) if target else None,
            progress=progress,
        )
    if target and not all(leaf.ok for leaf in result.leaves):
        _check_weights(str(against), target)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        output_console().print(str(result), soft_wrap=True)
    if not result.ok:
        raise typer.Exit(1)


def _check_weights(against: str, target: Target) -> None:
    """Refuse a factory whose model has other weights at every call: its file cannot be compared with it."""
    from intarsia.verification.bits import difference

    one, other = (reference_of(made).state_dict() for made in (target, load_target(against)))
    if all(name in other and not difference(one[name], other[name]) for name in one):
        return
    raise TargetError(
        f"target {against!r}",
        found="a model with other weights at every call",
        expected="the model that the file was made of",
        consequence="The two cannot be compared.",
        fix="Call torch.manual_seed(0) in the factory, or load weights there, and compile again.",
    )


def reference_of(target: Target) -> torch.nn.Module:
    """The model that a target returned, as something that can be called."""
    import torch

    model = target.model
    return model if isinstance(model, torch.nn.Module) else model.module(check_guards=False)
