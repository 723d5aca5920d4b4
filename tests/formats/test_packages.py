"""Where operators come from."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import intarsia
from intarsia.formats import packages
from intarsia.formats.loading import UnknownOperator
from intarsia.formats.packages import packages_of

SOURCE = """
import torch
library = torch.library.Library("hostile_test", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
library.impl("twice", lambda x: torch.empty_like(x), "Meta")
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "operators_of_a_test.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    module.library._destroy()
    del sys.modules[path.stem]


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.hostile_test.twice(x) + 1


def test_a_file_tells_which_package_has_its_operators(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = torch.export.export(Twice(), (torch.ones(2),))
    assert packages_of(program) == {"hostile_test": "operators_of_a_test"}
    monkeypatch.setattr(packages, "packages_distributions", lambda: {"operators_of_a_test": ["pytest"]})
    found = packages_of(program)["hostile_test"]
    assert found == f"pytest {pytest.__version__}"
    intarsia.save(program, tmp_path / "a.pt2")
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        manifest = json.loads(archive.read("archive/extra/intarsia_manifest.json"))
    assert manifest["methods"]["forward"]["packages"] == {"hostile_test": found}
    assert torch.equal(intarsia.load(tmp_path / "a.pt2")(torch.ones(2)), torch.full((2,), 3.0))
    module.library._destroy()
    with pytest.raises(UnknownOperator, match=rf"hostile_test::twice \(of {found}\)"):
        intarsia.load(tmp_path / "a.pt2")


def test_operators_of_torch_and_of_intarsia_need_no_package() -> None:
    assert packages_of(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))) == {}
