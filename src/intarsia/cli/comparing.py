"""`intarsia diff`: how two files differ."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from intarsia.cli.console import output_console
from intarsia.cli.inputs import Allow, Imports, loading
from intarsia.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from intarsia.core.vectors import Vectors
    from intarsia.formats.manifest import Manifest
    from intarsia.report.difference import Change, Side

_Before = Annotated[
    Path, typer.Argument(metavar="A", help="A .pt2 file, of intarsia or of torch.export.save, or a .pte of intarsia.")
]
_After = Annotated[Path, typer.Argument(metavar="B", help="Another one.")]


class _Opened(NamedTuple):
    """What a file tells.

    Attributes:
        sides: Its methods, by name.
        vectors: Its test vectors, without calls where it has none; None where such a file has no place for any.
        kind: What kind of file it is, where it holds no graph.
        stored: Size and hash of what it stores then, by what it is.
    """

    sides: dict[str, Side]
    vectors: Vectors | None
    kind: str = ""
    stored: Mapping[str, str] = MappingProxyType({})


def compare_files(
    before: _Before,
    after: _After,
    *,
    imports: Imports = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Tell how the programs in A and B differ.

    Versions, inputs and outputs with their ranges, state by its values, engines by their bytes, graphs, and test
    vectors. How nodes and sizes are numbered does not count, nor what one of the files does not tell. Nothing is run.
    Exit code 1 when something differs.
    """
    from intarsia.report.difference import compare_methods, compare_stored
    from intarsia.report.vectors import compare_vectors

    one, other = (_open(file, imports, allow) for file in (before, after))
    changes = compare_methods(one.sides, other.sides)
    if one.vectors is not None and other.vectors is not None:
        changes += compare_vectors(one.vectors, other.vectors)
    if one.kind == other.kind:
        changes += compare_stored(one.stored, other.stored)
    if as_json:
        facts = {"before": str(before), "after": str(after), "changes": [change._asdict() for change in changes]}
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(changes)
    if changes:
        raise typer.Exit(1)


def _open(file: Path, imports: Sequence[str] | None, allow: Sequence[str] | None) -> _Opened:
    from intarsia.formats.aoti.loading import is_package
    from intarsia.formats.pte.loading import has_pte_ending

    with loading(file, imports):
        if has_pte_ending(file):
            return _open_pte(file)
        return _open_package(file) if is_package(file) else _open_pt2(file, allow)


def _open_pt2(file: Path, allow: Sequence[str] | None) -> _Opened:
    from intarsia import api
    from intarsia.core.vectors import Vectors
    from intarsia.formats.archive.layout import METHOD
    from intarsia.formats.manifest import Manifest
    from intarsia.report.difference import Side
    from intarsia.runtime.program import Program

    sides = {}
    loaded = api.load_pt2(file, allow=[*(allow or ()), "native"])  # no engine is called
    programs = {METHOD: loaded} if isinstance(loaded, Program) else {name: getattr(loaded, name) for name in loaded}
    vectors = loaded.test_vectors
    for name, program in programs.items():
        program.check()
        versions = {}
        if isinstance(manifest := program.manifest, Manifest):
            versions = manifest.versions
            vectors = vectors or Vectors((), {}, {})
        sides[name] = Side(program.exported_program, versions)
    return _Opened(sides, vectors)


def _open_package(file: Path) -> _Opened:
    from intarsia.core.vectors import Vectors
    from intarsia.formats.aoti.loading import describe_aoti
    from intarsia.report.difference import Side

    described = describe_aoti(file, verify=True)
    sides = {
        name: Side(
            described.boundaries[name],
            {**manifest.versions, "compiled for": manifest.compiled},
            _engines(manifest),
        )
        for name, manifest in described.manifests.items()
    }
    vectors = described.vectors() if described.vectors else Vectors((), {}, {})
    stored = {
        f"code of {name}": f"{code.size_bytes} bytes, {code.sha256[:12]}" for name, code in described.libraries.items()
    }
    return _Opened(sides, vectors, "package", stored)


def _engines(manifest: Manifest) -> dict[str, dict[str, str]]:
    """What a manifest tells of engines, where nothing else does."""
    return {
        engine.constant: {
            "name": engine.name,
            "backend": engine.backend,
            "version": engine.backend_version,
            "target": engine.target,
            "signature": engine.signature,
        }
        for engine in manifest.engines
    }


def _open_pte(file: Path) -> _Opened:
    from intarsia.formats.pte.contents import read_pte
    from intarsia.formats.pte.description import read_boundary
    from intarsia.report.difference import Side

    contents = read_pte(file, digests=True)
    described = contents.description
    sides = {}
    for name, manifest in described.manifests.items():
        boundary = read_boundary(described.boundaries[name], str(file))
        sides[name] = Side(boundary, described.versions, _engines(manifest), contents.plans[name])
    return _Opened(sides, None, ".pte", contents.stored)


def _print(changes: Sequence[Change]) -> None:
    console = output_console()
    methods = {change.method for change in changes if change.method}
    for change in changes:
        is_named = change.method and (len(methods) > 1 or change.part == "method")
        of_method = f" of {change.method}" if is_named else ""
        console.print(f"{change.part}{of_method}" + (f", {change.subject}" if change.subject else ""), soft_wrap=True)
        for sign, text in (("-", change.before), ("+", change.after)):
            if text is not None:
                console.print(f"  {sign} {text}", soft_wrap=True)
    if not changes:
        console.print("no difference")
