"""A folder to work in, with a file of factories and the programs that two of them make."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from intarsia import api

FACTORIES = """
import torch

class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x, *, scale=2.0):
        y = self.linear(x) * scale
        self.total.add_(y.sum(0))
        return {"rows": y, "total": self.total, "size": x.shape[0], "none": None}

def counter():
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=6)}, "scale": None}
    return Counter().eval(), (torch.ones(3, 4),), {"scale": 2.0}, shapes

def counter_program():
    model, args, kwargs, shapes = counter()
    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes), args, kwargs, None

def other_weights():
    model, *rest = counter()
    with torch.no_grad():
        model.linear.bias += 1
    return model, *rest

def unseeded():
    _, *rest = counter()
    torch.seed()
    return Counter().eval(), *rest

def other_inputs():
    return torch.nn.Linear(4, 3), (torch.ones(3, 4), torch.ones(2)), None, None

def other_outputs():
    class Bare(torch.nn.Module):
        def forward(self, x, scale):
            return x
    return Bare(), (torch.ones(3, 4),), {"scale": 2.0}, None

class Bins(torch.nn.Module):
    def forward(self, ids, n):
        return torch.bincount(ids, minlength=9), n

def bins():
    ids = torch.tensor([2, 4, 3])
    shapes = {"ids": {0: torch.export.Dim("length", max=9)}, "n": torch.export.Dim.DYNAMIC(min=1, max=8)}
    return Bins(), (ids, 5), None, shapes
"""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with factories.py, counter.pt2 and bins.pt2; read only."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "factories.py").write_text(FACTORIES)
    made: dict[str, object] = {}
    exec(FACTORIES, made)  # noqa: S102 - the text above
    for name in ("counter", "bins"):
        model, args, kwargs, shapes = made[name]()  # type: ignore[operator]
        api.save(torch.export.export(model, args, kwargs, dynamic_shapes=shapes), folder / f"{name}.pt2")
    return folder


@pytest.fixture
def here(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with links to the programs."""
    for path in programs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    return tmp_path
