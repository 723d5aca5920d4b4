"""`--import`: a file whose outputs are of a registered class is opened once the user names the class's module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from intarsia import api
from intarsia.cli.application import app
from intarsia.cli.target import FactoryError, import_modules
from intarsia.errors import FormatError, TargetError

COMMANDS = {
    "inspect": (),
    "run": (),
    "verify": (),
    "bench": ("--calls", "2"),
    "export": ("-o", "again.pt2"),
}

REGISTERED = """
import dataclasses
import torch

print("from the module")

@dataclasses.dataclass
class Outputs:
    rows: torch.Tensor

torch.export.register_dataclass(Outputs, serialized_type_name=f"{__name__}.Outputs")
"""

# Another process writes the files, for this one must not know the classes.
SAVES = """
import importlib, sys
import torch, intarsia

sys.path.insert(0, ".")
for name in sys.argv[1:]:
    module = importlib.import_module(name)

    class Model(torch.nn.Module):
        def forward(self, x):
            return module.Outputs(x + 1)

    intarsia.save(torch.export.export(Model(), (torch.ones(2),)), f"{name}.pt2")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each command a module that registers a class, and a program whose outputs are of that class."""
    folder = tmp_path_factory.mktemp("registered")
    names = [f"registered_for_{command}" for command in (*COMMANDS, "python")]
    for name in names:
        (folder / f"{name}.py").write_text(REGISTERED)
    subprocess.run([sys.executable, "-c", SAVES, *names], cwd=folder, check=True)
    return folder


@pytest.fixture
def folder(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(saved)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return saved


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_class_of_the_outputs_is_known_after_its_import(folder: Path, command: str) -> None:
    module = f"registered_for_{command}"
    arguments = [command, f"{module}.pt2", *COMMANDS[command]]
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert f"found arguments or outputs in a {module}.Outputs, which this process does not know" in refused.stderr
    assert f"Add --import {module}, or another module that registers it: a load imports nothing" in refused.stderr
    assert module not in sys.modules
    result = invoke(*arguments, "--import", "json", "--import", f"{module}.py" if command == "run" else module)
    assert result.exit_code == 0, result.output
    assert "from the module" in result.stderr
    assert "from the module" not in result.stdout


def test_the_library_names_no_option_of_the_command_line(folder: Path) -> None:
    with pytest.raises(FormatError, match="Import its module before loading"):
        api.load("registered_for_python.pt2")


def test_a_module_that_is_missing_or_raises_is_told(folder: Path) -> None:
    Path("raising_on_import.py").write_text("1 / 0")
    with pytest.raises(TargetError, match=r"^--import nowhere_at_all: found no module 'nowhere_at_all'"):
        import_modules(["nowhere_at_all"])
    with pytest.raises(TargetError, match=r"^--import no\.py: found no file 'no\.py'"):
        import_modules(["no.py"])
    with pytest.raises(FactoryError, match=r"^--import raising_on_import\.py: found ZeroDivisionError while it was im"):
        import_modules(["raising_on_import.py"])
