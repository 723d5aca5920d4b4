"""Whatever is done with a hybrid of Torch-TensorRT but running it needs neither library, and no GPU."""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import intarsia
from builders.hybrids import hybrid, tensor
from builders.tensorrt import TorchTensorRTModule, compiled
from intarsia.cli.application import app

pytestmark = pytest.mark.usefixtures("runtime", "tensorrt_backend", "ban")


class Ban(MetaPathFinder):
    def find_spec(self, fullname: str, *_: Any) -> None:
        assert fullname.partition(".")[0] not in ("tensorrt", "torch_tensorrt"), f"{fullname} is imported"


@pytest.fixture
def ban(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"tensorrt", "torch_tensorrt"} & sys.modules.keys()
    monkeypatch.setattr(sys, "meta_path", [Ban(), *sys.meta_path])


@pytest.mark.parametrize("python", [False, True])
def test_nothing_is_imported_before_an_engine_runs(python: bool, tmp_path: Path) -> None:
    part = TorchTensorRTModule("ftrt:relu", ["x"], ["output0"], python=python)
    subject = compiled(hybrid(lambda g: g.part("acc", g.placeholder("x")), {"acc": part}), (tensor(1, 2, 4),))
    program = intarsia.export(subject)
    intarsia.export(subject, engines="bytes")
    first, second = tmp_path / "first.pt2", tmp_path / "second.pt2"
    intarsia.save(program, first)
    intarsia.save(intarsia.load(first, verify=True), second)
    assert intarsia.load(second).exported_program.graph_module.code
    inspected = CliRunner().invoke(app, ["inspect", str(second), "--json"])
    assert [engine["backend"] for engine in json.loads(inspected.stdout)["engines"]] == ["tensorrt"]
    checked = CliRunner().invoke(app, ["check", str(second)])
    assert checked.exit_code == 1
    assert "TensorRT is not installed (install the extra intarsia[tensorrt])" in checked.output


def test_the_missing_library_is_named_when_an_engine_runs() -> None:
    part = TorchTensorRTModule("ftrt:relu", ["x"], ["output0"], python=True)
    subject = compiled(hybrid(lambda g: g.part("acc", g.placeholder("x")), {"acc": part}), (tensor(1, 2, 4),))
    sys.meta_path.pop(0)
    with pytest.raises(intarsia.errors.EngineUnavailable, match=r"install.*intarsia\[tensorrt\]|Install the extra"):
        intarsia.export(subject).module()(torch.ones(2, 4))
