"""`intarsia compile`: from a factory to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from intarsia.cli.console import output_console, progress_reporter
from intarsia.cli.target import load_target
from intarsia.errors import FormatError


def compile_target(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="package.module:factory or file.py:factory; "
            "the factory returns model, args, kwargs and dynamic_shapes.",
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
        typer.Option(metavar="KEY=VALUE", help="Option of the backend; the value is JSON or text; may be repeated."),
    ] = None,
    no_fallback: Annotated[
        bool,
        typer.Option("--no-fallback", help="Fail when a partition cannot be built, instead of leaving it in torch."),
    ] = False,
) -> None:
    """Compile the model that TARGET makes, and save it.

    Prints where each operator runs, and why.
    """
    options = dict(_option(text) for text in option or ())
    _check_output(output)
    made = load_target(target)

    from intarsia import api
    from intarsia.report.coverage import draw_coverage

    with progress_reporter("building engines") as progress:
        hybrid = api.compile(
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
    api.save(hybrid, output)
    output_console().print(draw_coverage(api.coverage(hybrid)))
    output_console().print(f"saved {output} ({output.stat().st_size:,} bytes)")


def _option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not (key and separator):
        message = f"{text!r} is not of the form KEY=VALUE"
        raise typer.BadParameter(message, param_hint="--option")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _check_output(output: Path) -> None:
    # Before anything is built: a build takes long, and a mistyped path is found at once.
    if output.is_dir():
        raise FormatError(
            f"file {str(output)!r}", found="a folder", expected="a file name", fix="Add a file name to the path."
        )
    if output.suffix != ".pt2":
        raise FormatError(
            f"file {str(output)!r}",
            found=f"the ending {output.suffix!r}",
            expected="'.pt2'",
            fix="Name the file *.pt2.",
        )
    if not output.parent.is_dir():
        raise FormatError(
            f"file {str(output)!r}",
            found=f"no folder {str(output.parent)!r}",
            expected="a folder that exists",
            fix="Make the folder, or write elsewhere.",
        )
