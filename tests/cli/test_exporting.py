"""`intarsia export`: hybrids made elsewhere, from a factory or a file, to a program that computes the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from intarsia import api
from intarsia.cli.application import app

HYBRIDS = """
import torch
from torch.fx.passes.split_module import split_module

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return {"y": torch.relu(self.linear(x)) + self.calls}

def program():
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("b", min=1, max=8)}}
    return torch.export.export(Model().eval(), (torch.ones(2, 4),), dynamic_shapes=shapes)

def split():
    module = program().module(check_guards=False)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    hybrid = split_module(module, module, lambda node: calls.index(node) // 2, keep_original_order=True)
    hybrid.graph.set_codegen(module.graph._codegen)
    hybrid.recompile()
    return hybrid

def traced():
    module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    return module, (torch.ones(2, 4),), None, ({0: torch.export.Dim("b", min=1, max=8)},)
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hybrids_here.py").write_text(HYBRIDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hybrids_here", raising=False)
    return tmp_path


@pytest.mark.parametrize("place", ["hybrids_here.py", "hybrids_here"])
def test_a_hybrid_of_split_module_is_exported_with_its_writes(folder: Path, place: str) -> None:
    result = invoke("export", f"{place}:split", "-o", "m.pt2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("2 partitions: 2 merged (inlined: 2)")
    assert lines[-1] == f"saved m.pt2 ({(folder / 'm.pt2').stat().st_size:,} bytes)"
    import hybrids_here  # type: ignore[import-not-found]

    expected, found = hybrids_here.program().module(), api.load("m.pt2")
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for _ in range(2):
        assert torch.equal(found(x)["y"], expected(x)["y"])


def test_a_hybrid_without_metadata_is_exported_with_its_arguments(folder: Path) -> None:
    assert invoke("export", "hybrids_here:traced", "-o", "m.pt2").exit_code == 0
    assert api.load("m.pt2")(torch.ones(7, 4)).shape == (7, 4)


def test_a_file_of_torch_is_exported_again_with_an_account(folder: Path) -> None:
    import hybrids_here

    program = hybrids_here.program()
    torch.export.save(program, "theirs.pt2")
    result = invoke("export", "theirs.pt2", "-o", "ours.pt2")
    assert result.exit_code == 0, result.output
    ours, x = api.load("ours.pt2"), torch.linspace(-1, 1, 12).reshape(3, 4)
    assert ours.ledger is not None
    assert torch.equal(ours(x)["y"], program.module()(x)["y"])
    assert str(ours.exported_program.range_constraints) == str(program.range_constraints)


def test_a_file_with_engines_keeps_them(folder: Path) -> None:
    pytest.importorskip("openvino")
    import hybrids_here

    api.save(api.compile(hybrids_here.program()), "engines.pt2")
    assert invoke("export", "engines.pt2", "-o", "again.pt2").exit_code == 0
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    assert torch.equal(api.load("again.pt2")(x)["y"], api.load("engines.pt2")(x)["y"])
    described = [json.loads(invoke("inspect", "--json", name).stdout) for name in ("engines.pt2", "again.pt2")]
    assert described[0]["engines"] == described[1]["engines"] != []


def test_json_tells_the_whole_ledger(folder: Path) -> None:
    told = json.loads(invoke("export", "hybrids_here:split", "-o", "m.pt2", "--json").stdout)
    assert (told["file"], told["size_bytes"]) == ("m.pt2", (folder / "m.pt2").stat().st_size)
    assert {entry["subject"]: entry["fate"] for entry in told["ledger"]}["submod_0"] == "merged"


def test_the_answers_to_example_inputs_are_recorded(folder: Path) -> None:
    result = invoke("export", "hybrids_here:traced", "-o", "m.pt2", "--test-vectors")
    assert result.exit_code == 0, result.output
    (call,) = api.load("m.pt2").test_vectors.calls
    import hybrids_here

    assert torch.equal(call.inputs[0], torch.ones(2, 4))
    torch.manual_seed(0)
    assert call.outputs[0].shape == hybrids_here.traced()[0](torch.ones(2, 4)).shape
    assert api.verify("m.pt2").replay.ok


def test_the_answers_of_several_methods_are_recorded(folder: Path) -> None:
    (folder / "several_here.py").write_text(
        HYBRIDS
        + """
def several():
    made = split()
    return {"one": made, "two": made}, {"one": (torch.ones(2, 4),), "two": (torch.ones(3, 4),)}, None, None

def incomplete():
    made = split()
    return {"one": made, "two": made}, {"one": (torch.ones(2, 4),)}, None, None
"""
    )
    assert invoke("export", "several_here.py:several", "-o", "m.pt2", "--test-vectors").exit_code == 0
    calls = api.load("m.pt2").test_vectors.calls
    assert [(call.method, call.inputs[0].shape[0]) for call in calls] == [("one", 2), ("two", 3)]
    assert api.verify("m.pt2").replay.ok
    refused = invoke("export", "several_here.py:incomplete", "-o", "n.pt2", "--test-vectors")
    assert (refused.exit_code, (folder / "n.pt2").exists()) == (2, False)
    assert "--test-vectors: found no example inputs of method 'two'" in refused.stderr


def test_test_vectors_of_a_file_are_made_again_or_left_out_with_a_note(folder: Path) -> None:
    import hybrids_here

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    api.save(hybrids_here.program(), "old.pt2", test_vectors=[((x,), {}), ((x,), {})])
    assert invoke("export", "old.pt2", "-o", "new.pt2", "--test-vectors").exit_code == 0
    old, new = (api.load(name).test_vectors.calls for name in ("old.pt2", "new.pt2"))
    assert len(old) == len(new) == 2
    for one, other in zip(old, new, strict=True):
        assert torch.equal(one.inputs[0], other.inputs[0])
        assert torch.equal(one.outputs[0], other.outputs[0])
    result = invoke("export", "old.pt2", "-o", "bare.pt2")
    assert "note: the test vectors of the file are left out" in result.stdout
    assert api.load("bare.pt2").test_vectors is None
    assert "note: " not in invoke("export", "bare.pt2", "-o", "again.pt2").stdout


@pytest.mark.parametrize(
    ("source", "told"),
    [("hybrids_here:split", "no example inputs, expected"), ("m.pt2", "a file without test vectors")],
)
def test_where_there_is_nothing_to_record_that_is_told(folder: Path, source: str, told: str) -> None:
    import hybrids_here

    api.save(hybrids_here.program(), "m.pt2")
    result = invoke("export", source, "-o", "n.pt2", "--test-vectors")
    assert (result.exit_code, (folder / "n.pt2").exists()) == (2, False)
    assert f"--test-vectors: found {told}" in result.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hybrids_here:program", "ExportedProgram returned, expected a torch.fx.GraphModule"),
        ("hybrids_here.py", "no factory name"),
        ("no.pt2", "no.pt2: found no file"),
        (".", "found a folder"),
    ],
)
def test_what_is_no_hybrid_is_refused(folder: Path, source: str, message: str) -> None:
    result = invoke("export", source, "-o", "m.pt2")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (folder / "m.pt2").exists()


def test_nothing_is_unpickled(folder: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), "hybrid.pt")
    result = invoke("export", "hybrid.pt", "-o", "m.pt2")
    assert result.exit_code == 2
    assert "hybrid.pt: found a checkpoint of torch.save" in result.stderr


def test_a_file_that_exists_is_replaced_only_by_force(folder: Path) -> None:
    (folder / "m.pt2").write_bytes(b"old")
    assert "m.pt2: found a file that exists" in invoke("export", "hybrids_here:split", "-o", "m.pt2").stderr
    assert (folder / "m.pt2").read_bytes() == b"old"
    assert invoke("export", "hybrids_here:split", "-o", "m.pt2", "--force").exit_code == 0


def test_what_a_hybrid_does_not_say_is_told(folder: Path) -> None:
    (folder / "plain_here.py").write_text(
        HYBRIDS
        + """
def plain():
    module = program().module(check_guards=False)
    return split_module(module, module, lambda node: 0)

def plain_from_three():
    shapes = {"x": {0: torch.export.Dim("b", min=3, max=8)}}
    module = torch.export.export(Model().eval(), (torch.ones(4, 4),), dynamic_shapes=shapes).module(check_guards=False)
    return split_module(module, module, lambda node: 0)

def plain_with_ranges():
    return plain(), None, None, {"x": {0: torch.export.Dim("b", min=1, max=8)}}
"""
    )
    lines = invoke("export", "plain_here.py:plain", "-o", "m.pt2").stdout.splitlines()
    notes = [line for line in lines if line.startswith("note: ")]
    assert len(notes) == 2
    assert "holds no structure of outputs" in notes[0]
    assert re.search(r"never begin below 2 \(s\d+: 2 to 8\)", notes[1])
    told = json.loads(invoke("export", "plain_here.py:plain", "-o", "n.pt2", "--json").stdout)
    assert [f"note: {note}" for note in told["notes"]] == notes
    assert "begin below" not in invoke("export", "plain_here.py:plain_from_three", "-o", "q.pt2").stdout
    assert "note: " not in invoke("export", "plain_here.py:plain_with_ranges", "-o", "o.pt2").stdout
    import hybrids_here

    shapes = {"x": {0: torch.export.Dim("b", min=2, max=8)}}
    stated = torch.export.export(hybrids_here.Model().eval(), (torch.ones(4, 4),), dynamic_shapes=shapes)
    torch.export.save(stated, "theirs.pt2")
    assert "note: " not in invoke("export", "theirs.pt2", "-o", "p.pt2").stdout
