"""Whether a file runs here, told from its manifest alone, of files that are made for other machines."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builders.files import save_pt2
from builders.standin import StandInBackend, engine_tensor, standin
from intarsia import _torch, _torch_files
from intarsia.errors import FormatError
from intarsia.formats import fitness, saving
from intarsia.formats.fitness import check_fitness
from intarsia.formats.manifest import Manifest
from intarsia.formats.saving import save_methods

__all__ = ["standin"]
SIGNATURE = "(f32[3]) -> (f32[3])"


class Calls(torch.nn.Module):
    def __init__(self, engine: torch.Tensor) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.intarsia.run_engine.default([x], self.engine, SIGNATURE)[0]


def program(name: str = "standin_0", *, source: str | None = None) -> torch.export.ExportedProgram:
    engine = engine_tensor("double", SIGNATURE, name=name, source=source)
    return torch.export.export(Calls(engine), (torch.ones(3),))


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standin: StandInBackend) -> Callable[..., Path]:
    """Save a program of one engine with some facts of its manifest, and of its engine, changed."""

    def make(source: str | None = None, engine: dict[str, Any] | None = None, **facts: Any) -> Path:
        describe = saving.describe

        def describe_otherwise(*args: Any, **counts: Any) -> Manifest:
            manifest = describe(*args, **counts)
            engines = tuple(dataclasses.replace(entry, **(engine or {})) for entry in manifest.engines)
            return dataclasses.replace(manifest, engines=engines, **facts)

        monkeypatch.setattr(saving, "describe", describe_otherwise)
        save_pt2(program(source=source), tmp_path / "model.pt2", facts={})
        return tmp_path / "model.pt2"

    return make


def test_a_file_of_this_machine_runs(save: Callable[..., Path]) -> None:
    found = check_fitness(save())
    assert (found.verdict, found.obstacles, found.rebuilt) == ("runs", (), {})
    assert found.methods["forward"].torch_version == torch.__version__


def test_an_engine_of_another_version_is_rebuilt(save: Callable[..., Path]) -> None:
    found = check_fitness(save("double", {"backend_version": "0.9"}))
    assert found.verdict == "runs after rebuilding"
    assert found.rebuilt == {"engine 'standin_0'": "version 0.9 built it for anything"}


def test_an_engine_without_a_compiled_form_is_made_when_first_called(save: Callable[..., Path]) -> None:
    found = check_fitness(save("double", {"payload_bytes": 0}))
    assert (found.verdict, found.obstacles, found.rebuilt) == ("runs", (), {})
    assert found.notes == ("1 engine has no compiled form, and is made when first called",)
    found = check_fitness(save(None, {"payload_bytes": 0}))
    assert found.obstacles == ("engine 'standin_0': it has neither a compiled nor a portable form",)


def test_engines_of_native_code_are_noted(
    save: Callable[..., Path], standin: StandInBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin, "native", True, raising=False)
    found = check_fitness(save("double"))
    assert found.verdict == "runs"
    (note,) = found.notes
    assert note.startswith("it holds native code (engines of standin): load and run take it with leave only, ")


def test_an_engine_that_cannot_be_rebuilt_is_an_obstacle(save: Callable[..., Path]) -> None:
    found = check_fitness(save(None, {"target": "elsewhere"}))
    assert found.verdict == "cannot run"
    assert found.obstacles == (
        "engine 'standin_0': version 1.0 built it for elsewhere, and it has no portable form to be rebuilt from",
    )


def test_a_missing_library_is_an_obstacle(save: Callable[..., Path], standin: StandInBackend) -> None:
    standin.missing = "the stand-in is not installed"
    assert check_fitness(save("double")).obstacles == ("engine 'standin_0': the stand-in is not installed",)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"payload_bytes": 0}, "it is made at its first call, and this takes more: no hammer"),
        ({"target": "elsewhere"}, "version 1.0 built it for elsewhere, and to rebuild it takes more: no hammer"),
    ],
)
def test_what_only_rebuilding_needs_is_an_obstacle_where_an_engine_has_to_be_rebuilt(
    save: Callable[..., Path],
    standin: StandInBackend,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, object],
    told: str,
) -> None:
    monkeypatch.setattr(standin, "missing_to_rebuild", lambda: "no hammer", raising=False)
    assert check_fitness(save("double")).verdict == "runs"
    found = check_fitness(save("double", changed))
    assert found.verdict == "cannot run"
    assert found.obstacles == (f"engine 'standin_0': {told}",)


@pytest.mark.parametrize("backend", ["nowhere", "broken"])
def test_a_missing_backend_is_an_obstacle(save: Callable[..., Path], backend: str) -> None:
    (obstacle,) = check_fitness(save("double", {"backend": backend})).obstacles
    assert obstacle.startswith(f"engine 'standin_0': backend '{backend}' is not there (")


@pytest.mark.parametrize("package", ["no-such-package 1.2", "no_such_module", "no_such_package.module", "os.path", ""])
def test_a_missing_package_of_operators_is_an_obstacle(save: Callable[..., Path], package: str) -> None:
    found = check_fitness(save(packages={"aten": f"torch {torch.__version__}", "mine": package}))
    (obstacle,) = found.obstacles
    assert (found.verdict, found.notes) == ("cannot run", ())
    assert obstacle == f"operators 'mine::...' need {package}, which is not installed"


@pytest.mark.parametrize("package", [f"pytest {pytest.__version__}", f"pytest {pytest.__version__}+here", "numpy"])
def test_an_installed_package_of_operators_is_none(save: Callable[..., Path], package: str) -> None:
    found = check_fitness(save(packages={"mine": package}))
    assert (found.verdict, found.notes) == ("runs", ())


@pytest.mark.parametrize("other", ["0.1", "999", "no version"])
def test_another_version_of_a_package_of_operators_is_told(save: Callable[..., Path], other: str) -> None:
    found = check_fitness(save(packages={"mine": f"pytest {other}"}))
    assert found.verdict == "runs"
    (note,) = found.notes
    assert note.startswith(
        f"operators 'mine::...' were those of pytest {other}, and pytest {pytest.__version__} is installed: "
    )


def test_another_byte_order_is_an_obstacle(save: Callable[..., Path]) -> None:
    (obstacle,) = check_fitness(save(byte_order="middle")).obstacles
    assert obstacle == f"its tensors are in middle byte order, and this machine's is {sys.byteorder}"


def test_a_graph_in_another_schema_is_an_obstacle(save: Callable[..., Path]) -> None:
    found = check_fitness(save(torch_version="9.0", graph_schema="99.1"))
    (obstacle,) = found.obstacles
    assert obstacle.startswith("torch 9.0 wrote its graph in version 99.1 of torch's schema, and torch ")
    assert found.verdict == "cannot run"


def test_another_torch_of_the_same_schema_is_none(save: Callable[..., Path]) -> None:
    major = _torch.graph_schema().version[0]
    assert check_fitness(save(torch_version="9.0", graph_schema=f"{major}.999")).verdict == "runs"


def test_the_schema_is_read_from_the_file_of_torch() -> None:
    assert _torch_files.read_schema_version() == _torch.graph_schema().version


@pytest.mark.parametrize("file", ["torch/__init__.py", "torch/no_such_file.py"])
def test_where_the_file_of_torch_tells_nothing_torch_is_asked(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    class Distribution:
        def locate_file(self, _: str) -> Path:
            return Path(torch.__file__).parents[1] / file

    monkeypatch.setattr(_torch_files, "distribution", lambda _: Distribution())
    assert check_fitness(save(torch_version="9.0")).verdict == "runs"
    assert check_fitness(save(torch_version="9.0", graph_schema="99.1")).verdict == "cannot run"


def test_without_torch_nothing_runs(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = save()

    def missing(name: str) -> str:
        raise fitness.PackageNotFoundError(name)

    monkeypatch.setattr(fitness, "version", missing)
    assert check_fitness(path).obstacles == ("torch is not installed",)


def test_engines_of_one_name_are_told_apart_by_their_methods(
    tmp_path: Path, standin: StandInBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin, "accepts", lambda *_: "another processor", raising=False)
    methods = {
        "prefill": program(source="double"),
        "decode": program(source="repeat"),
        "again": program(source="double"),
    }
    save_methods(methods, tmp_path / "model.pt2", facts={name: {} for name in methods})
    found = check_fitness(tmp_path / "model.pt2")
    assert len(found.rebuilt) == 2
    assert "engine 'standin_0' of method 'decode'" in found.rebuilt


def test_a_newer_format_is_an_obstacle(save: Callable[..., Path]) -> None:
    found = check_fitness(save(format_version=99))
    (obstacle,) = found.obstacles
    assert obstacle.startswith("it has format version 99, written by intarsia ")
    assert found.methods == {}


def test_a_file_of_another_tool_does_not_say(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), tmp_path / "model.pt2")
    with pytest.raises(
        FormatError, match="of another tool, which does not say what it needs, expected a file that intarsia"
    ):
        check_fitness(tmp_path / "model.pt2")


def test_a_module_that_a_file_names_is_found_and_not_imported(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "operators_here.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    path = save(packages={"mine": "operators_here"})
    assert check_fitness(path).verdict == "runs"
    (tmp_path / "operators_here.py").unlink()
    assert check_fitness(path).verdict == "cannot run"


def test_neither_torch_nor_a_library_is_imported(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    import intarsia

    hybrid = intarsia.compile(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
    intarsia.save(hybrid, tmp_path / "model.pt2")
    code = """
import sys
from pathlib import Path
from intarsia.formats.fitness import check_fitness
print(check_fitness(Path(sys.argv[1])).verdict, sorted({"torch", "numpy", "openvino"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt2")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "runs []\n"
