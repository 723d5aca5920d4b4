"""Files of several methods on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import intarsia
from intarsia.cli.application import app

FACTORIES = """
import torch
import intarsia

class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(8, 4), persistent=False)

    def prefill(self, x, position):
        self.seen.index_copy_(0, position, x)
        return self.layer(self.seen.mean(0))

    def decode(self, x, position):
        return self.prefill(x, position) * 2

def decoder():
    model = Decoder().eval()
    args = {"prefill": (torch.ones(3, 4), torch.arange(3)), "decode": (torch.ones(1, 4), torch.tensor([3]))}
    return {name: getattr(model, name) for name in args}, args, None, None

def model():
    return Decoder().eval(), (), None, None

def one_method():
    return Decoder().eval().decode, (torch.ones(1, 4), torch.tensor([3])), None, None

def other_weights():
    entries, *rest = decoder()
    with torch.no_grad():
        entries["decode"].__self__.layer.bias += 1
    return entries, *rest

def hybrids():
    model, args, *_ = decoder()
    return intarsia.compile(model, args)

def no_mapping():
    model, *_ = decoder()
    return model, (), None, None

def taken():
    model = Decoder()
    return {"state": model.decode}, {"state": (torch.ones(1, 4), torch.tensor([3]))}, None, None

def unrelated():
    models = {"prefill": Decoder().prefill, "decode": Decoder().decode}
    return models, decoder()[1], None, None
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    (folder / "decoders.py").write_text(FACTORIES)
    result = invoke("compile", f"{folder}/decoders.py:decoder", "-o", f"{folder}/m.pt2")
    assert result.exit_code == 0, result.output
    (folder / "compiled.txt").write_text(result.stdout)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "decoders", raising=False)
    return tmp_path


def test_compile_tells_the_coverage_of_each_method(here: Path) -> None:
    text = Path("compiled.txt").read_text()
    assert text.index("prefill:") < text.index("decode:") < text.index("saved ")
    assert text.count("operators in 1 engine") == 2
    told = json.loads(invoke("compile", "decoders.py:decoder", "-o", "n.pt2", "--json").stdout)
    assert {name: own["engines"] for name, own in told["methods"].items()} == {
        "prefill": ["openvino_0"], "decode": ["openvino_0"]
    }  # fmt: skip
    assert intarsia.load("n.pt2").methods == ("prefill", "decode")


def test_one_bound_method_compiles(here: Path) -> None:
    result = invoke("compile", "decoders.py:one_method", "-o", "n.pt2")
    assert result.exit_code == 0, result.output
    assert intarsia.load("n.pt2").methods == ("forward",)


@pytest.mark.parametrize("source", ["decoders.py:hybrids", "m.pt2"])
def test_export_tells_the_ledger_of_each_method(source: str, here: Path) -> None:
    result = invoke("export", source, "-o", "n.pt2")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("1 engine: 1 kept") == 2
    told = json.loads(invoke("export", source, "-o", "n.pt2", "--json", "--force").stdout)
    assert list(told["methods"]) == ["prefill", "decode"]
    ours, theirs = intarsia.load("n.pt2"), intarsia.load("m.pt2")
    for name, position in (("prefill", 0), ("decode", 2), ("decode", 5)):
        given = torch.ones(3, 4) if name == "prefill" else torch.ones(1, 4)
        rows = torch.arange(position, position + len(given))
        assert torch.equal(getattr(ours, name)(given, rows), getattr(theirs, name)(given, rows))


def test_inspect_shows_each_method_and_the_state_once(here: Path) -> None:
    text = invoke("inspect", "m.pt2").stdout
    assert text.index("prefill:") < text.index("decode:") < text.index("all methods:")
    assert text.count("non-persistent buffer") == 1
    told = json.loads(invoke("inspect", "m.pt2", "--json").stdout)
    assert list(told["methods"]) == ["prefill", "decode"]
    (entry,) = told["state"]
    assert entry["name"] == "seen"
    assert entry["writing"] == "in place"
    assert [writer.partition(":")[0] for writer in entry["written_by"]] == ["prefill", "decode"]
    assert all("state" not in own for own in told["methods"].values())
    assert told["storage"]["size_bytes"]["buffers"] == 8 * 4 * 4


@pytest.mark.parametrize("against", [(), ("--against", "decoders.py:decoder"), ("--against", "decoders.py:model")])
def test_verify_compares_every_method(against: tuple[str, ...], here: Path) -> None:
    result = invoke("verify", "m.pt2", *against)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("verification: ok, 2 methods")
    assert "all methods in turn, on one state: ok, 6 calls" in result.stdout
    assert ("decode: output" in result.stdout) is bool(against)


def test_verify_finds_another_model(here: Path) -> None:
    result = invoke("verify", "m.pt2", "--against", "decoders.py:other_weights", "--json")
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert [told["methods"][name]["ok"] for name in ("prefill", "decode")] == [False, False]


def test_run_and_bench_call_the_method_that_is_named(here: Path) -> None:
    result = invoke("run", "m.pt2", "--method", "decode", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["calls"][0]["output"]["type"] == "f32[4]"
    result = invoke("run", "m.pt2", "--method", "prefill", "--against", "decoders.py:decoder")
    assert result.exit_code == 0, result.output
    result = invoke("bench", "m.pt2", "--method", "decode", "--calls", "2", "--json")
    assert result.exit_code == 0, result.output
    assert [row["name"] for row in json.loads(result.stdout)["rows"]] == ["m.pt2"]


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "found the methods prefill, decode, expected the name of one of them. Add --method prefill"),
        (("--method", "decod"), "and --method decod, expected the name of one of them. Did you mean 'decode'?"),
    ],
)
def test_a_method_must_be_named(command: str, given: tuple[str, ...], message: str, here: Path) -> None:
    result = invoke(command, "m.pt2", *given)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_of_one_program_has_no_methods(here: Path) -> None:
    intarsia.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "relu.pt2")
    result = invoke("run", "relu.pt2", "--method", "decode")
    assert result.exit_code == 2
    assert "found one program, which has no methods, and --method decode" in result.stderr
    result = invoke("verify", "relu.pt2", "--against", "decoders.py:decoder")
    assert result.exit_code == 2
    assert "found the entry points prefill, decode, expected one model, for FILE holds one program" in result.stderr


def test_inputs_of_one_program_do_not_verify_methods(here: Path) -> None:
    result = invoke("verify", "m.pt2", "--inputs", "x.safetensors")
    assert result.exit_code == 2
    assert "--inputs: found a file of the methods prefill, decode" in result.stderr


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_mapping", "found args of type tuple, expected a mapping with the names of the entry points"),
        ("taken", "method 'state': found a name that is taken"),
        ("unrelated", "state 'seen' of the methods 'prefill' and 'decode': found two tensors"),
    ],
)
def test_methods_that_cannot_be_are_one_message(factory: str, message: str, here: Path) -> None:
    result = invoke("compile", f"decoders.py:{factory}", "-o", "n.pt2")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("n.pt2").exists()


def test_test_vectors_of_methods(here: Path) -> None:
    made = CliRunner().invoke(app, ["compile", "decoders.py:decoder", "-o", "told.pt2", "--test-vectors"])
    assert made.exit_code == 0, made.output
    result = CliRunner().invoke(app, ["verify", "told.pt2"])
    assert result.exit_code == 0, result.output
    assert "test vectors: ok, 2 calls" in result.stdout
    assert "2 test vectors" in CliRunner().invoke(app, ["inspect", "told.pt2"]).stdout
    assert json.loads(CliRunner().invoke(app, ["inspect", "told.pt2", "--json"]).stdout)["test_vectors"] == 2
