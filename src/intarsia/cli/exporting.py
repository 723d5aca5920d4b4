"""`intarsia export`: from a hybrid made elsewhere to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.console import activity, output_console
from intarsia.cli.inputs import Imports, load_program
from intarsia.cli.options import AsJson, Force
from intarsia.cli.output import check_output
from intarsia.cli.target import HybridTarget, load_hybrid

if TYPE_CHECKING:
    from intarsia.core.ledger import Ledger


def export_hybrid(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_TARGET",
            help="A .pt2 file, or package.module:factory or file.py:factory; the factory returns the hybrid, "
            "or hybrid, args, kwargs and dynamic_shapes where its graph has no metadata.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, for instance m.pt2.")],
    *,
    imports: Imports = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Export a hybrid made elsewhere, and save it.

    Nothing is traced again or run. A hybrid is a torch.fx.GraphModule whose graph calls submodules: split_module makes
    such, and other compilers. Prints what was kept, merged and removed, and why.
    """
    check_output(output, ".pt2", force=force)
    hybrid, args, kwargs, dynamic_shapes = _find_hybrid(source, imports)

    from intarsia import api

    with activity("exporting"):
        program = api.export(hybrid, args, kwargs, dynamic_shapes=dynamic_shapes)
    with activity(f"saving {output}"):
        api.save(program, output)
    _print_summary(api.ledger(program), output, as_json=as_json)


def _find_hybrid(source: str, imports: list[str] | None) -> HybridTarget:
    path = Path(source)
    if path.suffix == ".py" or (":" in source and not path.exists()):
        return load_hybrid(source)

    # The program's own graph with its state: a hybrid without partitions.
    program = load_program(path, imports).exported_program
    return HybridTarget(program.module(check_guards=False), None, None, None)


def _print_summary(ledger: Ledger, output: Path, *, as_json: bool) -> None:
    size_bytes = output.stat().st_size
    if as_json:
        facts = {"file": str(output), "size_bytes": size_bytes, "ledger": ledger.to_json()}
        typer.echo(json.dumps(facts, indent=2))
        return
    console = output_console()
    for line in ledger.summary().splitlines():
        console.print(line)
    console.print(f"saved {output} ({size_bytes:,} bytes)", soft_wrap=True)
