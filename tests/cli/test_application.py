"""The commands from end to end, in this process: what they print, write and answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from intarsia import api
from intarsia.cli import app

FACTORIES = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return {"y": torch.softmax(self.linear(x), -1)}

def factory():
    torch.manual_seed(0)
    return Model().eval(), (torch.ones(2, 8),), None, {"x": {0: torch.export.Dim("b", min=1, max=16)}}

def raises():
    return 1 / 0
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "factories_of_app.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "factories_of_app", raising=False)
    return tmp_path


def test_compile_writes_a_program_that_runs_and_prints_coverage(folder: Path) -> None:
    pytest.importorskip("openvino")
    result = invoke("compile", "factories_of_app:factory", "-o", "m.pt2", "--torch-executed-op", "aten.softmax.int")
    assert result.exit_code == 0, result.output
    assert "aten.linear.default" in result.stdout
    assert "saved m.pt2" in result.stdout
    assert "building engines" in result.stderr
    from factories_of_app import factory  # type: ignore[import-not-found]

    model, (x,), _, _ = factory()
    torch.testing.assert_close(api.load(folder / "m.pt2")(x)["y"], model(x)["y"].detach(), atol=1e-5, rtol=1e-4)


def test_inspect_tells_of_the_file_what_compile_put_there(folder: Path) -> None:
    pytest.importorskip("openvino")
    invoke("compile", "factories_of_app:factory", "-o", "m.pt2", "--torch-executed-op", "aten.softmax.int")
    shown = invoke("inspect", "m.pt2")
    assert shown.exit_code == 0, shown.output
    told = json.loads(invoke("inspect", "--json", "m.pt2").stdout)
    assert [engine["backend"] for engine in told["engines"]] == ["openvino"]
    assert "aten._softmax.default" in told["operators"] or "aten.softmax.int" in told["operators"]
    assert told["inputs"][0]["name"] == "x"
    assert list(told["ranges"].values()) == ["1 to 16"]
    assert told["ledger"]
    assert told["engines"][0]["signature"] in shown.stdout
    assert torch.__version__.startswith(told["versions"]["torch"])


def test_a_fault_is_one_message_on_standard_error(folder: Path) -> None:
    result = invoke("compile", "nowhere_at_all:factory", "-o", "m.pt2")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: target 'nowhere_at_all:factory': found no module")
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


def test_debug_shows_the_traceback(folder: Path) -> None:
    result = invoke("--debug", "compile", "nowhere_at_all:factory", "-o", "m.pt2")
    assert type(result.exception).__name__ == "TargetError"


def test_a_factory_that_raises_is_shown_as_itself(folder: Path) -> None:
    result = invoke("compile", "factories_of_app:raises", "-o", "m.pt2")
    assert result.exit_code == 2
    assert "return 1 / 0" in result.stderr
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert "cli/target.py" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "no_such_backend"], "no_such_backend"),
        (["--torch-executed-op", "aten.no_such_operator"], "aten.no_such_operator"),
        (["--option", "no_equals_sign"], "KEY=VALUE"),
        (["--option", "=3"], "KEY=VALUE"),
        (["--min-block-size", "0"], "min-block-size"),
    ],
)
def test_a_wrong_option_is_refused_by_name(folder: Path, arguments: list[str], message: str) -> None:
    result = invoke("compile", "factories_of_app:factory", "-o", "m.pt2", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (folder / "m.pt2").exists()


@pytest.mark.parametrize(("output", "found"), [("m.onnx", "the ending '.onnx'"), (".", "a folder")])
def test_an_output_that_cannot_be_is_told_before_anything_is_built(folder: Path, output: str, found: str) -> None:
    result = invoke("compile", "factories_of_app:raises", "-o", output)
    assert result.exit_code == 2
    assert f"found {found}" in result.stderr


def test_a_folder_that_is_not_there_is_told_before_anything_is_built(folder: Path) -> None:
    result = invoke("compile", "factories_of_app:raises", "-o", "nowhere/m.pt2")
    assert result.exit_code == 2
    assert "no folder 'nowhere'" in result.stderr


def test_options_reach_the_backend_as_json_or_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def stop(*args: object, **kwargs: object) -> None:
        seen.update(kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "compile", stop)
    invoke("compile", "factories_of_app:factory", "-o", "m.pt2", "--option", "N=2", "--option", "HINT=LATENCY")
    assert seen["options"] == {"N": 2, "HINT": "LATENCY"}
    assert seen["fallback"] is True


@pytest.mark.parametrize("content", [None, b"", b"not an archive"])
def test_inspect_refuses_what_is_no_program(folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "m.pt2").write_bytes(content)
    result = invoke("inspect", "m.pt2")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "m.pt2" in result.stderr


def test_doctor_tries_every_backend_out() -> None:
    result = invoke("doctor", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert torch.__version__.startswith(told["versions"]["torch"])
    assert {part["name"]: part["state"] for part in told["parts"]} == {"pt2": "works", "openvino": "works"}


def test_doctor_gives_the_command_that_installs_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.report.installation._version", lambda package: "")
    told = json.loads(invoke("doctor", "--json").stdout)
    (openvino,) = [part for part in told["parts"] if part["name"] == "openvino"]
    assert openvino["state"] == "missing"
    assert openvino["note"].endswith("-m pip install 'openvino<2026,>=2025.4'")


def test_doctor_says_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        message = "the library does not start"
        raise RuntimeError(message)

    monkeypatch.setattr(api, "compile", fail)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "RuntimeError: the library does not start" in result.stdout
