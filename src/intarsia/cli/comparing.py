"""`intarsia diff`: how two files differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.console import output_console
from intarsia.cli.inputs import Allow, Imports, loading
from intarsia.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.report.difference import Change, Side

_Before = Annotated[Path, typer.Argument(metavar="A", help="A .pt2 file, of intarsia or of torch.export.save.")]
_After = Annotated[Path, typer.Argument(metavar="B", help="Another one.")]


def compare_files(
    before: _Before,
    after: _After,
    *,
    imports: Imports = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Tell how the programs in A and B differ.

    Versions, inputs and outputs with their ranges, state by its values, engines by their bytes, and graphs. How nodes
    and sizes are numbered does not count, nor what one of the files does not tell. Nothing is run. Exit code 1 when
    something differs.
    """
    from intarsia.report.difference import compare_methods

    changes = compare_methods(_load(before, imports, allow), _load(after, imports, allow))
    if as_json:
        facts = {"before": str(before), "after": str(after), "changes": [change._asdict() for change in changes]}
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(changes)
    if changes:
        raise typer.Exit(1)


def _load(file: Path, imports: Sequence[str] | None, allow: Sequence[str] | None) -> dict[str, Side]:
    from intarsia.formats.loading import load_methods
    from intarsia.report.difference import Side

    sides = {}
    with loading(file, imports):
        for name, method in load_methods(file, allow=[*(allow or ()), "native"]).items():
            if method.check is not None:
                method.check()
            sides[name] = Side(method.program, method.manifest.versions if method.manifest else {})
    return sides


def _print(changes: Sequence[Change]) -> None:
    console = output_console()
    methods = {change.method for change in changes}
    for change in changes:
        of_method = f" of {change.method}" if len(methods) > 1 or change.part == "method" else ""
        console.print(f"{change.part}{of_method}" + (f", {change.subject}" if change.subject else ""), soft_wrap=True)
        for sign, text in (("-", change.before), ("+", change.after)):
            if text is not None:
                console.print(f"  {sign} {text}", soft_wrap=True)
    if not changes:
        console.print("no difference")
