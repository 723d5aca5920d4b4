"""`intarsia check`: whether a file runs on the machine at hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from intarsia.cli.console import output_console
from intarsia.cli.inputs import File
from intarsia.cli.options import AsJson

if TYPE_CHECKING:
    from intarsia.formats.fitness import Fitness


def check_file(
    file: File,
    *,
    as_json: AsJson = False,
) -> None:
    """Tell whether FILE runs on this machine.

    The manifest alone is read, and nothing is loaded: it takes a moment, whatever the size of FILE. Engines whose
    compiled form does not fit this machine are built again from their portable form when they are first called; those
    of a .pte are not. A .pte is compared with its hash as well. Exit code 1 when FILE cannot run.
    """
    from intarsia.formats.fitness import check_fitness
    from intarsia.formats.pte.fitness import check_pte_fitness

    fitness = check_pte_fitness(file) if file.suffix == ".pte" else check_fitness(file)
    if as_json:
        typer.echo(json.dumps({"file": str(file), **_to_json(fitness)}, indent=2))
    else:
        for line in _lines(fitness):
            output_console().print(line, soft_wrap=True)
    if fitness.obstacles:
        raise typer.Exit(1)


def _lines(fitness: Fitness) -> list[str]:
    return [*_answer(fitness), *(f"note: {note}" for note in fitness.notes)]


def _answer(fitness: Fitness) -> list[str]:
    if fitness.obstacles:
        return ["cannot run here:", *(f"  {obstacle}" for obstacle in fitness.obstacles)]
    if fitness.rebuilt:
        count = len(fitness.rebuilt)
        heading = f"runs here after rebuilding {count} engine{'' if count == 1 else 's'}:"
        return [heading, *(f"  {name}: {reason}" for name, reason in fitness.rebuilt.items())]
    return ["runs here"]


def _to_json(fitness: Fitness) -> dict[str, Any]:
    manifests = fitness.methods.values()
    return {
        "verdict": fitness.verdict,
        "obstacles": fitness.obstacles,
        "notes": fitness.notes,
        "rebuilt": [{"engine": name, "reason": reason} for name, reason in fitness.rebuilt.items()],
        "made_with": next(
            (
                {
                    "intarsia": manifest.intarsia_version,
                    "torch": manifest.torch_version,
                    "graph_schema": manifest.graph_schema,
                    "byte_order": manifest.byte_order,
                }
                for manifest in manifests
            ),
            None,
        ),
        "methods": {
            name: {"engines": [asdict(engine) for engine in manifest.engines], "packages": dict(manifest.packages)}
            for name, manifest in fitness.methods.items()
        },
    }
