"""AOTInductor packages of whole programs. Three are compiled for all tests: that takes long."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch.utils._pytree as pytree
from torch.export import Dim
from typer.testing import CliRunner

import intarsia
from builders.hostile import read_members
from intarsia.cli.application import app
from intarsia.errors import (
    ArgumentError,
    ConventionError,
    EngineRefused,
    EngineUnavailable,
    FormatError,
    MutationError,
    PositionError,
    StateError,
)
from intarsia.runtime.compiled import CompiledMethods, CompiledProgram


class Decoder(torch.nn.Module):
    """Counts its calls, fills a cache at positions, writes an input, and has state of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(60, 8))
        self.register_buffer("doubled", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor, *, log: torch.Tensor, scale: int = 2) -> dict[str, Any]:
        self.calls.add_(1)
        y = torch.nn.functional.gelu(self.layer(x))
        self.cache.index_copy_(0, at, y)
        self.doubled.mul_(2)
        log.add_(y.sum())
        return {"y": y * scale + self.calls, "rest": [self.cache.sum(0), None, self.doubled + 0], "x": x}


def arguments(rows: int = 3) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    return (torch.randn(rows, 8), torch.randperm(60)[:rows]), {"log": torch.zeros(4)}


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder().eval()


@pytest.fixture(scope="module")
def file(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid with an OpenVINO engine and torch operators."""
    args, kwargs = arguments()
    rows = Dim("rows", min=1, max=60)
    dims = {"x": {0: rows}, "at": {0: rows}, "log": None}
    hybrid = intarsia.compile(
        copy.deepcopy(model), args, kwargs, dynamic_shapes=dims, backend="openvino", torch_executed_ops={"aten.gelu"}
    )
    path = tmp_path_factory.mktemp("aoti") / "decoder.pt2"
    intarsia.save(hybrid, path, format="aoti")
    return path


@pytest.fixture
def loaded(file: Path) -> CompiledProgram:
    program = intarsia.load(file, allow={"native"})
    assert isinstance(program, CompiledProgram)
    return program


def assert_same(actual: Any, expected: Any) -> None:
    flat, spec = pytree.tree_flatten(actual)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for got, want in zip(flat, wanted, strict=True):
        torch.testing.assert_close(got, want) if isinstance(want, torch.Tensor) else None


@torch.no_grad()
def test_calls_and_state_are_those_of_the_model(loaded: CompiledProgram, model: Decoder) -> None:
    eager = copy.deepcopy(model)
    for rows in (3, 1, 60, 2):
        args, kwargs = arguments(rows)
        given = {"log": torch.zeros(8)[::2]}  # its memory is not row-major, and it is written
        assert_same(loaded(*args, **given), eager(*args, **kwargs))
        torch.testing.assert_close(given["log"], kwargs["log"])
    for name in ("calls", "cache", "doubled"):
        torch.testing.assert_close(loaded.state[name], eager.get_buffer(name))


@torch.no_grad()
def test_reset_and_sessions_begin_anew(loaded: CompiledProgram, model: Decoder) -> None:
    args, kwargs = arguments()
    first = loaded(*args, **kwargs)
    session = loaded.session()
    assert loaded(*args, **kwargs)["y"].mean() > first["y"].mean()
    kwargs = {"log": torch.zeros(4)}
    assert_same(session(*args, **kwargs), copy.deepcopy(model)(*args, log=torch.zeros(4)))
    loaded.reset()
    assert_same(loaded(*args, **kwargs), first)
    assert loaded.state["calls"] == session.state["calls"] == 1
    assert_same(first["x"], args[0])
    assert first["x"].data_ptr() != args[0].data_ptr()


def test_code_that_is_opened_in_inference_mode_has_state_that_is_written_outside(loaded: CompiledProgram) -> None:
    args, kwargs = arguments()
    with torch.inference_mode():
        loaded(*args, log=torch.zeros(4))
    loaded.state["cache"].fill_(1)
    loaded.reset()
    loaded(*args, **kwargs)
    assert loaded.state["calls"] == 1


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_neither_copied_nor_pickled(loaded: CompiledProgram, way: Any) -> None:
    with pytest.raises(StateError, match="attempt to copy or to pickle"):
        way(loaded)


@torch.no_grad()
def test_another_file_in_its_place_is_not_opened(file: Path, model: Decoder, tmp_path: Path) -> None:
    path = tmp_path / "decoder.pt2"
    shutil.copy(file, path)
    loaded = intarsia.load(path, allow={"native"})
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    other.replace(path)
    args, kwargs = arguments()
    assert_same(loaded(*args, **kwargs), copy.deepcopy(model)(*args, log=torch.zeros(4)))


def test_wrong_arguments_are_those_of_a_program(loaded: CompiledProgram) -> None:
    args, kwargs = arguments()
    with pytest.raises(ArgumentError, match="input 'x': found size 7"):
        loaded(torch.ones(3, 7), args[1], **kwargs)
    with pytest.raises(ArgumentError, match="input 'log': found no value"):
        loaded(*args)
    with pytest.raises(ArgumentError, match=r"rows|size 61|at most 60|60"):
        loaded(*arguments(60)[0][:1], torch.arange(61), **kwargs)


def test_a_position_outside_is_an_error_and_not_the_end_of_the_process(loaded: CompiledProgram) -> None:
    args, kwargs = arguments()
    with pytest.raises(PositionError, match=r"method 'forward'.*outside of dimension 0 .*index_copy.* of size 60"):
        loaded(args[0], torch.tensor([1, 60, 2]), **kwargs)
    loaded.reset()
    assert loaded(*args, **kwargs)["y"].shape == (3, 8)


def test_it_has_to_be_allowed_by_name(file: Path) -> None:
    with pytest.raises(
        FormatError, match=r"the member 'data/aotinductor/.*', which is native code of an .*allow=\{\"native\"\}"
    ):
        intarsia.load(file)
    with pytest.raises(FormatError, match="no portable forms"):
        intarsia.load(file, allow={"native"}, engines="rebuild")
    with pytest.raises(FormatError, match="an AOTInductor package"):
        intarsia.verify(file)
    assert intarsia.load(file, allow={"native"}, verify=True).methods == ("forward",)


_PLAIN = """
import sys, torch
if sys.argv[3] == "yes":
    import intarsia
loaded = torch._inductor.aoti_load_package(sys.argv[1])
args, kwargs = torch.load(sys.argv[2])
torch.save([loaded(*args, **kwargs)["y"] for _ in range(2)], sys.argv[2])
"""


@torch.no_grad()
def test_torch_reads_it_too_where_the_operator_is_registered(file: Path, model: Decoder, tmp_path: Path) -> None:
    args, kwargs = arguments()
    torch.save((args, kwargs), tmp_path / "call")
    command = [sys.executable, "-c", _PLAIN, str(file), str(tmp_path / "call")]
    without = subprocess.run([*command, "no"], capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "intarsia::run_engine" in without.stderr
    subprocess.run([*command, "yes"], check=True)
    eager = copy.deepcopy(model)
    for answer in torch.load(tmp_path / "call"):
        torch.testing.assert_close(answer, eager(*args, **kwargs)["y"])


def test_damage_is_named(file: Path, tmp_path: Path) -> None:
    members = read_members(file)
    (code,) = [name for name in members if name.endswith(".so")]
    for name in (code, "extra/intarsia_boundary_model.json", "extra/intarsia_manifest.json"):
        data = bytearray(file.read_bytes())
        data[data.find(members[name]) + len(members[name]) // 2] ^= 1
        path = tmp_path / "damaged.pt2"
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"damaged member|does not match|cannot be read"):
            intarsia.load(path, allow={"native"})(*arguments()[0], **arguments()[1])


def test_inspect_and_check_tell_what_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.core.compiled.model.open_runner", None)
    shown = CliRunner().invoke(app, ["inspect", str(file)])
    assert shown.exit_code == 0, shown.output
    for told in ("AOTInductor package", "f32[", "openvino", "calls"):
        assert told in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["inspect", str(file), "--json"]).stdout)
    assert told["methods"]["forward"]["writes"][0] == {"kind": "buffer", "name": "calls", "declared": True}
    assert CliRunner().invoke(app, ["check", str(file)]).stdout.strip() == "runs here"
    monkeypatch.setattr("intarsia.core.compiled.machine._flags", lambda: frozenset({"avx1"}))
    other = CliRunner().invoke(app, ["check", str(file)])
    assert other.exit_code == 1
    assert "its code does not run here: it was compiled for" in other.stdout
    with pytest.raises(EngineRefused, match="it was compiled for"):
        intarsia.load(file, allow={"native"})(*arguments()[0], **arguments()[1])


class Pair(torch.nn.Module):
    """Two methods with one state; `peek` only reads."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(size, 4))

    def put(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(self.layer(x))
        return self.seen + 0

    def peek(self) -> torch.Tensor:
        return self.seen.sum(0)


def methods_of(pair: Pair) -> dict[str, torch.export.ExportedProgram]:
    calls = {"put": (torch.ones(4),), "peek": ()}
    return dict(intarsia.export(intarsia.compile({name: getattr(pair, name) for name in calls}, calls)))


@torch.no_grad()
def test_methods_share_their_state(tmp_path: Path) -> None:
    pair = Pair(4).eval()
    intarsia.save(methods_of(copy.deepcopy(pair)), tmp_path / "pair.pt2", format="aoti")
    loaded = intarsia.load(tmp_path / "pair.pt2", allow="native")
    assert isinstance(loaded, CompiledMethods)
    session = loaded.session()
    for i in range(3):
        x = torch.full((4,), float(i))
        torch.testing.assert_close(loaded.put(x), pair.put(x))
        torch.testing.assert_close(loaded.peek(), pair.peek())
    assert not session.peek().any()
    loaded.reset()
    assert not loaded.peek().any()
    assert loaded.methods == ("put", "peek")


class Odd(torch.nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("a", torch.zeros(20))
        self.register_buffer("b", self.a[:10])

    def forward(self, x: torch.Tensor) -> Any:
        if self.what == "aliases":
            self.a.add_(1)
            return x + self.b.sum()
        return x + 1, 5


def test_sizes_at_which_the_code_would_read_outside_of_memory_are_refused(tmp_path: Path) -> None:
    class First(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:1] * 2

    program = torch.export.export(First(), (torch.ones(3, 2),), dynamic_shapes=({0: Dim("rows", max=9)},))
    told = r"where x\.shape\[0\] = 0, it meets f32\[0, 2\], which torch captured as f32\[1, 2\].*min=1"
    with pytest.raises(ConventionError, match=told):
        intarsia.save(program, tmp_path / "m.pt2", format="aoti")


@pytest.mark.parametrize(
    ("what", "error", "told"),
    [("aliases", MutationError, "shares memory with"), ("numbers", ConventionError, "output 1: found 5")],
)
def test_what_would_go_wrong_is_refused(what: str, error: type[Exception], told: str, tmp_path: Path) -> None:
    program = torch.export.export(Odd(what), (torch.ones(3),))
    with pytest.raises(error, match=told):
        intarsia.save(program, tmp_path / "m.pt2", format="aoti")
    assert list(tmp_path.iterdir()) == []


def test_requests_that_cannot_be_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    old = tmp_path / "m.pt2"
    old.write_text("old")
    for options, told in (
        ({"payloads": False}, "payloads=False"),
        ({"test_vectors": [((torch.ones(3),), {})]}, "test vectors"),
        ({"format": "aotic"}, "Did you mean 'aoti'"),
        ({"format": "pte"}, "the ending"),
    ):
        with pytest.raises(FormatError, match=told):
            intarsia.save(program, old, **{"format": "aoti", **options})
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(EngineUnavailable, match=r"no C\+\+ compiler"),
    ):
        intarsia.save(program, old, format="aoti")

    def fail(*_: object) -> None:
        message = "no lowering"
        raise NotImplementedError(message)

    monkeypatch.setattr("intarsia.core.compiled.compiling.compile_package", fail)
    with pytest.raises(FormatError, match=r"AOTInductor cannot compile .NotImplementedError: no lowering"):
        intarsia.save(program, old, format="aoti")
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_state_that_became_a_constant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.formats.aoti.saving.compile_programs", lambda *_: b"")
    monkeypatch.setattr("intarsia.formats.aoti.saving.read_package", lambda *_: {})
    monkeypatch.setattr("intarsia.formats.aoti.saving.CompiledModel", lambda files: _NoState)
    with pytest.raises(StateError, match="state 'seen': found that AOTInductor compiled it as a constant"):
        intarsia.save(methods_of(Pair(4)), tmp_path / "m.pt2", format="aoti")


class _NoState:
    @staticmethod
    def state() -> dict[str, torch.Tensor]:
        return {}


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


def test_a_buffer_that_a_graph_writes_in_place_is_no_constant(tmp_path: Path) -> None:
    intarsia.save(torch.export.export(Counter(), (torch.zeros(2),)), tmp_path / "counter.pt2", format="aoti")
    loaded = intarsia.load(tmp_path / "counter.pt2", allow={"native"})
    assert [loaded(torch.zeros(2)).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
