"""The commands from end to end, in this process: what they print, write and answer."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from typer.testing import CliRunner, Result

from intarsia import api
from intarsia.cli import main
from intarsia.cli.application import READER_GONE, app
from intarsia.errors import FormatError
from intarsia.formats.archive.writer import Writer

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

def loud():
    print("from the factory")
    return factory()

def little():
    class Sorted(torch.nn.Module):
        def forward(self, x):
            return torch.relu(torch.sort(x.double(), -1).values)

    return Sorted(), (torch.ones(2, 8),), None, None
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


@pytest.mark.parametrize("place", [0, 5])
def test_debug_shows_the_traceback_wherever_it_stands(folder: Path, place: int) -> None:
    arguments = ["compile", "nowhere_at_all:factory", "-o", "m.pt2", "--force"]
    result = invoke(*arguments[:place], "--debug", *arguments[place:])
    assert result.exit_code == 2
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.splitlines()[-1].startswith("error: target 'nowhere_at_all:factory': found no module")


def test_an_error_that_nobody_foresaw_is_one_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        message = "no such axis\nand more"
        raise IndexError(message)

    monkeypatch.setattr(api, "compile", fail)
    result = invoke("compile", "factories_of_app:factory", "-o", "m.pt2")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert (
        "error: intarsia: found IndexError (no such axis), expected none. This is a fault of intarsia." in result.stderr
    )
    assert "--debug" in result.stderr


def test_an_interruption_is_one_line_and_exit_code_130(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    (folder / "m.pt2").write_bytes(b"old")
    monkeypatch.setattr(Writer, "write", stop)
    result = invoke(
        "compile", "factories_of_app:factory", "-o", "m.pt2", "--force", "--torch-executed-op", "aten.linear"
    )
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted: no file is left half-written"
    assert "Traceback" not in result.output
    assert (folder / "m.pt2").read_bytes() == b"old"
    assert [path for path in folder.iterdir() if path.suffix == ".pt2"] == [folder / "m.pt2"]


def test_interruption_while_the_commands_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(MetaPathFinder):
        def find_spec(self, fullname: str, *_: object) -> None:
            if fullname == "intarsia.cli.application":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "intarsia.cli.application")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_version_and_help_do_not_import_torch() -> None:
    code = """
import sys
from typer.testing import CliRunner
from intarsia.cli.application import READER_GONE, app
from intarsia.errors import FormatError
for arguments in (["--version"], ["--help"], ["compile", "--help"], ["export", "--help"]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    print(result.output)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"intarsia {version('intarsia')}\ntorch {version('torch')}\n" in done.stdout


def test_help_names_every_command() -> None:
    told = invoke("--help").stdout
    for command in ("compile", "export", "inspect", "doctor"):
        assert f"\n  {command} " in told
    assert "Exit codes: 0 right, 1 checked and wrong, 2 cannot be done as asked," in told


def test_a_mistyped_command_or_option_is_answered_with_the_near_one() -> None:
    for arguments, near in ((["complie"], "'compile'"), (["compile", "--bakcend", "x"], "--backend")):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert near in result.stderr


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
        (["--backend", "openvnio"], "Did you mean 'openvino'?"),
        (["--torch-executed-op", "aten.linaer"], "Did you mean 'aten.linear.default'?"),
        (["--option", "PERFORMANCE_HNT=LATENCY"], "Did you mean 'PERFORMANCE_HINT'?"),
        (["--option", "N=1", "--option", "N=2"], "--option N: found two values, 1 and 2, expected one"),
        (["--torch-executed-op", "aten.no_such_operator"], "aten.no_such_operator"),
        (["--option", "no_equals_sign"], "NAME=VALUE"),
        (["--option", "=3"], "NAME=VALUE"),
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
    assert "nowhere/m.pt2: found no folder there" in result.stderr
    assert "calling" not in result.stderr


def test_an_unknown_backend_is_told_before_the_factory_is_called(folder: Path) -> None:
    result = invoke("compile", "factories_of_app:raises", "-o", "m.pt2", "--backend", "openvnio")
    assert result.exit_code == 2
    assert "calling" not in result.stderr


def test_a_wrong_option_of_the_backend_is_told_before_the_factory_is_called(folder: Path) -> None:
    pytest.importorskip("openvino")
    result = invoke("compile", "factories_of_app:raises", "-o", "m.pt2", "--option", "PERFORMANCE_HINT=SLOW")
    assert result.exit_code == 2
    assert "OpenVINO option 'PERFORMANCE_HINT': found the value 'SLOW'" in result.stderr
    assert "calling" not in result.stderr


def test_a_file_that_exists_is_replaced_only_by_force(folder: Path) -> None:
    pytest.importorskip("openvino")
    (folder / "m.pt2").write_bytes(b"old")
    refused = invoke("compile", "factories_of_app:factory", "-o", "m.pt2")
    assert refused.exit_code == 2
    assert "m.pt2: found a file that exists" in refused.stderr
    assert "--force" in refused.stderr
    assert "calling" not in refused.stderr
    assert (folder / "m.pt2").read_bytes() == b"old"
    assert invoke("compile", "factories_of_app:factory", "-o", "m.pt2", "--force").exit_code == 0
    assert api.load(folder / "m.pt2").ledger is not None


def test_compile_as_json_tells_coverage_and_nothing_else(folder: Path) -> None:
    pytest.importorskip("openvino")
    result = invoke("compile", "factories_of_app:loud", "-o", "m.pt2", "--json", "--torch-executed-op", "aten.softmax")
    told = json.loads(result.stdout)
    assert told["file"] == "m.pt2"
    assert told["size_bytes"] == (folder / "m.pt2").stat().st_size
    assert told["engines"] == ["openvino_0"]
    assert [entry["operator"] for entry in told["operators"]] == ["aten.linear.default", "aten.softmax.int"]
    assert told["operators"][1]["why"] == "named in torch_executed_ops"
    assert "from the factory" in result.stderr


def test_compile_says_plainly_when_engines_got_little(folder: Path) -> None:
    pytest.importorskip("openvino")
    result = invoke("compile", "factories_of_app:little", "-o", "m.pt2")
    assert result.exit_code == 0, result.output
    assert "Engines got little of this model: 0 of 3 operators" in result.stdout


def test_options_reach_the_backend_as_json_or_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    seen = {}

    def stop(*args: object, **kwargs: object) -> None:
        seen.update(kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "compile", stop)
    given = ("--option", "INFERENCE_NUM_THREADS=2", "--option", "PERFORMANCE_HINT = LATENCY")
    invoke("compile", "factories_of_app:factory", "-o", "m.pt2", *given)
    assert seen["options"] == {"INFERENCE_NUM_THREADS": 2, "PERFORMANCE_HINT": "LATENCY"}
    assert seen["fallback"] is True


@pytest.mark.parametrize("command", [("inspect",), ("export", "-o", "new.pt2")])
@pytest.mark.parametrize("content", [None, b"", b"not an archive", b"\x08\x0a\x12\x07pytorch"])
def test_a_file_that_is_no_program_is_refused_as_load_does(
    folder: Path, content: bytes | None, command: tuple[str, ...]
) -> None:
    if content is not None:
        (folder / "m.pt2").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        api.load("m.pt2")
    result = invoke(*command, "m.pt2")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"error: {caught.value}"
    assert not (folder / "new.pt2").exists()


def test_inspect_says_when_another_tool_made_the_file(folder: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "m.pt2")
    assert "made with another tool" in invoke("inspect", "m.pt2").stdout


def test_doctor_tries_every_backend_out() -> None:
    result = invoke("doctor", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert torch.__version__.startswith(told["versions"]["torch"])
    states = {part["name"]: part["state"] for part in told["parts"]}
    assert states.pop("pte") == ("missing" if find_spec("executorch") is None else "works")
    assert {states[name] for name in ("pt2", "inductor", "openvino")} == {"works"}
    assert "broken" not in states.values()


@pytest.fixture
def openvino_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend that takes long to try."""
    monkeypatch.setattr("intarsia.core.registry.available_backends", lambda: ("openvino",))


def test_doctor_says_that_a_compiler_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.core.registry.available_backends", lambda: ("inductor",))
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        told = json.loads(invoke("doctor", "--json").stdout)
    (inductor,) = [part for part in told["parts"] if part["name"] == "inductor"]
    assert inductor["state"] == "missing"
    assert inductor["note"].startswith("found no C++ compiler (")
    assert "expected one, to compile with; none is needed to run what was compiled. Install g++" in inductor["note"]


@pytest.mark.usefixtures("openvino_alone")
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
    monkeypatch.setenv("COLUMNS", "200")
    result = invoke("doctor")
    assert result.exit_code == 1, result.output
    assert "RuntimeError: the library does not start" in result.stdout


def test_an_interruption_of_a_command_that_writes_nothing_speaks_of_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "load_pt2", stop)
    result = invoke("inspect", "m.pt2")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "interrupted")


def test_inspect_tells_the_coverage_that_the_file_holds(folder: Path) -> None:
    arguments = ["compile", "factories_of_app:factory", "-o", "m.pt2", "--json"]
    compiled = json.loads(invoke(*arguments).stdout)
    shown = json.loads(invoke("inspect", "m.pt2", "--json").stdout)["coverage"]
    assert shown == {key: compiled[key] for key in shown} != {}
    text = invoke("inspect", "m.pt2").stdout
    assert "operators in" in text
    assert all(operator["operator"] in text for operator in shown["operators"])
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "theirs.pt2")
    assert json.loads(invoke("inspect", "theirs.pt2", "--json").stdout)["coverage"] is None


@pytest.mark.parametrize(("mode", "told"), [("train", True), ("eval", False)])
def test_a_model_in_training_mode_is_told_where_it_makes_a_difference(folder: Path, mode: str, told: bool) -> None:
    text = f"""
import torch

def dropping():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).{mode}(), (torch.ones(3, 2),), None, None

def plain():
    return torch.nn.Linear(2, 2).{mode}(), (torch.ones(3, 2),), None, None

class Always(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x + 1)

def always():
    return Always().eval(), (torch.ones(3, 2),), None, None
"""
    (folder / f"modes_{mode}.py").write_text(text)
    for factory in ("dropping", "plain", "always"):
        result = invoke("compile", f"modes_{mode}.py:{factory}", "-o", "m.pt2", "--force")
        assert result.exit_code == 0, result.output
        assert ("captured in training mode" in result.stdout) is (told and factory == "dropping")


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["compile", "nowhere:factory", "-o", "m.pt2"]])
def test_reader_that_goes_away_ends_a_command_as_sigpipe_would(arguments: list[str], tmp_path: Path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "intarsia", *arguments]
    answer = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert answer.returncode == READER_GONE


@pytest.mark.usefixtures("openvino_alone")
def test_output_without_room_is_told_and_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch, folder: Path):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.modules["intarsia.cli.doctor"].typer, "echo", refuse)
    answer = invoke("doctor", "--json")
    assert answer.exit_code == 2
    assert answer.stderr.splitlines()[-1].startswith(
        "error: standard output: found that it cannot be written (No space"
    )
