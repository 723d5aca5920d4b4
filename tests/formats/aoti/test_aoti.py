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
    HybridError,
    IntarsiaError,
    MutationError,
    PositionError,
    StateError,
)
from intarsia.formats.aoti import loading
from intarsia.formats.archive.writer import MemberEntry
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


RECORDED = [arguments(60), arguments()]


@pytest.fixture(scope="module")
def hybrid(model: Decoder) -> torch.fx.GraphModule:
    """With an OpenVINO engine and torch operators."""
    args, kwargs = arguments()
    rows = Dim("rows", min=1, max=60)
    dims = {"x": {0: rows}, "at": {0: rows}, "log": None}
    return intarsia.compile(
        copy.deepcopy(model), args, kwargs, dynamic_shapes=dims, backend="openvino", torch_executed_ops={"aten.gelu"}
    )


@pytest.fixture(scope="module")
def file(hybrid: torch.fx.GraphModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aoti") / "decoder.pt2"
    intarsia.save(hybrid, path, format="aoti", test_vectors=RECORDED)
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
    with pytest.raises(
        ArgumentError,
        match=r"input 'at': found size 61 in dimension 0 .*expected 60, the same as dimension 0 of input 'x'",
    ):
        loaded(*arguments(60)[0][:1], torch.arange(61), **kwargs)


def test_a_position_outside_is_an_error_and_not_the_end_of_the_process(loaded: CompiledProgram) -> None:
    args, kwargs = arguments()
    with pytest.raises(PositionError, match=r"method 'forward'.*outside of dimension 0 .*index_copy.* of size 60"):
        loaded(args[0], torch.tensor([1, 60, 2]), **kwargs)
    loaded.reset()
    assert loaded(*args, **kwargs)["y"].shape == (3, 8)


class Written(torch.nn.Module):
    """Writes a cache at a position that it moves on; its methods share both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 8))
        self.register_buffer("sums", torch.zeros(4, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def one(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, self.at, x)
        self.at.add_(1)
        return self.cache * 2

    def several(self, x: torch.Tensor) -> torch.Tensor:
        ahead = (self.at.to(torch.int32) + 1).reshape(1, 1).expand(1, 8)
        self.sums.scatter_(0, ahead.long(), x)
        self.cache[ahead[:, 0]] = x
        self.at.mul_(1).add_(1)
        return self.cache + self.sums[self.at]

    def asserted(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((self.at < 3).all(), "too far")
        self.at.add_(1)
        return x + self.at


def say_where_each_ends(path: str) -> None:
    """Save the methods of `Written`, and print the index and the class of the first error of each, or None."""
    calls = {name: (torch.ones(1, 8),) for name in ("one", "several", "asserted")}
    model = Written().eval()
    programs = intarsia.compile({name: getattr(model, name) for name in calls}, calls, backend="torch")
    intarsia.save(intarsia.export(programs), path, format="aoti")
    loaded = intarsia.load(path, allow="native")
    for name, (x,) in calls.items():
        loaded.reset()
        print(name, *first_error(getattr(Written(), name), x), *first_error(getattr(loaded, name), x))  # noqa: T201


def first_error(call: Any, x: torch.Tensor) -> tuple[int, str]:
    for i in range(6):
        try:
            call(x)
        except (IntarsiaError, IndexError, RuntimeError) as found:  # noqa: PERF203 - the first ends it
            return i, type(found).__name__
    return 6, ""


def test_a_position_that_the_call_moves_is_an_error_too_and_so_is_an_assertion(tmp_path: Path) -> None:
    code = "import sys; sys.path[:0] = sys.argv[2:]; import test_aoti; test_aoti.say_where_each_ends(sys.argv[1])"
    arguments = [sys.executable, "-c", code, str(tmp_path / "m.pt2"), str(Path(__file__).parent), *sys.path]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "one 4 IndexError 4 PositionError",
        "several 3 RuntimeError 3 PositionError",
        "asserted 3 RuntimeError 3 EngineError",
    ]
    assert "c-shim" not in ended.stderr


class Embedding(torch.nn.Module):
    """Reads a table in an engine, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(60, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.nn.functional.gelu(self.table(token)) * self.calls


def test_what_an_engine_refuses_is_told_as_it_tells_it(tmp_path: Path) -> None:
    hybrid = intarsia.compile(Embedding().eval(), (torch.tensor([3]),), torch_executed_ops={"aten.gelu"})
    errors = []
    for kind in ("pt2", "aoti"):
        intarsia.save(hybrid, tmp_path / f"{kind}.pt2", format=kind)  # type: ignore[arg-type]
        loaded = intarsia.load(tmp_path / f"{kind}.pt2", allow="native")
        with pytest.raises(PositionError, match=r"'token': found .*77") as found:
            loaded(torch.tensor([77]))
        errors.append((found.value.expected, found.value.fix))
    assert errors[0] == errors[1]


def test_it_has_to_be_allowed_by_name(file: Path) -> None:
    with pytest.raises(
        FormatError, match=r"whose folder 'data/aotinductor/model' holds native code.*allow=\{\"native\"\}"
    ):
        intarsia.load(file)
    with pytest.raises(FormatError, match="no portable forms"):
        intarsia.load(file, allow={"native"}, engines="rebuild")
    with pytest.raises(FormatError, match=r"holds native code.*--allow native"):
        intarsia.verify(file)
    assert intarsia.load(file, allow={"native"}, verify=True).methods == ("forward",)


def test_it_is_compared_with_the_model_and_with_what_it_recorded(file: Path, model: Decoder) -> None:
    result = intarsia.verify(file, model, allow={"native"})
    assert str(result).startswith("verification: ok, 12 calls, 2 recorded calls\n")
    assert str(intarsia.verify(file, allow={"native"})).startswith("verification: ok, 2 recorded calls\n")
    assert result.calls == 12
    assert result.replay.calls == 2
    assert {leaf.name for leaf in result.leaves} >= {"output['y']", "input 'log'", "state 'cache'", "state 'doubled'"}
    assert result.check("graph").detail == "the file holds no graph"
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.layer.bias.add_(0.01)
    different = intarsia.verify(file, wrong, [arguments()], allow={"native"})
    assert {leaf.name for leaf in different.leaves if not leaf.ok} >= {"output['y']", "input 'log'", "state 'cache'"}
    assert different.replay.ok


_VERIFY = """
import sys, intarsia
result = intarsia.verify(sys.argv[1], allow={"native"})
assert result.ok and result.calls == 0 and result.replay.calls == 2, str(result)
"""


def test_another_process_verifies_it_without_the_model(file: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _VERIFY, str(file)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_loaded_program_is_verified_on_a_state_of_its_own(loaded: CompiledProgram, model: Decoder) -> None:
    args, kwargs = arguments()
    loaded(*args, **kwargs)
    assert intarsia.verify(loaded, model).ok
    assert loaded.state["calls"] == 1


def test_other_answers_than_the_recorded_ones_fail(
    loaded: CompiledProgram, model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = CompiledProgram.__call__
    monkeypatch.setattr(
        CompiledProgram, "__call__", lambda one, *args, **kwargs: {**called(one, *args, **kwargs), "y": args[0]}
    )
    result = intarsia.verify(loaded)
    assert not result.ok
    assert [leaf.name for leaf in result.replay.leaves if not leaf.ok] == ["output['y']"]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--against` names: the model, with an example whose positions all differ."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    lines = [
        "import torch",
        "from test_aoti import Decoder, arguments",
        "def decoder():",
        "    torch.manual_seed(0)",
        "    return Decoder().eval(), *arguments(60), None",
    ]
    (tmp_path / "factories_of_aoti.py").write_text("\n".join(lines))
    return f"{tmp_path / 'factories_of_aoti.py'}:decoder"


@pytest.mark.parametrize("command", ["run", "bench"])
def test_commands_draw_integers_as_the_test_vectors_have_them(command: str, file: Path) -> None:
    told = CliRunner().invoke(app, [command, str(file), "--allow", "native", "--calls", "2", "--json"])
    assert told.exit_code == 0, told.stderr
    if command == "run":
        assert any("input 'at' were drawn from" in finding for finding in json.loads(told.stdout)["findings"])


@pytest.mark.parametrize("command", [["verify"], ["run", "--calls", "2"], ["bench", "--calls", "2"]])
def test_commands_take_it_where_it_is_allowed(command: list[str], file: Path, target: str) -> None:
    arguments = [*command, str(file), "--against", target]
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, "--allow native" in refused.stderr) == (2, True)
    told = CliRunner().invoke(app, [*arguments, "--allow", "native", "--json"])
    assert told.exit_code == 0, told.stderr
    facts = json.loads(told.stdout)
    if command[0] == "verify":
        assert facts["ok"]
        assert facts["replay"]["calls"] == 2
    elif command[0] == "run":
        one, two = (call["output['y']"] for call in facts["calls"])
        assert two["min"] > one["min"], "it counts its calls"
    else:
        assert [row["name"] for row in facts["rows"]] == [file.name, "eager", "torch.compile"]


def test_the_commands_make_one(target: str, tmp_path: Path) -> None:
    made, again = tmp_path / "made.pt2", tmp_path / "again.pt2"
    by_compile = ["compile", target, "-o", str(made), "--backend", "torch", "--test-vectors"]
    by_export = ["export", str(made), "-o", str(again), "--format", "aoti", "--test-vectors"]
    for command in (by_compile, by_export, ["compile", target, "-o", str(made), "--format", "aoti", "--force"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
    assert all(isinstance(intarsia.load(path, allow="native"), CompiledProgram) for path in (made, again))
    assert intarsia.verify(again, allow="native").replay.ok  # type: ignore[union-attr]


def test_export_says_that_it_needs_a_graph(file: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(file), "-o", str(tmp_path / "new.pt2"), "--allow", "native"])
    assert result.exit_code == 2
    assert "found an AOTInductor package, which is compiled code without a graph" in result.stderr


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


def damage(file: Path, member: str, folder: Path) -> Path:
    """A copy of the file with one bit of a member changed."""
    content, data = read_members(file)[member], bytearray(file.read_bytes())
    data[data.find(content) + len(content) // 2] ^= 1
    path = folder / "damaged.pt2"
    path.write_bytes(data)
    return path


def test_damage_is_named(file: Path, tmp_path: Path) -> None:
    members = read_members(file)
    (code,) = [name for name in members if name.endswith(".so")]
    with pytest.raises(FormatError, match=f"damaged member '{code}'"):
        intarsia.load(damage(file, code, tmp_path), allow={"native"}, verify=True)
    with pytest.raises(FormatError, match="damaged member 'data/test_vectors/tensors"):
        intarsia.verify(damage(file, "data/test_vectors/tensors.safetensors", tmp_path), allow={"native"})
    for name in (code, "extra/intarsia_boundary_model.json", "extra/intarsia_manifest.json"):
        path = damage(file, name, tmp_path)
        with pytest.raises(FormatError, match=r"damaged member|does not match|cannot be read"):
            intarsia.load(path, allow={"native"})(*arguments()[0], **arguments()[1])


def test_inspect_and_check_tell_what_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.core.compiled.model.open_runner", None)
    shown = CliRunner().invoke(app, ["inspect", str(file)])
    assert shown.exit_code == 0, shown.output
    for told in ("AOTInductor package", "f32[", "openvino", "calls"):
        assert told in shown.stdout
    assert "2 test vectors: calls with their answers" in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["inspect", str(file), "--json"]).stdout)
    assert told["test_vectors"] == 2
    assert told["methods"]["forward"]["writes"][0] == {"kind": "buffer", "name": "calls", "declared": True}
    told = CliRunner().invoke(app, ["check", str(file)]).stdout.splitlines()
    assert told[0] == "runs here"
    assert told[1].startswith("note: it holds native code (compiled code): ")
    monkeypatch.setattr("intarsia.core.compiled.machine._flags", lambda: frozenset({"avx1"}))
    other = CliRunner().invoke(app, ["check", str(file)])
    assert other.exit_code == 1
    assert "its code does not run here: it was compiled for" in other.stdout
    with pytest.raises(EngineRefused, match="it was compiled for"):
        intarsia.load(file, allow={"native"})(*arguments()[0], **arguments()[1])


@pytest.mark.parametrize("options", [{"format": "aoti"}, {}])
def test_code_is_saved_no_more(options: dict[str, Any], loaded: CompiledProgram, tmp_path: Path) -> None:
    for path in (tmp_path / "m.pt2", *([] if options else [tmp_path / "m.pte"])):
        with pytest.raises(FormatError, match=r"found .* 'CompiledProgram'.* Save what .* copy the file\."):
            intarsia.save(loaded, path, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("retrace", [False, True])
def test_code_is_no_hybrid_to_export(retrace: bool, loaded: CompiledProgram) -> None:
    for given, told in ((loaded, "argument 'hybrid'"), ({"forward": loaded}, "method 'forward', argument 'hybrid'")):
        with pytest.raises(HybridError, match=f"{told}: found a CompiledProgram, .* is exported already"):
            intarsia.export(given, retrace=retrace)  # type: ignore[call-overload]


def test_diff_opens_no_code(
    file: Path, hybrid: torch.fx.GraphModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intarsia.save(hybrid, tmp_path / "graph.pt2", test_vectors=RECORDED)
    monkeypatch.setattr("intarsia.core.compiled.model.open_runner", None)
    for other in (file, tmp_path / "graph.pt2"):
        result = CliRunner().invoke(app, ["diff", str(file), str(other)])
        assert (result.exit_code, result.stdout) == (0, "no difference\n"), result.output
    described = loading.describe_aoti(file)
    other = described._replace(libraries={"forward": MemberEntry(9, "ab" * 32)})
    monkeypatch.setattr(loading, "describe_aoti", lambda path, **_: other if path.name == "other.pt2" else described)
    shutil.copy(file, tmp_path / "other.pt2")
    result = CliRunner().invoke(app, ["diff", str(file), str(tmp_path / "other.pt2")])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "content, code of forward"
    assert result.stdout.splitlines()[2] == "  + 9 bytes, abababababab"


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
    recorded = [("put", (torch.ones(4),), {}), ("peek", (), {})]
    intarsia.save(methods_of(copy.deepcopy(pair)), tmp_path / "pair.pt2", format="aoti", test_vectors=recorded)
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
    fresh = Pair(4).eval()
    fresh.load_state_dict({**pair.state_dict(), "seen": torch.zeros(4, 4)})
    result = intarsia.verify(tmp_path / "pair.pt2", fresh, allow={"native"})
    assert result.ok, str(result)
    assert {leaf.name for leaf in result.in_turn.leaves} == {"put: output", "state 'seen'", "peek: output"}
    assert result.replay.calls == 2


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


class Reading(torch.nn.Module):
    """Reads at positions, with an operator that is given or in a branch."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        if self.read is not None:
            return self.read(x, at)
        return torch.cond(x.sum() > 0, lambda x, at: x[at] + 1, lambda x, at: x[at] * 2, (x, at))


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (torch.take, r"operator aten\.take\.default: found positions that compiled code does not check, "),
        (lambda x, at: torch.take_along_dim(x, at[:, None], 0), r"operator aten\.take_along_dim"),
        (torch.nn.functional.cross_entropy, r"operator aten\.cross_entropy_loss"),
        (torch.nn.functional.multi_margin_loss, r"operator aten\.multi_margin_loss"),
        (None, r"operator aten\.index\.Tensor: .* in a body of a branch or loop"),
    ],
)
def test_positions_that_would_end_the_process_are_refused(read: Any, told: str, tmp_path: Path) -> None:
    program = torch.export.export(Reading(read).eval(), (torch.ones(4, 3), torch.tensor([0, 1, 2, 1])))
    with pytest.raises(FormatError, match=told):
        intarsia.save(program, tmp_path / "m.pt2", format="aoti")
    assert list(tmp_path.iterdir()) == []


def test_requests_that_cannot_be_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    old = tmp_path / "m.pt2"
    old.write_text("old")
    for options, told in (
        ({"payloads": False}, "payloads=False"),
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
