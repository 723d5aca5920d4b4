"""The script that does the real check of Torch-TensorRT's hybrids, where neither it nor a GPU is there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import intarsia
from builders.hybrids import hybrid, tensor
from builders.tensorrt import TensorRT, TorchTensorRTModule, compiled, tensorrt, tensorrt_backend

__all__ = ["tensorrt", "tensorrt_backend"]
SCRIPT = Path(__file__).parents[2] / "examples" / "tensorrt_check.py"
CALLS = [(tensor(1, 2, 4),), (tensor(2, 3, 4),)]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, which finds a GPU and torch_tensorrt 2.14."""
    spec: Any = importlib.util.spec_from_file_location("tensorrt_check", SCRIPT)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    monkeypatch.setattr(module, "installed", lambda name: "2.14.0+cu130" if name == "torch_tensorrt" else "")
    return module


def refuse(name: str) -> None:
    raise OSError(f"{name}:\nno symbol")


@pytest.mark.parametrize(
    ("found", "needed"),
    [
        ("", "This check needs torch_tensorrt (pip install torch-tensorrt): it is not installed."),
        ("2.12.1", "This check needs torch_tensorrt 2.13 or newer: 2.12.1 is installed."),
        (
            "2.13.0",
            f"torch_tensorrt 2.13.0 cannot be imported beside torch {torch.__version__}: torch_tensorrt: no symbol",
        ),
    ],
)
def test_one_line_says_what_is_missing(
    found: str, needed: str, check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "installed", lambda name: found if name == "torch_tensorrt" else "")
    monkeypatch.setattr(check, "importlib", SimpleNamespace(import_module=refuse))
    assert check.main([]) == 2
    assert capsys.readouterr().out.splitlines()[1:] == [needed]


@pytest.fixture
def stand_ins(check: Any, tensorrt: TensorRT, tensorrt_backend: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that computes relu on the CPU in the place of what Torch-TensorRT would compile."""

    def compile_relu(model: torch.nn.Module, args: Any, **_: Any) -> torch.fx.GraphModule:
        part = TorchTensorRTModule("ftrt:relu", ["x"], ["output0"], python=True)
        graph = hybrid(lambda g: g.part("_run_on_acc_0", g.placeholder("x")), {"_run_on_acc_0": part})
        return compiled(graph, args, dynamic={0: {0: "rows"}})

    def answer_here(folder: str, calls: Any) -> Any:
        return check.answer(intarsia.load(f"{folder}/model.pt2"), calls)

    monkeypatch.setattr(check, "DEVICE", "cpu")
    monkeypatch.setattr(check, "compile_hybrid", compile_relu)
    monkeypatch.setattr(check, "answer_alone", answer_here)
    monkeypatch.setattr(check, "importlib", SimpleNamespace(import_module=lambda name: None))


@pytest.mark.usefixtures("stand_ins")
def test_what_is_right_is_told_with_what_we_want_to_know(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    relu = {"relu": lambda: check.check_program(torch.nn.ReLU(), CALLS), "damage": check.check_damage}
    monkeypatch.setattr(check, "CHECKS", relu)
    assert check.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "NVIDIA L4" in lines[0]
    assert "torch_tensorrt 2.14.0+cu130" in lines[0]
    told = "['10', 'engine', '0%8%9%0%NVIDIA L4', 'x', 'output0', '0', 'linux_x86_64', '0', '0', '0', '']"
    assert lines[1].startswith(f"relu: right; metadata []; _run_on_acc_0: TRTEngine {told}; 1 partition")
    assert "TensorRT 10.13.3.9 refuses it on this GPU" in lines[2]
    assert lines[3:] == ["Please send us all of this output, from its first line on."]


@pytest.mark.usefixtures("stand_ins")
def test_what_is_wrong_is_told_and_the_rest_goes_on(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"wrong": lambda: check.check_program(torch.nn.Sigmoid(), CALLS), "damage": check.check_damage}
    monkeypatch.setattr(check, "CHECKS", wrong)
    assert check.main([]) == 1
    printed = capsys.readouterr().out
    assert "wrong: wrong; \nTraceback" in printed
    assert "engines='objects': " in printed
    assert "\ndamage: right; " in printed


def test_a_file_that_answers_otherwise_is_wrong(check: Any, stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "answer_alone", lambda folder, calls: [[2 * x for x in args] for args in calls])
    with pytest.raises(AssertionError, match="the file, without Torch-TensorRT"):
        check.check_program(torch.nn.ReLU(), CALLS)


def test_the_python_runtime_is_not_taken_for_right_when_it_was_not_used(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch_tensorrt"
    (package / "lib").mkdir(parents=True)
    for name in ("__init__.py", "lib/libtorchtrt.so"):
        (package / name).touch()
    found = SimpleNamespace(__file__=str(package / "__init__.py"))
    monkeypatch.setattr(check, "importlib", SimpleNamespace(import_module=lambda name: found))
    seen: list[list[str]] = []

    def run(arguments: list[str], environment: dict[str, str]) -> str:
        folder = Path(environment["PYTHONPATH"].partition(":")[0])
        seen.append(sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")))
        return f"engines: right; {runtime}"

    monkeypatch.setattr(check, "run", run)
    runtime = "TRTEngine"
    assert check.check_python_runtime() == "\nengines: right; TRTEngine"
    runtime = "ScriptObject"
    with pytest.raises(RuntimeError, match=r"the C\+\+ runtime was used"):
        check.check_python_runtime()
    assert seen[0] == ["torch_tensorrt/__init__.py"]


def test_versions_that_lose_writes_are_not_asked_for_them(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "installed", lambda name: "2.13.0")
    assert check.check_cache().startswith("left out")
