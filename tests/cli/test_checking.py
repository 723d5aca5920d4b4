"""`intarsia check`: its answers, its exit codes, its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from intarsia.cli.application import app
from intarsia.formats import fitness
from intarsia.formats.fitness import Fitness


def run(*arguments: str):
    return CliRunner().invoke(app, ["check", *arguments], prog_name="intarsia")


def test_a_file_that_runs(here: Path) -> None:
    result = run("counter.pt2")
    assert (result.exit_code, result.stdout) == (0, "runs here\n")


@pytest.mark.parametrize(
    ("names", "heading"),
    [("a", "runs here after rebuilding 1 engine:"), ("ab", "runs here after rebuilding 2 engines:")],
)
def test_a_file_that_runs_after_rebuilding(
    here: Path, monkeypatch: pytest.MonkeyPatch, names: str, heading: str
) -> None:
    found = Fitness((), {f"engine '{name}'": "another version [1.0] built it" for name in names}, {})
    monkeypatch.setattr(fitness, "check_fitness", lambda _: found)
    result = run("counter.pt2")
    lines = [f"  engine '{name}': another version [1.0] built it" for name in names]
    assert (result.exit_code, result.stdout.splitlines()) == (0, [heading, *lines])
    facts = json.loads(run("counter.pt2", "--json").stdout)
    assert facts["verdict"] == "runs after rebuilding"
    assert facts["rebuilt"][0] == {"engine": "engine 'a'", "reason": "another version [1.0] built it"}
    assert facts["made_with"] is None


def test_a_file_that_cannot_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise fitness.PackageNotFoundError(name)

    monkeypatch.setattr(fitness, "version", missing)
    result = run("counter.pt2")
    assert (result.exit_code, result.stdout) == (1, "cannot run here:\n  torch is not installed\n")
    result = run("counter.pt2", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["obstacles"] == ["torch is not installed"]


def test_what_only_loading_tells_is_a_note(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "check_fitness", lambda _: Fitness((), {}, {}, ("another [version] of 'a'",)))
    result = run("counter.pt2")
    assert (result.exit_code, result.stdout) == (0, "runs here\nnote: another [version] of 'a'\n")
    assert json.loads(run("counter.pt2", "--json").stdout)["notes"] == ["another [version] of 'a'"]


def test_the_facts_as_json(here: Path) -> None:
    facts = json.loads(run("counter.pt2", "--json").stdout)
    assert facts["file"] == "counter.pt2"
    assert facts["verdict"] == "runs"
    assert facts["made_with"]["torch"] == torch.__version__
    assert facts["methods"] == {"forward": {"engines": [], "packages": {}}}


def test_what_is_no_file_of_intarsia_cannot_be_checked(here: Path) -> None:
    torch.save({}, "weights.pt")
    for name, told in (("nothing.pt2", "found no file"), ("weights.pt", "found a checkpoint of torch.save")):
        result = run(name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr
