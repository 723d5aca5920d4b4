"""Engines of inductor in programs and files. One is built for all tests: that takes long."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import intarsia
from intarsia.core.backend import missing_to_rebuild
from intarsia.core.container import EngineContainer
from intarsia.core.registry import find_backend
from intarsia.engines.inductor.source import unpack_program
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineRefused, FormatError, PositionError


class Lookup(torch.nn.Module):
    """Reads a table at given positions and at positions that it works out, through a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(50, 8))
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.nn.functional.embedding(ids, self.table)
        moved = self.table.index_select(0, (steps * 2 + 1).long())
        return torch.nn.functional.gelu(self.layer(rows)), moved.t()


CALL = (torch.randint(0, 50, (4, 300)), torch.arange(20.0))


@pytest.fixture(scope="module")
def model() -> Lookup:
    torch.manual_seed(0)
    return Lookup().eval()


@pytest.fixture(scope="module")
def hybrid(model: Lookup) -> torch.fx.GraphModule:
    dims = {"ids": {0: Dim("rows", min=1, max=64)}, "steps": None}
    return intarsia.compile(model, CALL, dynamic_shapes=dims, backend="inductor", fallback=False)


@pytest.fixture(scope="module")
def file(hybrid: torch.fx.GraphModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inductor") / "lookup.pt2"
    intarsia.save(hybrid, path)
    return path


@pytest.fixture(scope="module")
def container(hybrid: torch.fx.GraphModule) -> EngineContainer:
    program = intarsia.export(hybrid)
    (data,) = [value for value in program.constants.values() if value.dtype is torch.uint8]
    return EngineContainer.unpack(data.numpy().data)


@torch.no_grad()
def test_a_program_computes_as_the_model(hybrid: torch.fx.GraphModule, model: Lookup) -> None:
    for ids in (CALL[0], CALL[0][:1], torch.randint(0, 50, (64, 300))):
        for got, want in zip(hybrid(ids, CALL[1]), model(ids, CALL[1]), strict=True):
            torch.testing.assert_close(got, want)
    assert intarsia.verify(intarsia.export(hybrid), model, inputs=[(CALL, {})]).ok


@pytest.mark.parametrize("wrong", ["given", "computed"])
def test_a_position_outside_is_one_error_and_not_the_end_of_the_process(
    hybrid: torch.fx.GraphModule, wrong: str
) -> None:
    ids, steps = CALL[0].clone(), CALL[1].clone()
    if wrong == "given":
        ids[2, 250] = 50
    else:
        steps[19] = 25
    operator = "embedding" if wrong == "given" else "index_select"
    with torch.no_grad(), pytest.raises(PositionError, match=f"outside of dimension 0 .*{operator}.*size 50"):
        hybrid(ids, steps)


@torch.no_grad()
def test_a_file_is_loaded_where_native_code_is_allowed(file: Path, model: Lookup) -> None:
    for options in ({}, {"engines": "rebuild"}, {"allow": "pickle"}):
        with pytest.raises(FormatError, match=r"of inductor, which is native code.*allow=\{\"native\"\}"):
            intarsia.load(file, **options)
    with pytest.raises(FormatError, match=r"of inductor, which is native code.*--allow native"):
        intarsia.verify(file, model)
    assert intarsia.verify(file, model, inputs=[(CALL, {})], allow={"native"}).ok
    loaded = intarsia.load(file, allow={"native"})
    torch.testing.assert_close(loaded(*CALL)[0], model(*CALL)[0])


_RUN = """
import os, sys, tempfile
os.environ["PATH"] = ""
import torch, intarsia
before = set(os.listdir(tempfile.gettempdir()))
loaded = intarsia.load(sys.argv[1], allow={"native"})
assert not any("wrapper" in line for line in open("/proc/self/maps")), "opened before the first call"
torch.save(loaded(*torch.load(sys.argv[2])), sys.argv[3])
assert any("wrapper" in line for line in open("/proc/self/maps"))
left = {name for name in set(os.listdir(tempfile.gettempdir())) - before if "inductor" in name or "intarsia" in name}
assert not left, left
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@torch.no_grad()
def test_it_runs_without_a_compiler_and_leaves_no_file(file: Path, model: Lookup, tmp_path: Path) -> None:
    torch.save(CALL, tmp_path / "call")
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", _RUN, str(file), str(tmp_path / "call"), str(tmp_path / "answer")]
    run = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    torch.testing.assert_close(torch.load(tmp_path / "answer")[0], model(*CALL)[0])
    assert list(folder.iterdir()) == []


def test_inspect_and_check_open_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from intarsia.cli.application import app

    monkeypatch.setattr("intarsia.core.compiled.model.open_runner", None)
    for command in (["inspect", str(file)], ["check", str(file)], ["diff", str(file), str(file)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(app, ["run", str(file)])
    assert "--allow native" in refused.stderr


def test_the_source_is_the_program(container: EngineContainer, model: Lookup) -> None:
    source = container.source
    assert source is not None
    with torch.no_grad():
        outputs = unpack_program(source).module(check_guards=False)(*CALL)
        torch.testing.assert_close(max(outputs, key=torch.numel), model(*CALL)[0])
    assert b"/test_inductor" not in bytes(source), "it tells where the code was"


def test_a_payload_that_does_not_fit_is_told(container: EngineContainer, tmp_path: Path) -> None:
    backend = find_backend("inductor")
    payload = container.payload
    assert payload is not None
    cut = tmp_path / "cut.pt2"
    with zipfile.ZipFile(cut, "w") as archive:
        archive.writestr("cut/data/aotinductor/model/x.so", b"\x7fELF is not enough")
    for data in (b"no archive", cut.read_bytes()):
        with pytest.raises(EngineRefused, match=r"inductor package: found that torch .* refuses it"):
            backend.load(memoryview(data), {})
    assert backend.accepts(container.backend_version, container.target) is None
    assert "avx9" in (backend.accepts(container.backend_version, f"{container.target} avx9") or "")
    assert "no CUDA device" in (
        backend.accepts(container.backend_version, f"{container.target} + cuda sm_90") or ""
    ) or (torch.cuda.is_available())


def test_loading_needs_no_compiler_and_rebuilding_does() -> None:
    backend = find_backend("inductor")
    assert missing_to_rebuild(backend) is None
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert backend.available() is None
        assert "no C++ compiler" in (missing_to_rebuild(backend) or "")


def test_an_input_elsewhere_is_refused(container: EngineContainer) -> None:
    assert container.payload is not None
    engine = find_backend("inductor").load(container.payload, container.options)
    with pytest.raises(ArgumentError, match=r"engine input 0: found a tensor on meta, expected one on cpu"):
        engine([CALL[0].to("meta"), CALL[1]])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_autotun": True}, "no setting of that name.*Did you mean 'max_autotune'"),
        ({"aot_inductor.package": False}, "one that intarsia sets"),
        ({"max_autotune": [1]}, "a value of type list"),
    ],
)
def test_options_are_judged_first(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=rf"inductor option.*{told}"):
        intarsia.compile(torch.nn.ReLU(), (torch.ones(2),), backend="inductor", options=options)


def test_what_stays_in_torch() -> None:
    backend = find_backend("inductor")

    def reasons(function: Any, *args: torch.Tensor) -> list[str | None]:
        class Calls(torch.nn.Module):
            def forward(self, *args: torch.Tensor) -> Any:
                return function(*args)

        program = torch.export.export(Calls(), args).run_decompositions({})
        nodes = [node for node in program.graph.nodes if "aten" in str(node.target) and "assert" not in node.name]
        return [backend.supports(node) for node in nodes]

    x = torch.ones(4)
    assert "draws random numbers" in reasons(lambda x: x + torch.rand_like(x), x)
    assert "has an output size that depends on data" in reasons(torch.nonzero, x)
    assert "reads at positions that inductor does not check safely" in reasons(lambda x: x.take(torch.tensor([1])), x)
    assert reasons(lambda x: torch.nn.functional.softmax(x, 0) + x.double().sum(), x) == [None] * 4


def test_a_program_that_torch_cannot_compile_is_a_failed_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        message = "no lowering\nand more"
        raise NotImplementedError(message)

    monkeypatch.setattr("intarsia.core.compiled.compiling.compile_package", fail)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(EngineBuildFailed, match="refuses the program: NotImplementedError: no lowering"):
        find_backend("inductor").build(program, {})
