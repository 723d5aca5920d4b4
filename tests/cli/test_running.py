"""`intarsia run`: outputs are right, state goes on, and files are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from intarsia import api
from intarsia.cli.application import app
from intarsia.cli.target import load_target

X = torch.arange(8.0).view(2, 4)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


def names(of: Path) -> list[str]:
    from intarsia.report.program import describe_program

    return [leaf.name for leaf in describe_program(api.load(of).exported_program).outputs]


@pytest.fixture
def inputs(here: Path) -> Path:
    save_file({"x": X}, "in.safetensors")
    save_file({"x": X + 1}, "more.safetensors")
    return here


def test_outputs_of_a_file_are_those_of_the_model(inputs: Path) -> None:
    result = run("counter.pt2", "--inputs", "in.safetensors", "-o", "out.safetensors")
    assert result.exit_code == 0, result.output
    expected = load_target("factories.py:counter").model(X)
    found = load_file("out.safetensors")
    rows, total, size, none = names(Path("counter.pt2"))
    assert set(found) == {rows, total}
    torch.testing.assert_close(found[rows], expected["rows"].detach())
    torch.testing.assert_close(found[total], expected["total"].detach())
    with safe_open("out.safetensors", "pt") as file:
        assert file.metadata() == {size: "2", none: "null"}
    assert "saved out.safetensors" in result.stdout


def test_state_goes_on_from_call_to_call_and_not_into_the_file(inputs: Path) -> None:
    before = Path("counter.pt2").read_bytes()
    files = ["--inputs", "in.safetensors", "--inputs", "more.safetensors"]
    result = run("counter.pt2", *files, "--calls", "2", "-o", "out.safetensors")
    assert result.exit_code == 0, result.output
    model = load_target("factories.py:counter").model
    rows, total, *_ = names(Path("counter.pt2"))
    found = load_file("out.safetensors")
    assert len(found) == 8
    for index, x in enumerate([X, X + 1, X, X + 1]):
        expected = model(x)
        torch.testing.assert_close(found[f"{index + 1}/{rows}"], expected["rows"].detach())
        torch.testing.assert_close(found[f"{index + 1}/{total}"], expected["total"].detach())
    assert Path("counter.pt2").read_bytes() == before


def test_the_summary_tells_type_and_range(inputs: Path) -> None:
    result = run("counter.pt2", "--inputs", "in.safetensors", "--json")
    told = json.loads(result.stdout)
    assert told["inputs"] == ["in.safetensors"]
    assert told["saved"] is None
    (call,) = told["calls"]
    rows, _, size, none = names(Path("counter.pt2"))
    value = api.load("counter.pt2")(X, scale=2.0)["rows"]
    assert call[rows] == {
        "type": "f32[2, 3]",
        "min": value.double().min().item(),
        "max": value.double().max().item(),
        "mean": value.double().mean().item(),
    }
    assert call[size] == {"value": 2}
    assert call[none] == {"value": None}
    shown = run("counter.pt2", "--inputs", "in.safetensors").stdout
    assert f"{value.max():.6g}" in shown
    assert "inputs: in.safetensors" in shown


def test_a_summary_of_special_values_is_json(here: Path) -> None:
    class Special(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"a": x / 0, "b": x[:0], "c": x.to(torch.complex64), "d": x > 0, "e": (x - x).long() + 2**60 + 1}

    api.save(torch.export.export(Special(), (torch.ones(3),)), "special.pt2")
    save_file({"x": torch.tensor([-1.0, 0.0, 1.0])}, "in.safetensors")
    result = run("special.pt2", "--inputs", "in.safetensors", "--json")
    assert result.exit_code == 0, result.output
    facts = list(json.loads(result.stdout)["calls"][0].values())
    assert facts[0] == {"type": "f32[3]", "min": "nan", "max": "nan", "mean": "nan"}
    assert facts[1] == {"type": "f32[0]"}
    assert facts[2] == {"type": "c64[3]"}
    assert (facts[3]["min"], facts[3]["max"]) == (0, 1)
    assert (facts[4]["min"], facts[4]["max"]) == (2**60 + 1, 2**60 + 1)
    assert run("special.pt2", "--inputs", "in.safetensors").exit_code == 0


def test_drawn_inputs_are_the_same_for_the_same_seed_and_others_in_every_call(here: Path) -> None:
    for name, seed in (("one", "1"), ("same", "1"), ("other", "2")):
        result = run("counter.pt2", "--seed", seed, "--calls", "2", "-o", f"{name}.safetensors")
        assert result.exit_code == 0, result.output
        assert f"drawn with seed {seed}" in result.stdout
    one, same, other = (load_file(f"{name}.safetensors") for name in ("one", "same", "other"))
    rows = names(Path("counter.pt2"))[0]
    assert one[f"1/{rows}"].shape == (3, 3)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one[f"1/{rows}"], one[f"2/{rows}"])
    assert not torch.equal(one[f"1/{rows}"], other[f"1/{rows}"])


def test_the_seed_decides_what_random_operators_give(here: Path) -> None:
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x)

    api.save(torch.export.export(Noise(), (torch.ones(3),)), "noise.pt2")
    save_file({"x": torch.ones(3)}, "in.safetensors")
    for name, seed in (("one", "1"), ("same", "1"), ("other", "2")):
        run("noise.pt2", "--inputs", "in.safetensors", "--seed", seed, "-o", f"{name}.safetensors")
    one, same, other = (next(iter(load_file(f"{name}.safetensors").values())) for name in ("one", "same", "other"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_every_call_gets_the_inputs_as_they_were(here: Path) -> None:
    class Writer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * 1

    api.save(torch.export.export(Writer(), (torch.ones(3),)), "writer.pt2")
    save_file({"x": torch.zeros(3)}, "in.safetensors")
    result = run("writer.pt2", "--inputs", "in.safetensors", "--calls", "2", "--json")
    assert [next(iter(call.values()))["max"] for call in json.loads(result.stdout)["calls"]] == [1, 1]


def test_an_output_that_exists_is_kept_without_force(inputs: Path) -> None:
    Path("out.safetensors").write_bytes(b"as before")
    arguments = ["counter.pt2", "--inputs", "in.safetensors", "-o", "out.safetensors"]
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert Path("out.safetensors").read_bytes() == b"as before"
    assert run(*arguments, "--force").exit_code == 0
    assert len(load_file("out.safetensors")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["counter.pt2", "-o", "out.npz"], "'.safetensors'"),
        (["counter.pt2", "--inputs", "nowhere.safetensors"], "nowhere.safetensors: found no file"),
        (["counter.pt2", "--inputs", "factories.py"], "factories.py: found a file of an unknown kind"),
        (["factories.py"], "factories.py"),
        (["bins.pt2"], "input 'ids': found integers whose use"),
        (["counter.pt2", "--calls", "0"], "--calls"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_leaves_no_file(
    inputs: Path, arguments: list[str], message: str
) -> None:
    held = set(inputs.iterdir())
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert set(inputs.iterdir()) == held


def test_a_call_that_fails_leaves_no_file(inputs: Path) -> None:
    save_file({"x": torch.ones(7, 4)}, "large.safetensors")
    files = ["--inputs", "in.safetensors", "--inputs", "large.safetensors"]
    result = run("counter.pt2", *files, "-o", "out.safetensors")
    assert result.exit_code == 2
    assert "expected 1 to 6" in result.stderr
    assert not Path("out.safetensors").exists()


def test_the_example_of_a_target_tells_what_integers_may_be(here: Path) -> None:
    refused = run("bins.pt2")
    assert refused.exit_code == 2
    assert "input 'ids': found integers whose use" in refused.stderr
    assert "or --against TARGET, whose example inputs tell." in refused.stderr
    result = run("bins.pt2", "--against", "factories.py:bins", "--calls", "2", "-o", "out.safetensors")
    assert result.exit_code == 0, result.output
    assert "note: the integers of input 'ids' were drawn from 2 to 4, as in the example" in result.stdout
    for index in (1, 2):
        found = load_file("out.safetensors")[f"{index}/output[0]"]
        assert found.sum() == found[2:5].sum() > 0
    told = json.loads(run("bins.pt2", "--against", "factories.py:bins", "--json").stdout)
    assert told["findings"] == ["the integers of input 'ids' were drawn from 2 to 4, as in the example"]


def test_inputs_and_an_example_contradict(inputs: Path) -> None:
    result = run("counter.pt2", "--inputs", "in.safetensors", "--against", "factories.py:counter")
    assert result.exit_code == 2
    assert "--against: found --inputs beside it" in result.stderr
