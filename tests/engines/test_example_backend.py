"""The backend of the example package, installed: the suite that every backend passes, and its use beside OpenVINO."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.builders.packages import install
from tests.engines.conformance import BackendConformance
from typer.testing import CliRunner

import intarsia
from intarsia.cli.application import app
from intarsia.core import registry
from intarsia.core.plan import PartitionPlan

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "backend_package"
MODELS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(33, 8)
        self.last = torch.nn.Linear(8, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        y = self.last(self.first(torch.fft.rfft(x).abs()).sort(-1)[0].relu())
        self.total.add_(y.sum(0))
        return y + self.total

def factory():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 64),), {}, ({0: torch.export.Dim("rows", min=1, max=9)},)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(PACKAGE, tmp_path_factory.mktemp("backend_package"))


@pytest.fixture(scope="module", autouse=True)
def installed(site: Path) -> Iterator[None]:
    """The package is found as an installed one, and forgotten again."""
    sys.path.insert(0, str(site))
    registry.find_backend.cache_clear()
    yield
    sys.path.remove(str(site))
    sys.modules.pop("eager_backend", None)
    registry.find_backend.cache_clear()


# torch says so when it saves a part of a tensor.
@pytest.mark.filterwarnings("ignore:No complete tensor found in the group:UserWarning")
class TestEager(BackendConformance):
    name = "eager"
    library = "torch"
    extra = None


def test_the_page_shows_the_package_as_it_is() -> None:
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```(?:python|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert (PACKAGE / "eager_backend.py").read_text(encoding="utf-8") in shown
    assert any(block in (PACKAGE / "pyproject.toml").read_text(encoding="utf-8") for block in shown[1:])


def test_the_installed_backend_is_found_by_its_entry_point() -> None:
    assert "eager" in registry.available_backends()
    assert type(registry.find_backend("eager")).__module__ == "eager_backend"


def invoke(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, arguments, prog_name="intarsia")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_program_of_two_backends_on_the_command_line(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    compile_model = ("compile", "models.py:factory", "--json", "-o")
    order = ("--backend", "openvino", "--backend", "eager", "--backend", "aten.sort=torch")
    first = json.loads(invoke(*compile_model, "a.pt2", *order, "--write-plan", "plan.json"))
    assert set(first["backends"].values()) == {"openvino", "eager"}
    second = json.loads(invoke(*compile_model, "b.pt2", "--plan", "plan.json", "--write-plan", "again.json"))
    assert second["backends"] == first["backends"]
    assert Path("again.json").read_text() == Path("plan.json").read_text()
    assert str(PartitionPlan.of("plan.json")) == Path("plan.json").read_text()
    shown = invoke("inspect", "b.pt2")
    assert {"eager", "openvino"} <= {word for line in shown.splitlines() for word in line.split()}
    assert json.loads(verify_in_new_process(site, "b.pt2"))["ok"] is True


def verify_in_new_process(site: Path, file: str) -> str:
    """What `intarsia verify` prints where the package is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "intarsia", "verify", file, "--against", "models.py:factory", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_options_by_backend() -> None:
    pytest.importorskip("openvino")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    options = {"openvino": {"INFERENCE_NUM_THREADS": 1}}
    args = (torch.ones(2, 4),)
    hybrid = intarsia.compile(model, args, backend={"": "openvino", "0": "eager"}, options=options)
    assert intarsia.coverage(hybrid).backends == (("eager_0", "eager"), ("openvino_0", "openvino"))
    torch.testing.assert_close(hybrid(*args), model(*args))
