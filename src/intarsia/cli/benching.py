"""`intarsia bench`: how long a file's calls take, against eager and `torch.compile`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.console import output_console, progress_reporter
from intarsia.cli.inputs import (
    Against,
    Allow,
    EngineForms,
    File,
    Imports,
    MethodName,
    call_program,
    draw_calls,
    drawing_faults,
    load_program,
    read_call,
)
from intarsia.cli.options import AsJson
from intarsia.cli.target import load_target
from intarsia.cli.verifying import reference_of
from intarsia.errors import ArgumentError, ConventionError, first_line

if TYPE_CHECKING:
    import torch

    from intarsia.measurement import Measurement, Spread
    from intarsia.verification import Call

_COMPILED = "torch.compile"
_WILD = 3  # how many times the lower quartile the upper one is, from where on the medians tell little


def bench_file(
    file: File,
    *,
    method: MethodName = None,
    against: Against = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(metavar="IN.safetensors", help="Inputs of the call, by the names that `intarsia inspect` shows."),
    ] = None,
    calls: Annotated[int, typer.Option(min=2, help="How often each side is timed.")] = 50,
    imports: Imports = None,
    allow: Allow = None,
    engines: EngineForms = "verify",
    as_json: AsJson = False,
) -> None:
    """Time the calls of FILE, and of the model if it is given.

    The model of --against is timed in eager mode and under torch.compile. All sides are called in turns, in this one
    process, with the same inputs: those of --inputs, else those that the target returns, else drawn ones, every size in
    the middle of its range. Each call starts from the first state, and the state in FILE stays as it is.
    """
    if inputs and len(inputs) > 1:
        raise ArgumentError(
            "--inputs", found=f"{len(inputs)} files", expected="one, for one call is timed", fix="Give the option once."
        )
    target = load_target(against) if against else None

    import torch

    from intarsia.core.entry import owner_of
    from intarsia.measurement import measure
    from intarsia.verification import Call

    begin = time.perf_counter()
    program = load_program(file, imports, method, allow=allow, engines=engines)
    load_s = time.perf_counter() - begin
    target = target and target.of_method(f"target {against!r}", method)
    if inputs:
        made = read_call(program, inputs[0])
    elif target:
        made = Call(target.args, target.kwargs)
    else:
        with drawing_faults("Add --inputs FILE.safetensors, or --against TARGET, whose example inputs are used."):
            (made,) = draw_calls(program, [0]).calls
    sides = {file.name: _side(made, lambda *args, **kwargs: call_program(program, args, kwargs))}
    prepare: dict[str, Callable[[], None]] = {file.name: program.reset}
    if target:
        model = reference_of(target.model)
        sides |= {"eager": _side(made, _reference(model)), _COMPILED: _side(made, torch.compile(model))}
        prepare |= dict.fromkeys(("eager", _COMPILED), _reset_of(owner_of(model)))
    try:
        with progress_reporter("timing") as progress, torch.no_grad():
            before = prepare if program.writes else {}
            result = measure(sides, calls, prepare=before, may_fail={_COMPILED}, progress=progress)
    except ArgumentError as error:
        if inputs or target is None:
            raise
        fix = "Its example inputs are used: name the target that the file was made of, or add --inputs."
        raise ArgumentError(
            f"target {against!r}, {error.subject}", found=error.found, expected=error.expected, fix=fix
        ) from error
    if as_json:
        typer.echo(json.dumps({"load_s": load_s, "threads": torch.get_num_threads(), **result.to_json()}, indent=2))
    else:
        _print(result, load_s)


def _side(made: Call, call: Callable[..., Any]) -> Callable[[], Any]:
    """One call with a copy of the inputs, which is the side's own: a call may write them."""
    from intarsia.verification import snapshot

    args, kwargs = snapshot((made.args, dict(made.kwargs)))
    return lambda: call(*args, **kwargs)


def _reset_of(model: torch.nn.Module) -> Callable[[], None]:
    """Gives the model's buffers back the values that they have now."""
    first = [(buffer, buffer.clone()) for buffer in model.buffers()]

    def reset() -> None:
        for buffer, value in first:
            buffer.copy_(value)

    return reset


def _reference(model: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return model(*args, **kwargs)
        except Exception as error:
            raise ConventionError(
                "the reference",
                found=f"a model that raises {type(error).__name__} ({first_line(error)})",
                expected="a model that takes the program's inputs",
                fix="Name the target that the file was made of, or inputs that suit both.",
            ) from error

    return call


def _print(result: Measurement, load_s: float) -> None:
    import torch

    from intarsia.report.drawing import plain_table

    console = output_console()
    console.print(f"loaded in {_time(load_s)}; torch uses {torch.get_num_threads()} threads")
    columns = ("side", "first call", "steady call", "over the file's")
    rows = [
        (row.name, _time(row.first_call_s), _spread(row.steady_s, _time), _spread(row.ratio, _ratio))
        for row in result.rows
    ]
    shown = len(columns) if len(rows) > 1 else -1  # a file alone is compared with nothing
    console.print(plain_table(columns[:shown], [row[:shown] for row in rows]))
    for row in result.rows:
        if row.fault:
            console.print(f"{row.name} does not work here: {row.fault}", soft_wrap=True)
    for line in _legend(result):
        console.print(line, soft_wrap=not console.is_terminal)
    if any(row.steady_s and row.steady_s.upper > _WILD * row.steady_s.lower for row in result.rows):
        console.print(
            "Quartiles lie far apart: other work takes the cores, or torch's idle threads do. "
            "Try OMP_WAIT_POLICY=PASSIVE in the environment.",
            soft_wrap=not console.is_terminal,
        )


def _legend(result: Measurement) -> Iterator[str]:
    from intarsia.measurement import PAUSE_S

    yield (
        f"{result.rounds} rounds, after the first calls and {result.warm_up} rounds of warm-up: medians and, in "
        "brackets, the quartiles, between which half of the values lie."
    )
    yield f"In each round the sides take turns; a turn is a pause of {_time(PAUSE_S)}, an untimed call and a timed one."
    if len(result.rows) > 1:
        yield (
            "The last column is the time of a call over that of the file in the same round: 2 takes twice as long as "
            "the file. Its median is that of these ratios, not the ratio of the medians."
        )


def _spread(spread: Spread | None, text: Callable[[float], str]) -> str:
    return "" if spread is None else f"{text(spread.median)} ({text(spread.lower)} to {text(spread.upper)})"


def _ratio(ratio: float) -> str:
    """A ratio with three significant digits, however small."""
    return f"{ratio:.0f}" if ratio >= 99.5 else f"{ratio:#.3g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
