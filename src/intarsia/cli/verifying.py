"""`intarsia verify`: whether a file computes what its own graph and its model compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from intarsia.cli.console import output_console, progress_reporter
from intarsia.cli.inputs import Against, Allow, EngineForms, File, Imports, Inputs, drawing_faults, load_file, read_call
from intarsia.cli.options import AsJson
from intarsia.cli.target import Target, load_target
from intarsia.errors import ArgumentError, TargetError

if TYPE_CHECKING:
    import torch

    from intarsia.cli.inputs import Callee
    from intarsia.runtime.method_set import MethodSet
    from intarsia.verification import Leaf, MethodsVerification, Verification

_FIX = "Add --inputs FILE.safetensors, or --against TARGET, whose example inputs tell what may stand there."
_METHODS_FIX = "Add --against TARGET, whose example inputs tell what may stand there."


def verify_file(
    file: File,
    *,
    against: Against = None,
    inputs: Inputs = None,
    imports: Imports = None,
    allow: Allow = None,
    engines: EngineForms = "verify",
    as_json: AsJson = False,
) -> None:
    """Check that FILE computes what its graph and the model do.

    Several calls are made at the corners of the ranges of all sizes, with drawn inputs, and state goes on from call to
    call. The program must equal its eager graph and the retraced program to the bit, and the model within tolerances. A
    file without a graph (compiled code, a .pte) is compared with the model and with its test vectors.
    Of several methods, each is verified alone; then all are called in turn on one state.
    Exit code 1 when something differs.
    """
    target = load_target(against) if against else None

    from intarsia import api
    from intarsia.runtime.method_set import MethodSet

    loaded = load_file(file, imports, allow=allow, engines=engines)
    several = isinstance(loaded, MethodSet)
    if isinstance(loaded, MethodSet):
        _refuse_inputs(loaded, inputs)
        given: dict[str, Any] = _methods_arguments(target)
    else:
        target = target and target.of_method(f"target {against!r}", None)
        given = _arguments(loaded, target, inputs)
    with progress_reporter("verifying") as progress, drawing_faults(_METHODS_FIX if several else _FIX):
        result = api.verify(loaded, progress=progress, **given)
    if target and not all(leaf.ok for leaf in _leaves(result)):
        _check_weights(str(against), target)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        console = output_console()
        console.print(str(result), soft_wrap=not console.is_terminal)
    if not result.ok:
        raise typer.Exit(1)


def _arguments(program: Callee, target: Target | None, inputs: list[Path] | None) -> dict[str, Any]:
    """The arguments of `intarsia.verify` for one program."""
    calls = [read_call(program, path) for path in inputs] if inputs else None
    return {
        "reference": reference_of(target.model) if target else None,
        "inputs": None if calls is None else [(call.args, call.kwargs) for call in calls],
        "example": (target.args, target.kwargs) if target else None,
    }


def _methods_arguments(target: Target | None) -> dict[str, Any]:
    """The arguments of `intarsia.verify` for several methods: entry points, or one model that has the methods."""
    if target is None:
        return {}
    if not isinstance(target.model, Mapping):
        return {"reference": reference_of(target.model)}
    made = {name: target.of_method("target", name) for name in target.model}
    return {
        "reference": {name: reference_of(one.model) for name, one in made.items()},
        "example": {name: (one.args, one.kwargs) for name, one in made.items()},
    }


def _refuse_inputs(methods: MethodSet[Any], inputs: list[Path] | None) -> None:
    if inputs:
        raise ArgumentError(
            "--inputs",
            found=f"a file of the methods {', '.join(methods.methods)}",
            expected="a file of one program, whose inputs these are",
            fix="Leave --inputs out, or call intarsia.verify(path, inputs={name: [(args, kwargs), ...], ...}).",
        )


def _leaves(result: Verification | MethodsVerification) -> list[Leaf]:
    from intarsia.verification import Verification

    if isinstance(result, Verification):
        return list(result.leaves)
    return [leaf for found in (*result.methods.values(), result.in_turn) for leaf in found.leaves]


def _check_weights(against: str, target: Target) -> None:
    """Refuse a factory whose model has other weights at every call: its file cannot be compared with it."""
    from intarsia.verification.bits import difference

    one, other = (_weights(made) for made in (target, load_target(against)))
    if all(name in other and not difference(one[name], other[name]) for name in one):
        return
    raise TargetError(
        f"target {against!r}",
        found="a model with other weights at every call",
        expected="the model that the file was made of",
        consequence="The two cannot be compared.",
        fix="Call torch.manual_seed(0) in the factory, or load weights there, and compile again.",
    )


def _weights(target: Target) -> dict[str, torch.Tensor]:
    """Weights and buffers of a target, by method and name."""
    from intarsia.core.entry import owner_of

    models = target.model if isinstance(target.model, Mapping) else {"": target.model}
    owners = {method: owner_of(reference_of(model)) for method, model in models.items()}
    return {f"{method}.{name}": value for method, one in owners.items() for name, value in one.state_dict().items()}


def reference_of(model: Any) -> Any:
    """The model that a target returned, as something that can be called."""
    import torch

    return model.module(check_guards=False) if isinstance(model, torch.export.ExportedProgram) else model
