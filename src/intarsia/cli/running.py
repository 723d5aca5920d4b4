"""`intarsia run`: a program's outputs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.console import output_console, progress_reporter
from intarsia.cli.inputs import (
    Allow,
    Drawn,
    EngineForms,
    File,
    Imports,
    Inputs,
    MethodName,
    call_program,
    draw_calls,
    drawing_faults,
    load_program,
    outline_of,
    read_call,
)
from intarsia.cli.options import AsJson, Force
from intarsia.cli.output import check_output
from intarsia.cli.target import load_target
from intarsia.errors import ArgumentError, FormatError, with_article

if TYPE_CHECKING:
    from intarsia.cli.inputs import Callee
    from intarsia.verification import Call

_HEADINGS = ("type", "min", "max", "mean")


def run_file(
    file: File,
    *,
    method: MethodName = None,
    inputs: Inputs = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.safetensors", help="Write the outputs to this file.")
    ] = None,
    calls: Annotated[
        int, typer.Option(min=1, help="How many times to go through the inputs; state goes on from call to call.")
    ] = 1,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="TARGET",
            help="The target that FILE was made of: where FILE does not tell what an integer input is for, it is drawn "
            "from between the lowest and the highest integer of the target's example.",
        ),
    ] = None,
    imports: Imports = None,
    allow: Allow = None,
    engines: EngineForms = "verify",
    seed: Annotated[int, typer.Option(min=0, help="Seed of drawn inputs, and of random operators.")] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run FILE and show its outputs.

    Without --inputs they are drawn, every size in the middle of its range. The state in FILE stays as it is.
    """
    if output is not None:
        check_output(output, ".safetensors", force=force)

    if inputs and against:
        raise ArgumentError(
            "--against",
            found="--inputs beside it",
            expected="one of the two: with --inputs nothing is drawn",
            fix="Leave one of them out.",
        )
    target = load_target(against) if against else None
    program = load_program(file, imports, method, allow=allow, engines=engines)
    target = target and target.of_method(f"target {against!r}", method)
    if inputs:
        drawn = Drawn([read_call(program, path) for path in inputs] * calls, findings=())
    else:
        with drawing_faults("Add --inputs FILE.safetensors, or --against TARGET, whose example inputs tell."):
            drawn = draw_calls(program, range(seed, seed + calls), target)
    results = _run(program, drawn.calls, seed)
    if output is not None:
        _save(output, results)
    facts = {
        "inputs": [str(path) for path in inputs] if inputs else None,
        "seed": seed,
        "findings": drawn.findings,
        "calls": [{name: _summary(value) for name, value in result.items()} for result in results],
        "saved": None if output is None else str(output),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def _run(program: Callee, made: list[Call], seed: int) -> list[dict[str, Any]]:
    """What each call returned, by name, copied: the next call may write it."""
    import torch

    from intarsia._torch import pytree
    from intarsia.report.program import describe_program
    from intarsia.verification import snapshot

    names = [leaf.name for leaf in describe_program(outline_of(program)).outputs]
    results = []
    torch.manual_seed(seed)
    with progress_reporter("running") as progress:
        for index, call in enumerate(made):
            progress(index, len(made), f"call {index + 1}")
            args, kwargs = snapshot((call.args, dict(call.kwargs)))
            leaves = snapshot(pytree.tree_leaves(call_program(program, args, kwargs)))
            results.append(dict(zip(names, leaves, strict=True)))
        progress(len(made), len(made), "")
    return results


def _save(output: Path, results: list[dict[str, Any]]) -> None:
    import torch

    from intarsia.formats.tensors.named import NamedTensors, write_tensors

    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for index, result in enumerate(results):
        for leaf, value in result.items():
            name = leaf if len(results) == 1 else f"{index + 1}/{leaf}"
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            else:
                metadata[name] = _to_json(leaf, value)
    write_tensors(output, NamedTensors(tensors, metadata))


def _to_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError as error:
        raise FormatError(
            f"output {name!r}",
            found=with_article(type(value).__name__),
            expected="a tensor or a JSON value",
            fix="Leave the output file out.",
        ) from error


def _summary(value: Any) -> dict[str, Any]:
    """Facts about a leaf that are JSON values: type and range of a tensor, or what else it is."""
    import torch

    from intarsia.report.program import value_type

    if not isinstance(value, torch.Tensor):
        return {"value": value if isinstance(value, int | float | str | None) else repr(value)}
    facts: dict[str, Any] = {"type": value_type(value)}
    if value.numel() and not value.dtype.is_complex:
        exact = value.to(torch.float64 if value.dtype.is_floating_point else torch.int64)
        facts |= {"min": _number(exact.min()), "max": _number(exact.max()), "mean": _number(exact.double().mean())}
    return facts


def _number(value: Any) -> int | float | str:
    number: int | float = value.item()
    return number if math.isfinite(number) else str(number)  # JSON has no NaN and no infinity


def _print(facts: Mapping[str, Any]) -> None:
    from intarsia.report.drawing import plain_table

    console = output_console()
    source = ", ".join(facts["inputs"] or [f"drawn with seed {facts['seed']}"])
    console.print(f"inputs: {source}", soft_wrap=True)
    for finding in facts["findings"]:
        console.print(f"note: {finding}", soft_wrap=True)
    for index, outputs in enumerate(facts["calls"]):
        rows = [(name, *_cells(leaf)) for name, leaf in outputs.items()]
        heading = "output" if len(facts["calls"]) == 1 else f"output of call {index + 1}"
        console.print(plain_table((heading, *_HEADINGS), rows))
    if facts["saved"]:
        console.print(f"saved {facts['saved']} ({Path(facts['saved']).stat().st_size:,} bytes)", soft_wrap=True)


def _cells(leaf: Mapping[str, Any]) -> tuple[str, ...]:
    if "value" in leaf:
        return repr(leaf["value"]), "", "", ""
    cells = (leaf.get(heading, "") for heading in _HEADINGS)
    return tuple(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells)
