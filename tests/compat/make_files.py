"""Write a file of each kind in the format version of this intarsia; run when a version is released.

    python tests/compat/make_files.py

A file that is there is left as it is: files of a released version never change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, export

import intarsia
from intarsia.formats.manifest import FORMAT_VERSION

FOLDER = Path(__file__).with_name("files")


class Kinds(nn.Module):
    """State and answers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0).view(3, 4)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[1:, ::2])
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.weight = nn.Parameter(torch.arange(16.0).view(4, 4).sin().to(torch.bfloat16))
        self.constant = torch.tensor([1 + 2j, 3j], dtype=torch.complex128)

    def forward(self, x: Tensor, *, scale: float) -> dict[str, Any]:
        self.calls.add_(1)
        rows = (x.to(torch.bfloat16) @ self.weight).float() * scale + self.whole.sum() + self.part.mean()
        turned = self.constant * x.sum()
        return {"rows": rows, "calls": self.calls + 0, "turned": turned, "mask": x > 0, "none": None, "number": 3}


class Decoder(nn.Module):
    """Two methods with one state and one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(1024.0).view(32, 32).cos() / 8)
            self.layer.bias.zero_()
        self.register_buffer("seen", torch.zeros(8, 32), persistent=False)

    def prefill(self, prompt: Tensor) -> Tensor:
        self.seen[:4] = prompt
        return self.layer(self.seen)

    def decode(self, row: Tensor, position: Tensor) -> Tensor:
        self.seen.index_copy_(0, position, row)
        return self.layer(self.seen).sum(0)


def kinds(path: Path) -> None:
    """A program without engines."""
    x, sizes = torch.linspace(-1, 1, 12).view(3, 4), {"x": {0: Dim("rows", min=1, max=8)}, "scale": None}
    program = export(Kinds(), (x,), {"scale": 2.0}, dynamic_shapes=sizes)
    intarsia.save(program, path, test_vectors=[((x,), {"scale": 2.0}), ((x[:1],), {"scale": 2.0})])


def methods(path: Path) -> None:
    """Two methods with engines; what OpenVINO compiled them to, other versions could not read."""
    model, row = Decoder().eval(), torch.ones(1, 32)
    args = {"prefill": (torch.ones(4, 32),), "decode": (row, torch.tensor([4]))}
    programs = intarsia.export(intarsia.compile({"prefill": model.prefill, "decode": model.decode}, args))
    steps = [("decode", (row / step, torch.tensor([3 + step])), {}) for step in (1, 2)]
    intarsia.save(programs, path, payloads=False, test_vectors=[("prefill", args["prefill"], {}), *steps])


def placed(path: Path) -> None:
    """A hybrid of one engine and an operator in torch, whose coverage names the backend of the engine."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).eval(), torch.linspace(-1, 1, 8).view(2, 4)
    sizes = ({0: Dim("rows", min=1, max=8)},)
    hybrid = intarsia.compile(model, (x,), dynamic_shapes=sizes, torch_executed_ops={"aten.gelu"})
    intarsia.save(hybrid, path, payloads=False, test_vectors=[((x,), {}), ((x[:1],), {})])


if __name__ == "__main__":
    for make in (kinds, methods, placed):
        path = FOLDER / f"v{FORMAT_VERSION}_{make.__name__}.pt2"
        if not path.exists():
            make(path)
