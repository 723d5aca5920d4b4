"""`intarsia inspect`: what a file holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from intarsia.cli.console import output_console, print_heading
from intarsia.cli.inputs import Allow, File, Imports, load_graphs, loading
from intarsia.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from intarsia.core.coverage import Coverage
    from intarsia.formats.pte.contents import PteContents
    from intarsia.report.program import ProgramFacts
    from intarsia.runtime.methods import Methods
    from intarsia.runtime.program import Program


def inspect_file(
    file: File,
    *,
    imports: Imports = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Show what FILE holds.

    Engines, operators left in torch, state and how it is written, inputs and outputs with their ranges, sizes,
    versions, the ledger of the export, and where each operator of the captured model runs, and why. Of several methods
    each is shown, and the state that they share once. Of a .pte, which tells less, the calls of kernels and delegates.
    """
    if file.suffix == ".pte":
        _show_pte(file, imports, as_json=as_json)
        return
    from intarsia.formats.aoti.loading import is_package
    from intarsia.runtime.methods import Methods

    if is_package(file):
        _show_package(file, imports, as_json=as_json)
        return
    loaded = load_graphs(file, imports, allow=[*(allow or ()), "native"])  # no engine is called
    if isinstance(loaded, Methods):
        _show_methods(loaded, as_json=as_json)
    elif as_json:
        drawn = {**_to_json(_describe(loaded), _coverage(loaded)), "test_vectors": _count_vectors(loaded)}
        typer.echo(json.dumps(drawn, indent=2))
    else:
        _print(_describe(loaded), _coverage(loaded))
        _print_vectors(_count_vectors(loaded))


def _show_package(file: Path, imports: Sequence[str] | None, *, as_json: bool) -> None:
    """What a package of compiled code says of itself; none of it is opened."""
    from intarsia.formats.aoti.loading import describe_aoti
    from intarsia.report.package import describe_package, draw_package

    with loading(file, imports):
        described = describe_aoti(file)
    facts = describe_package(
        described.boundaries, {name: asdict(manifest) for name, manifest in described.manifests.items()}
    )
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        output_console().print(draw_package(facts))
        _print_vectors(facts["test_vectors"])


def _show_methods(methods: Methods, *, as_json: bool) -> None:
    from intarsia.report.inspection import draw_state, draw_storage
    from intarsia.report.methods import merge_state
    from intarsia.report.storage import describe_storage

    programs = {name: getattr(methods, name) for name in methods.methods}
    names = {name: methods.state.names(program.exported_program) for name, program in programs.items()}
    state, facts = merge_state({name: _describe(program) for name, program in programs.items()}, names)
    coverages = {name: _coverage(program) for name, program in programs.items()}
    storage = describe_storage([program.exported_program for program in programs.values()])
    if as_json:
        drawn = {name: _to_json(facts[name], coverages[name]) for name in programs}
        for own in drawn.values():
            for shared in ("state", "size_bytes", "repeated_bytes"):
                del own[shared]
        told = {
            "methods": drawn,
            "state": [asdict(entry) for entry in state],
            "storage": storage.to_json(),
            "test_vectors": _count_vectors(next(iter(programs.values()))),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    for name in programs:
        print_heading(name)
        _print(facts[name], coverages[name])
    print_heading("all methods")
    if state:
        output_console().print(draw_state(state))
    output_console().print(draw_storage(storage))
    _print_vectors(_count_vectors(next(iter(programs.values()))))


def _show_pte(file: Path, imports: Sequence[str] | None, *, as_json: bool) -> None:
    from intarsia.formats.archive.layout import METHOD
    from intarsia.formats.pte.contents import read_pte

    with loading(file, imports):
        contents = read_pte(file, digests=True)
        facts = _describe_pte(file, contents)
    if as_json:
        methods = {name: _to_json(own, None) for name, own in facts.items()}
        told = methods[METHOD] if list(methods) == [METHOD] else {"methods": methods}
        typer.echo(json.dumps({**told, "stored": dict(contents.stored), "test_vectors": 0}, indent=2))
        return
    for name, own in facts.items():
        if len(facts) > 1:
            print_heading(name)
        _print(own, None)
    from intarsia.report.drawing import plain_table

    output_console().print(plain_table(("stored", "size and SHA-256"), contents.stored.items()))


def _describe_pte(file: Path, contents: PteContents) -> dict[str, ProgramFacts]:
    from intarsia.formats.pte.description import read_boundary
    from intarsia.report.executorch import describe_method
    from intarsia.report.program import EngineFacts

    described = contents.description
    return {
        name: describe_method(
            read_boundary(described.boundaries[name], str(file)),
            contents.plans[name],
            engines=[
                EngineFacts(
                    engine.name,
                    engine.constant,
                    engine.backend,
                    engine.backend_version,
                    engine.target,
                    engine.signature,
                    engine.payload_bytes,
                    source_bytes=0,
                    shared_bytes=0,
                )
                for engine in manifest.engines
            ],
            written=[write.name for write in manifest.writes],
            versions=described.versions,
        )
        for name, manifest in described.manifests.items()
    }


def _describe(program: Program) -> ProgramFacts:
    from intarsia.formats.manifest import Manifest
    from intarsia.report.program import describe_program

    manifest = program.manifest
    versions = manifest.versions if isinstance(manifest, Manifest) else {}
    writes = {name: write.reason for name, write in program.writes.items()}
    return describe_program(program.exported_program, versions=versions, ledger=program.ledger, writes=writes)


def _coverage(program: Program) -> Coverage | None:
    from intarsia.core.coverage import Coverage

    placed = program.manifest.coverage if program.manifest else None
    return Coverage.from_json(placed) if placed else None


def _count_vectors(program: Program) -> int:
    """How many test vectors the file of a program has, of all its methods."""
    from intarsia.formats.manifest import Manifest

    return program.manifest.test_vectors if isinstance(program.manifest, Manifest) else 0


def _print_vectors(count: int) -> None:
    if count:
        calls = f"{count} test vector{'' if count == 1 else 's'}"
        output_console().print(f"{calls}: calls with their answers, which `intarsia verify` makes again")


def _to_json(facts: ProgramFacts, coverage: Coverage | None) -> dict[str, Any]:
    from intarsia.report.coverage import coverage_json

    return {**facts.to_json(), "coverage": coverage and coverage_json(coverage)}


def _print(facts: ProgramFacts, coverage: Coverage | None) -> None:
    from intarsia.report.coverage import draw_coverage
    from intarsia.report.inspection import draw_program

    output_console().print(draw_program(facts))
    if coverage:
        output_console().print(draw_coverage(coverage))
