"""What is told before any native code is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.errors import EngineUnavailable
from intarsia.formats.pte import combination


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
