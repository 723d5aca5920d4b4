"""What a new process makes of an engine, and of the same partition under other names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.engines.conformance.programs import RUN, constant_of, export
from torch.export import Dim

from intarsia.core.backend import BuiltEngine
from intarsia.core.registry import find_backend


class _Layer(torch.nn.Module):
    """A layer under a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        layer = torch.nn.Linear(512, 512)
        for value in layer.parameters():
            value.data = torch.rand(value.shape, generator=generator) / 16 - 1 / 32
        self.layer = layer
        if name != "layer":
            self.add_module(name, layer)
            del self.layer
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.get_submodule(self.name)(x)
        return torch.relu(result)


def make_layer(names: Sequence[str]) -> tuple[torch.nn.Module, torch.export.ExportedProgram]:
    """A layer for f32[rows, 512], as module and as program.

    Args:
        names: What its size is called, and the module that holds its weights.
    """
    module = _Layer(names[1]).eval()
    return module, export(module, (torch.ones(2, 512),), ({0: Dim(names[0], min=1, max=64)},))


class Elsewhere:
    """What a new process has found.

    Args:
        backend: Name of the backend.
        library: A module that is imported only when the backend needs it; empty where there is none.
        built: The engine of `make_layer`.
        signature: Its signature.
        folder: An empty folder.

    Attributes:
        built: The engine that the process built, of the same layer under other names.
        printed: What it printed.
        left: Files that it left.
        imported: Whether it imported the library before it was needed.
        difference: The greatest of its first engine's answer from torch's.
    """

    def __init__(self, backend: str, library: str, built: BuiltEngine, signature: str, folder: Path) -> None:
        own, temporary = folder / "own", folder / "temporary"
        own.mkdir(), temporary.mkdir()
        torch.save((built.__dict__, signature), folder / "given")
        path = [str(Path(__file__).parents[3]), *(entry or str(Path.cwd()) for entry in sys.path)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "TMPDIR": str(temporary),
            # torch's own compiler keeps what it compiled.
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        }
        code = f"import sys; from {__name__} import work; work(*sys.argv[1:])"
        command = [sys.executable, "-c", code, backend, library, str(folder)]
        run = subprocess.run(command, cwd=own, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        self.printed = run.stdout + run.stderr
        names = [path.name for path in (*own.iterdir(), *temporary.iterdir())]
        self.left = [name for name in names if not name.startswith("torchinductor_")]
        fields, self.imported, self.difference = torch.load(folder / "found")
        self.built = BuiltEngine(**fields)


def work(backend_name: str, library: str, place: str) -> None:
    """What the new process does; arguments as for `Elsewhere`."""
    folder = Path(place)
    backend = find_backend(backend_name)
    backend.available(), backend.accepts("0.0.1", "another machine")
    imported = bool(library) and library != "torch" and library in sys.modules
    fields, signature = torch.load(folder / "given")
    x = torch.randn(7, 512)
    module, program = make_layer(["width_of_another", "another"])
    (result,) = RUN([x], constant_of(BuiltEngine(**fields), backend_name, signature), signature)
    built = backend.build(program, {})
    found: Any = {**built.__dict__, "constants": list(built.constants), "options": dict(built.options)}
    with torch.no_grad():
        difference = float((result - module(x)).abs().max())
    torch.save((found, imported, difference), folder / "found")
