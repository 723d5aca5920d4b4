"""`intarsia verify`: the exit code is the verdict, and misfits are one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

import intarsia
from intarsia.cli.application import app
from intarsia.formats.saving import save_methods


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


@pytest.mark.parametrize("target", ["counter", "counter_program"])
def test_a_file_that_is_right_passes_against_its_model(here: Path, target: str) -> None:
    result = verify("counter.pt2", "--against", f"factories.py:{target}")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("verification: ok, 12 calls")
    assert "output['rows']" in result.stdout
    assert "state 'total'" in result.stdout


def test_without_a_model_it_is_parity_alone(here: Path) -> None:
    result = verify("counter.pt2", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["ok"] is True
    assert told["leaves"] == []
    assert len(told["sizes"]) == 4


def test_a_wrong_model_is_exit_code_1(here: Path) -> None:
    result = verify("counter.pt2", "--against", "factories.py:other_weights")
    assert result.exit_code == 1, result.output
    assert "verification: FAILED" in result.stdout
    told = json.loads(verify("counter.pt2", "--against", "factories.py:other_weights", "--json").stdout)
    assert told["ok"] is False


def test_a_factory_that_gives_other_weights_at_every_call_is_told(here: Path) -> None:
    result = verify("counter.pt2", "--against", "factories.py:unseeded")
    assert result.exit_code == 2
    assert "found a model with other weights at every call" in result.stderr
    assert "torch.manual_seed(0)" in result.stderr


def test_given_inputs_are_used(here: Path) -> None:
    for name, rows in (("a", 2), ("b", 5), ("large", 7)):
        save_file({"x": torch.ones(rows, 4)}, f"{name}.safetensors")
    arguments = ["counter.pt2", "--against", "factories.py:counter", "--inputs", "a.safetensors"]
    result = verify(*arguments, "--inputs", "b.safetensors")
    assert result.exit_code == 0, result.output
    assert "ok, 6 calls" in result.stdout
    assert "inputs were given" in result.stdout
    refused = verify(*arguments, "--inputs", "large.safetensors")
    assert refused.exit_code == 2
    assert "input 'x': found size 7" in refused.stderr


def test_the_example_of_the_target_tells_what_integers_may_be(here: Path) -> None:
    refused = verify("bins.pt2")
    assert refused.exit_code == 2
    assert "input 'ids': found integers whose use" in refused.stderr
    assert "--against TARGET" in refused.stderr
    assert "inputs=" not in refused.stderr
    result = verify("bins.pt2", "--against", "factories.py:bins")
    assert result.exit_code == 0, result.output
    assert "the integers of input 'ids' were drawn from 2 to 4" in result.stdout


def test_a_model_that_returns_something_else_is_wrong(here: Path) -> None:
    result = verify("counter.pt2", "--against", "factories.py:other_outputs")
    assert result.exit_code == 1
    assert "the model does not return it" in result.stdout
    assert "the program does not return it" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["counter.pt2", "--against", "factories.py:other_inputs"], "the reference: found a model that raises"),
        (["bins.pt2", "--against", "factories.py:counter"], "the example inputs: found ((*,), {'scale': *})"),
        (["counter.pt2", "--against", "factories.py:nothing"], "factories.py:nothing"),
        (["nowhere.pt2"], "nowhere.pt2"),
        (["factories.py"], "factories.py"),
        (["counter.pt2", "--inputs", "counter.pt2"], "counter.pt2: found a PT2 archive, expected a safetensors file"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_exit_code_2(here: Path, arguments: list[str], message: str) -> None:
    result = verify(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_another_model_is_told_by_the_names_of_its_arguments(here: Path) -> None:
    result = verify("counter.pt2", "--against", "factories.py:other_inputs")
    assert result.exit_code == 2
    assert "Its forward takes input; the program takes x, scale." in result.stderr


def test_test_vectors_are_recorded_shown_and_made_again(here: Path) -> None:
    made = CliRunner().invoke(app, ["compile", "factories.py:counter", "-o", "told.pt2", "--test-vectors"])
    assert made.exit_code == 0, made.output
    result = verify("told.pt2")
    assert result.exit_code == 0, result.output
    assert "against the test vectors" in result.stdout
    shown = CliRunner().invoke(app, ["inspect", "told.pt2"])
    assert "1 test vector: calls with their answers" in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["inspect", "told.pt2", "--json"]).stdout)
    assert told["test_vectors"] == 1


def test_an_answer_beyond_its_tolerance_is_exit_code_1(here: Path) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    other = torch.export.export(torch.nn.Tanh(), (torch.ones(2),))
    intarsia.save(program, "one.pt2", test_vectors=[((torch.ones(2),), {})])
    vectors = intarsia.load("one.pt2").test_vectors
    save_methods({"forward": other}, "other.pt2", facts={"forward": {}}, vectors=vectors)
    result = verify("other.pt2")
    assert result.exit_code == 1, result.output
    assert "DIFFERS" in result.stdout
    assert json.loads(verify("other.pt2", "--json").stdout)["replay"]["ok"] is False
