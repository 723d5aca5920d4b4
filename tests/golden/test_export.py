"""The printed graphs of docs/export.md: made by the library, kept as files, and the same in the document.

`python tests/golden/test_export.py` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.split_module import split_module

from intarsia.surgery import export, ledger

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parents[1] / "docs" / "export.md"


class Counter(torch.nn.Module):
    """Scales its input, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        scaled = self.scale(x).relu()
        return {"scaled": scaled, "mean": scaled.mean(0) / self.calls}


def build_hybrid() -> GraphModule:
    batch = Dim("batch", min=1, max=16)
    program = torch.export.export(Counter(), (torch.ones(4, 3),), dynamic_shapes=({0: batch},))
    module = program.run_decompositions({}).module(check_guards=False)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    hybrid = split_module(module, module, lambda node: calls.index(node) // 3, keep_original_order=True)
    hybrid.graph.set_codegen(module.graph._codegen)
    hybrid.recompile()
    return hybrid


def print_graph(graph: torch.fx.Graph) -> str:
    return "\n".join(line.rstrip() for line in str(graph).strip().splitlines())


def print_hybrid(hybrid: GraphModule) -> str:
    parts = {"hybrid": hybrid} | {name: part for name, part in hybrid.named_children() if isinstance(part, GraphModule)}
    return "\n\n".join(f"{name}: {print_graph(part.graph)}" for name, part in parts.items())


def print_program(program: ExportedProgram) -> str:
    signature = "\n".join(line.rstrip() for line in str(program.graph_signature).strip().splitlines())
    ranges = "\n".join(f"{symbol}: {bounds}" for symbol, bounds in program.range_constraints.items())
    return f"{print_graph(program.graph)}\n\n{signature}\n\n# ranges\n{ranges}"


def print_all() -> dict[str, str]:
    hybrid = build_hybrid()
    program = export(hybrid)
    account = ledger(program)
    entries = [f"{e.kind:9} {e.subject:34} {e.fate:8} {e.image or '-':12} {e.reason}".rstrip() for e in account.entries]
    return {
        "before": print_hybrid(hybrid),
        "after": print_program(program),
        "ledger": "\n".join(entries),
        "summary": account.summary(),
    }


@pytest.mark.parametrize("name", ["before", "after", "ledger", "summary"])
def test_what_is_printed_stays_the_same(name: str) -> None:
    printed = print_all()[name]
    assert printed == (FOLDER / f"{name}.txt").read_text().rstrip("\n")
    assert printed in DOCUMENT.read_text(), f"docs/export.md shows another {name}"


if __name__ == "__main__":
    for title, text in print_all().items():
        (FOLDER / f"{title}.txt").write_text(text + "\n")
