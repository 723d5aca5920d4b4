"""`intarsia compile`: from a factory to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.console import activity, output_console, print_heading, progress_reporter
from intarsia.cli.options import AsJson, FileFormat, Force
from intarsia.cli.output import check_output
from intarsia.cli.recording import target_calls
from intarsia.cli.target import load_target
from intarsia.cli.wanted import read_backends, read_options

if TYPE_CHECKING:
    from intarsia.core.coverage import Coverage


def compile_target(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="package.module:factory or file.py:factory; "
            "the factory returns model, args, kwargs and dynamic_shapes, or mappings of these for several methods.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, for instance m.pt2.")],
    *,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[WHAT=]NAME",
            help="What builds the engines (openvino; `intarsia doctor` lists them), for all or for an operator or "
            "module path (encoder.layer.0=torch); repeated, in the order in which they are wanted.",
        ),
    ] = None,
    torch_executed_op: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATOR", help="Leave this operator in torch (aten.softmax.int); may be repeated."),
    ] = None,
    min_block_size: Annotated[int, typer.Option(min=1, help="Fewest operators that make an engine.")] = 1,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[BACKEND:]NAME=VALUE",
            help="Option of the backend, of several with its name; the value is JSON or text; may be repeated.",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cut the model as this plan says; --backend and the like are left out then."),
    ] = None,
    write_plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write where each operator runs, for --plan; for instance plan.json."),
    ] = None,
    no_fallback: Annotated[
        bool,
        typer.Option("--no-fallback", help="Fail when a partition cannot be built, instead of leaving it in torch."),
    ] = False,
    test_vectors: Annotated[
        bool,
        typer.Option("--test-vectors", help="Record the answers to TARGET's example inputs, for `intarsia verify`."),
    ] = False,
    format: FileFormat = "pt2",  # noqa: A002 - the word of `intarsia.save`
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compile the model that TARGET makes, and save it.

    Prints where each operator runs, and why.
    """
    check_output(output, ".pt2", force=force)
    if write_plan is not None:
        check_output(write_plan, ".json", force=force)
    wanted: dict[str, Any] = {
        "torch_executed_ops": tuple(torch_executed_op or ()),
        "min_block_size": min_block_size,
        "plan": plan,
        **({"backend": read_backends(backend)} if backend else {}),
    }

    from intarsia import api
    from intarsia.api.wanted import read_wanted
    from intarsia.formats.replacement import replacing
    from intarsia.report.coverage import coverage_json, draw_coverage

    read = read_wanted(**wanted)  # what is mistyped is told before the model is made
    options = read_options(option or (), read.backends)
    read.read_options(options)
    made = load_target(target)

    with progress_reporter("building engines", before="capturing and partitioning the model") as progress:
        hybrid: Any = api.compile(
            made.model,
            made.args,
            made.kwargs,
            dynamic_shapes=made.dynamic_shapes,
            fallback=not no_fallback,
            options=options,
            progress=progress,
            **wanted,
        )
    if write_plan is not None:
        with replacing(write_plan) as file:
            file.write_text(str(api.plan(hybrid)), encoding="utf-8")
    with activity(f"saving {output}") as progress:
        calls = target_calls(made) if test_vectors else None
        api.save(hybrid, output, format=format, test_vectors=calls, progress=progress)
    several = isinstance(made.model, Mapping)
    hybrids, models = (hybrid, made.model) if several else ({"": hybrid}, {"": made.model})
    coverages = {name: api.coverage(one) for name, one in hybrids.items()}
    notes = {name: _training_notes(models[name], coverage) for name, coverage in coverages.items()}
    size_bytes = output.stat().st_size
    if as_json:
        drawn = {name: coverage_json(coverage, notes=notes[name]) for name, coverage in coverages.items()}
        facts = {"methods": drawn} if several else drawn[""]
        typer.echo(json.dumps({"file": str(output), "size_bytes": size_bytes, **facts}, indent=2))
        return
    for name, coverage in coverages.items():
        print_heading(name)
        output_console().print(draw_coverage(coverage, notes=notes[name]))
    output_console().print(f"saved {output} ({size_bytes:,} bytes)", soft_wrap=True)


def _training_notes(model: Any, coverage: Coverage) -> list[str]:
    """What to say of a model whose mode makes a difference: training mode, with dropout or batch statistics."""
    differs = any("dropout" in p.operator or "batch_norm_legit_functional" in p.operator for p in coverage.placements)
    if not (differs and getattr(getattr(model, "__self__", model), "training", False)):
        return []
    return ["The model was captured in training mode, with its dropout and batch statistics: call model.eval() first."]
