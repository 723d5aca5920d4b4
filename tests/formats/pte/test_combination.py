"""What is told before any native code is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.cli import doctor
from intarsia.errors import EngineUnavailable
from intarsia.formats.pte import combination
from intarsia.formats.pte.library import import_executorch
from intarsia.report import installation
from intarsia.report.installation import InstallationFacts, PartFacts


@pytest.mark.parametrize(
    ("executorch", "openvino", "told"),
    [
        ("", "2025.4.1", "found no package executorch"),
        ("1.5.1", "2026.1.0", "found OpenVINO 2026.1.0 beside executorch 1.5.1, which dies of its engines"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_extra_that_does(
    executorch: str, openvino: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions = {"executorch": executorch, "openvino": openvino}
    monkeypatch.setattr(combination, "_version", versions.__getitem__)
    (tmp_path / "model.pte").write_bytes(b"\x1c\0\0\0ET12" + bytes(100))
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    for call in (lambda: intarsia.save(program, tmp_path / "new.pte"), lambda: intarsia.load(tmp_path / "model.pte")):
        with pytest.raises(EngineUnavailable, match=told) as caught:
            call()
        assert "intarsia[pte]" in caught.value.fix
    assert not (tmp_path / "new.pte").exists()


def test_versions_that_go_together_are_taken() -> None:
    assert combination.find_fault(executorch="1.5.1", openvino="2025.4.1") == ""
    assert combination.find_fault(executorch="1.5.1", openvino="") == ""


def test_a_pair_that_nobody_has_seen_crash_is_taken_and_said_to_be_untried() -> None:
    versions = {"executorch": "1.6.0", "openvino": "2026.4.1"}
    assert combination.find_fault(**versions) == ""
    told = "intarsia was tried with executorch 1.5.1, not with 1.6.0 and openvino 2025.4, not with 2026.4.1."
    assert combination.find_untried(**versions) == told
    assert combination.find_untried(executorch="1.5.1", openvino="2025.4.1-20426") == ""


def test_the_doctor_tells_what_crashes_and_what_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(executorch: str, openvino: str) -> PartFacts:
        versions = {"executorch": executorch, "openvino": openvino}
        monkeypatch.setattr(combination, "_version", versions.__getitem__)
        monkeypatch.setattr(installation, "installed_versions", lambda names: {n: versions.get(n, "1") for n in names})
        return doctor._examine_pte()

    facts = examine("1.5.1", "2026.4.1")
    assert (facts.state, facts.note) == (
        "broken",
        "OpenVINO 2026.4.1 beside executorch 1.5.1, which dies of its engines",
    )
    assert not InstallationFacts({}, (facts,)).is_sound
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    facts = examine("1.6.0", "2025.4.1")
    assert (facts.state, facts.note) == ("works", "intarsia was tried with executorch 1.5.1, not with 1.6.0.")


def test_what_executorch_refuses_is_told_with_the_versions_that_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combination, "_version", {"executorch": "9.0", "openvino": ""}.__getitem__)
    monkeypatch.setitem(sys.modules, "executorch", None)
    monkeypatch.setitem(sys.modules, "executorch.exir", None)  # another test may have imported it
    with pytest.raises(EngineUnavailable, match=r"cannot be imported .*executorch 1.5.1, not with 9.0\."):
        import_executorch("exir")
