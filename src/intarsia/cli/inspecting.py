"""`intarsia inspect`: what a file holds."""

from __future__ import annotations

import json

import typer

from intarsia.cli.console import output_console
from intarsia.cli.inputs import File, Imports, load_program
from intarsia.cli.options import AsJson


def inspect_file(
    file: File,
    *,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Show what FILE holds.

    Engines, operators left in torch, state and how it is written, inputs and outputs with their ranges, sizes,
    versions, and the ledger of the export.
    """
    from intarsia.formats.manifest import Manifest
    from intarsia.report.inspection import draw_program
    from intarsia.report.program import describe_program

    program = load_program(file, imports)
    manifest = program.manifest
    versions = {}
    if isinstance(manifest, Manifest):
        versions = {"intarsia": manifest.intarsia_version, "torch": manifest.torch_version}
    writes = {name: write.reason for name, write in program.writes.items()}
    facts = describe_program(program.exported_program, versions=versions, ledger=program.ledger, writes=writes)
    if as_json:
        typer.echo(json.dumps(facts.to_json(), indent=2))
    else:
        output_console().print(draw_program(facts))
