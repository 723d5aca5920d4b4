"""`intarsia inspect`: what a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.console import activity, output_console
from intarsia.cli.options import AsJson


def inspect_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File that `intarsia compile` or `intarsia.save` wrote.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show what FILE holds.

    Engines, operators left in torch, state, inputs and outputs with their ranges, sizes, versions, and the ledger of
    the export.
    """
    from intarsia import api
    from intarsia.formats.manifest import Manifest
    from intarsia.report.inspection import draw_program
    from intarsia.report.program import describe_program

    with activity(f"loading {file}"):
        program = api.load_program(file)
    manifest = program.manifest
    versions = {}
    if isinstance(manifest, Manifest):
        versions = {"intarsia": manifest.intarsia_version, "torch": manifest.torch_version}
    facts = describe_program(program.exported_program, versions=versions, ledger=program.ledger)
    if as_json:
        typer.echo(json.dumps(facts.to_json(), indent=2))
    else:
        output_console().print(draw_program(facts))
