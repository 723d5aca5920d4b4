"""`intarsia compile`: from a factory to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.console import activity, output_console, print_heading, progress_reporter
from intarsia.cli.options import AsJson, Force
from intarsia.cli.output import check_output
from intarsia.cli.recording import target_calls
from intarsia.cli.target import load_target
from intarsia.errors import ArgumentError

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
    backend: Annotated[str, typer.Option(help="What builds the engines; `intarsia doctor` lists them.")] = "openvino",
    torch_executed_op: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATOR", help="Leave this operator in torch (aten.softmax.int); may be repeated."),
    ] = None,
    min_block_size: Annotated[int, typer.Option(min=1, help="Fewest operators that make an engine.")] = 1,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the backend; the value is JSON or text; may be repeated."),
    ] = None,
    no_fallback: Annotated[
        bool,
        typer.Option("--no-fallback", help="Fail when a partition cannot be built, instead of leaving it in torch."),
    ] = False,
    test_vectors: Annotated[
        bool,
        typer.Option("--test-vectors", help="Record the answers to TARGET's example inputs, for `intarsia verify`."),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compile the model that TARGET makes, and save it.

    Prints where each operator runs, and why.
    """
    check_output(output, ".pt2", force=force)
    options = _read_options(option or ())

    from intarsia.core.registry import find_backend
    from intarsia.engines.build import check_options

    check_options(find_backend(backend), options)  # what is mistyped is told before the model is made
    made = load_target(target)

    from intarsia import api
    from intarsia.report.coverage import coverage_json, draw_coverage

    with progress_reporter("building engines", before="capturing and partitioning the model") as progress:
        hybrid: Any = api.compile(
            made.model,
            made.args,
            made.kwargs,
            dynamic_shapes=made.dynamic_shapes,
            backend=backend,
            torch_executed_ops=tuple(torch_executed_op or ()),
            min_block_size=min_block_size,
            fallback=not no_fallback,
            options=options,
            progress=progress,
        )
    with activity(f"saving {output}") as progress:
        api.save(hybrid, output, test_vectors=target_calls(made) if test_vectors else None, progress=progress)
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


def _read_options(texts: list[str] | tuple[()]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in texts:
        name, value = _read_option(text)
        if name in options:
            raise ArgumentError(
                f"--option {name}",
                found=f"two values, {options[name]!r} and {value!r}",
                expected="one",
                fix="Give the option once.",
            )
        options[name] = value
    return options


def _read_option(text: str) -> tuple[str, Any]:
    name, separator, value = (part.strip() for part in text.partition("="))
    if not (name and separator):
        raise ArgumentError(
            f"--option {text}",
            found="no name and value" if not separator else "no name",
            expected="NAME=VALUE",
            fix="Write the name of the option, an equals sign and the value.",
        )
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
