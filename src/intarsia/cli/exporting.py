"""`intarsia export`: from a hybrid made elsewhere to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from intarsia.cli.console import activity, output_console, print_heading
from intarsia.cli.inputs import Allow, Imports, load_graphs
from intarsia.cli.options import AsJson, FileFormat, Force
from intarsia.cli.output import check_output
from intarsia.cli.recording import file_calls, hybrid_calls
from intarsia.cli.target import HybridTarget, load_hybrid

if TYPE_CHECKING:
    import torch

    from intarsia.core.ledger import Ledger
    from intarsia.runtime.program import Program


_LEFT_OUT = (
    "the test vectors of the file are left out: --test-vectors makes their calls again, and records the answers."
)


def export_hybrid(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_TARGET",
            help="A .pt2 file, or package.module:factory or file.py:factory; the factory returns the hybrid, "
            "or hybrid, args, kwargs and dynamic_shapes where its graph has no metadata or does not state its ranges; "
            "mappings of these for several methods.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, for instance m.pt2.")],
    *,
    test_vectors: Annotated[
        bool,
        typer.Option(
            "--test-vectors",
            help="Call the program with the example inputs beside the hybrid, or as FILE records it, and record the "
            "answers, for `intarsia verify`.",
        ),
    ] = False,
    imports: Imports = None,
    allow: Allow = None,
    format: FileFormat = "pt2",  # noqa: A002 - the word of `intarsia.save`
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Export a hybrid made elsewhere, and save it.

    Nothing is traced again, and nothing run without --test-vectors. A hybrid is a torch.fx.GraphModule whose graph
    calls submodules: split_module makes such, and other compilers. Prints what was kept, merged and removed, and why.
    """
    check_output(output, ".pt2", force=force)
    made, calls, notes = _find_hybrid(source, imports, allow, record=test_vectors)
    hybrid, args, kwargs, dynamic_shapes = made

    from intarsia import api

    with activity("exporting"):
        program: Any = api.export(hybrid, args, kwargs, dynamic_shapes=dynamic_shapes)
    with activity(f"saving {output}") as progress:
        api.save(program, output, format=format, test_vectors=calls, progress=progress)
    hybrids: Mapping[str, Any] = hybrid if isinstance(hybrid, Mapping) else {"": hybrid}
    programs, shapes = (program, dynamic_shapes or {}) if hybrids is hybrid else ({"": program}, {"": dynamic_shapes})
    facts = {
        name: (api.ledger(programs[name]), notes + (_notes(one, programs[name]) if shapes.get(name) is None else []))
        for name, one in hybrids.items()
    }
    _print_summary(facts, output, as_json=as_json)


class _Found(NamedTuple):
    """A hybrid to export.

    Attributes:
        made: The hybrid, with example inputs where they were given.
        calls: Calls to record; None where none are.
        notes: What to say of it.
    """

    made: HybridTarget
    calls: list[tuple[Any, ...]] | None
    notes: list[str]


def _find_hybrid(source: str, imports: list[str] | None, allow: list[str] | None, *, record: bool) -> _Found:
    path = Path(source)
    if path.suffix == ".py" or (":" in source and not path.exists()):
        made = load_hybrid(source)
        return _Found(made, hybrid_calls(made) if record else None, [])

    from intarsia.runtime.methods import Methods

    loaded = load_graphs(path, imports, allow=allow)
    if isinstance(loaded, Methods):
        hybrids: Any = {name: _hybrid_of(getattr(loaded, name)) for name in loaded.methods}
    else:
        hybrids = _hybrid_of(loaded)
    notes = [] if record or loaded.test_vectors is None else [_LEFT_OUT]
    return _Found(HybridTarget(hybrids, None, None, None), file_calls(loaded) if record else None, notes)


def _hybrid_of(loaded: Program) -> torch.fx.GraphModule:
    """A program's own graph with its state: a hybrid without partitions."""
    program = loaded.exported_program
    hybrid = program.module(check_guards=False)
    hybrid.meta["range_constraints"] = dict(program.range_constraints)
    return hybrid


def _notes(hybrid: torch.fx.GraphModule, program: torch.export.ExportedProgram) -> list[str]:
    """What a hybrid does not say, and what the program says in its place."""
    from intarsia._torch import pytree_convention
    from intarsia.report.program import range_texts

    notes = []
    if pytree_convention(hybrid.graph) is None and isinstance(hybrid.graph.output_node().args[0], tuple):
        notes.append(
            "the hybrid's graph holds no structure of outputs (split_module keeps none): the program returns a tuple. "
            "If the model returned something else, see 'How' on the page Export of the documentation."
        )
    ranges = [f"{size}: {text}" for size, text in range_texts(program).items() if text.startswith("2 to ")]
    if ranges and "range_constraints" not in hybrid.meta:
        notes.append(
            f"the hybrid states no ranges, and those of torch's trace never begin below 2 ({', '.join(ranges)}). "
            "Where 1 is meant too, return dynamic_shapes beside the hybrid."
        )
    return notes


def _print_summary(facts: Mapping[str, tuple[Ledger, list[str]]], output: Path, *, as_json: bool) -> None:
    """Print ledger and notes of each method; of one program the name is empty."""
    size_bytes = output.stat().st_size
    if as_json:
        drawn = {name: {"ledger": ledger.to_json(), "notes": notes} for name, (ledger, notes) in facts.items()}
        told = drawn.get("", {"methods": drawn})
        typer.echo(json.dumps({"file": str(output), "size_bytes": size_bytes, **told}, indent=2))
        return
    console = output_console()
    for name, (ledger, notes) in facts.items():
        print_heading(name)
        for line in ledger.summary().splitlines():
            console.print(line)
        for note in notes:
            console.print(f"note: {note}", soft_wrap=not console.is_terminal)
    console.print(f"saved {output} ({size_bytes:,} bytes)", soft_wrap=True)
