"""`intarsia diff`: what it prints, its exit codes, its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from intarsia import api
from intarsia.cli.application import app


def run(*arguments: str):
    return CliRunner().invoke(app, ["diff", *arguments], prog_name="intarsia")


def export(operator: torch.nn.Module, size: int = 2) -> torch.export.ExportedProgram:
    return torch.export.export(operator, (torch.ones(size),))


def test_a_file_does_not_differ_from_itself(here: Path) -> None:
    result = run("counter.pt2", "counter.pt2")
    assert (result.exit_code, result.stdout) == (0, "no difference\n")
    result = run("counter.pt2", "counter.pt2", "--json")
    assert (result.exit_code, json.loads(result.stdout)["changes"]) == (0, [])


def test_a_file_of_torch_does_not_differ_from_ours(here: Path) -> None:
    program = export(torch.nn.ReLU())
    api.save(program, "ours.pt2")
    torch.export.save(program, "theirs.pt2")
    assert run("ours.pt2", "theirs.pt2").stdout == "no difference\n"


def test_changes_are_told_one_by_one(here: Path) -> None:
    api.save(export(torch.nn.ReLU()), "a.pt2")
    api.save(export(torch.nn.Tanh(), 3), "b.pt2")
    result = run("a.pt2", "b.pt2")
    assert result.exit_code == 1
    lines = "%0 = aten.relu.default(input 0): f32[2]", "%0 = aten.tanh.default(input 0): f32[3]"
    assert result.stdout.splitlines() == [
        "signature, input input",
        "  - f32[2]",
        "  + f32[3]",
        "signature, output",
        "  - f32[2]",
        "  + f32[3]",
        "graph, aten.relu.default",
        "  - 1 node",
        "graph, aten.tanh.default",
        "  + 1 node",
        "graph, first line that differs",
        f"  - {lines[0]}",
        f"  + {lines[1]}",
    ]
    facts = json.loads(run("a.pt2", "b.pt2", "--json").stdout)
    assert (facts["before"], facts["after"]) == ("a.pt2", "b.pt2")
    assert facts["changes"][2] == {
        "method": "forward", "part": "graph", "subject": "aten.relu.default", "before": "1 node", "after": None,
    }  # fmt: skip


def test_changes_of_methods_are_told_with_their_names(here: Path) -> None:
    relu, tanh, neg = (export(operator) for operator in (torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.Softsign()))
    api.save({"one": relu, "two": relu, "three": relu}, "a.pt2")
    api.save({"one": tanh, "two": neg}, "b.pt2")
    lines = run("a.pt2", "b.pt2").stdout.splitlines()
    assert lines[:2] == ["graph of one, aten.relu.default", "  - 1 node"]
    assert lines[-2:] == ["method of three", "  - there"]


def test_test_vectors_are_compared_where_both_files_have_a_place_for_them(here: Path) -> None:
    program, x = export(torch.nn.ReLU()), torch.ones(2)
    api.save(program, "a.pt2", test_vectors=[((x,), {}), ((-x,), {})])
    api.save(program, "b.pt2", test_vectors=[((x,), {})])
    api.save(program, "none.pt2")
    torch.export.save(program, "theirs.pt2")
    assert run("a.pt2", "a.pt2").stdout == "no difference\n"
    assert run("a.pt2", "theirs.pt2").stdout == "no difference\n"
    for first, last, lines in (
        ("a.pt2", "b.pt2", ["test vector, call 2", "  - forward"]),
        ("none.pt2", "b.pt2", ["test vector, call 1", "  + forward"]),
    ):
        result = run(first, last)
        assert (result.exit_code, result.stdout.splitlines()) == (1, lines)


def test_what_concerns_no_method_is_told_without_one(here: Path) -> None:
    relu, tanh = export(torch.nn.ReLU()), export(torch.nn.Tanh())
    half = torch.export.export(torch.nn.ReLU(), (torch.ones(2, dtype=torch.float16),))
    x = torch.ones(2)
    api.save({"one": relu, "two": relu}, "a.pt2", test_vectors=[("one", (x,), {}), ("two", (x,), {})])
    api.save({"one": half, "two": tanh}, "b.pt2", test_vectors=[("one", (x.half(),), {}), ("two", (x,), {})])
    lines = run("a.pt2", "b.pt2").stdout.splitlines()
    assert "test vector of two, call 2, output 0" in lines
    assert "test vector, coarsest dtypes of the outputs of one" in lines


def test_a_damaged_test_vector_is_an_error(here: Path) -> None:
    x = torch.tensor([0.123, 0.456])
    api.save(export(torch.nn.ReLU()), "a.pt2", test_vectors=[((x,), {})])
    data = bytearray(Path("a.pt2").read_bytes())
    data[data.index(x.numpy().tobytes())] ^= 1
    Path("damaged.pt2").write_bytes(data)
    result = run("a.pt2", "damaged.pt2")
    assert result.exit_code == 2
    assert "damaged.pt2: found " in result.stderr


def test_what_cannot_be_read_cannot_be_compared(here: Path) -> None:
    result = run("counter.pt2", "nothing.pt2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing.pt2: found no file" in result.stderr


def test_a_damaged_weight_is_an_error(here: Path) -> None:
    data = bytearray(Path("counter.pt2").read_bytes())
    weight = api.load("counter.pt2").exported_program.state_dict["linear.weight"].detach().numpy().tobytes()
    data[data.index(weight)] ^= 1
    Path("damaged.pt2").write_bytes(data)
    result = run("counter.pt2", "damaged.pt2")
    assert result.exit_code == 2
    assert "damaged.pt2: found " in result.stderr
