"""`intarsia bench`: which sides are timed, with which inputs; no test here looks at how long anything took."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from intarsia.cli.application import app
from intarsia.measurement import Measurement, Row, Spread
from intarsia.runtime.program import Program


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments, "--calls", "2"])


@pytest.fixture(autouse=True)
def no_pause_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("intarsia.measurement.measure"), "PAUSE_S", 0)
    monkeypatch.setattr(torch, "compile", lambda model: model)


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the first input of each call of a program."""
    seen: list[tuple[int, ...]] = []
    call = Program.__call__

    def watched(self: Program, *args: Any, **kwargs: Any) -> Any:
        seen.append(tuple(args[0].shape))
        assert not torch.is_grad_enabled()
        return call(self, *args, **kwargs)

    monkeypatch.setattr(Program, "__call__", watched)
    return seen


def test_a_file_is_timed_against_eager_and_compiled_with_the_targets_inputs(
    here: Path, shapes: list[tuple[int, ...]]
) -> None:
    before = (here / "counter.pt2").read_bytes()
    result = bench("counter.pt2", "--against", "factories.py:counter", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [row["name"] for row in told["rows"]] == ["counter.pt2", "eager", "torch.compile"]
    assert [row["ratio"] is None for row in told["rows"]] == [True, False, False]
    assert all(row["steady_s"]["lower"] <= row["steady_s"]["median"] for row in told["rows"])
    assert told["rounds"] == 2
    assert told["warm_up"] == 3
    assert told["load_s"] > 0
    assert set(shapes) == {(3, 4)}
    assert (here / "counter.pt2").read_bytes() == before


@pytest.mark.parametrize("target", [[], ["--against", "factories.py:counter"]])
def test_given_inputs_count_before_all_others(here: Path, shapes: list[tuple[int, ...]], target: list[str]) -> None:
    save_file({"x": torch.ones(5, 4)}, "in.safetensors")
    result = bench("counter.pt2", *target, "--inputs", "in.safetensors")
    assert result.exit_code == 0, result.output
    assert set(shapes) == {(5, 4)}
    assert "2 rounds, after the first calls and 3 rounds of warm-up" in result.stdout
    assert ("eager" in result.stdout) is bool(target)


def test_a_compiler_that_does_not_work_is_told_in_its_row(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            message = "no C++ compiler"
            raise RuntimeError(message)

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    result = bench("counter.pt2", "--against", "factories.py:counter")
    assert result.exit_code == 0, result.output
    assert "torch.compile does not work here: RuntimeError: no C++ compiler" in result.stdout


def test_a_side_has_its_own_copy_of_the_inputs(here: Path) -> None:
    from intarsia.cli.benching import _side
    from intarsia.verification import Call

    x = torch.zeros(2)
    one, other = (_side(Call((x,), {}), lambda y: y.add_(1).clone()) for _ in range(2))
    assert [one().max(), one().max(), other().max(), x.max()] == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bins.pt2"], "Add --inputs"),
        (
            ["counter.pt2", "--against", "factories.py:other_inputs"],
            "target 'factories.py:other_inputs', call: found 2",
        ),
        (["nowhere.pt2"], "nowhere.pt2"),
        (["counter.pt2", "--inputs", "factories.py"], "found a file of an unknown kind"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_exit_code_2(here: Path, arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_given_inputs_that_do_not_fit_are_not_the_targets_fault(here: Path) -> None:
    save_file({"x": torch.ones(7, 4)}, "large.safetensors")
    for target in ([], ["--against", "factories.py:counter"]):
        result = bench("counter.pt2", *target, "--inputs", "large.safetensors")
        assert result.exit_code == 2
        assert "error: input 'x': found size 7" in result.stderr


def test_a_model_that_refuses_the_inputs_is_told(here: Path) -> None:
    save_file({"x": torch.ones(3, 4)}, "in.safetensors")
    result = bench("counter.pt2", "--against", "factories.py:other_inputs", "--inputs", "in.safetensors")
    assert result.exit_code == 2
    assert "the reference: found a model that raises TypeError" in result.stderr


def test_each_call_starts_from_the_first_state(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    call = Program.__call__

    def watched(self: Program, *args: Any, **kwargs: Any) -> Any:
        seen.append(self.state["total"].abs().max().item())
        return call(self, *args, **kwargs)

    monkeypatch.setattr(Program, "__call__", watched)
    (here / "stateful.py").write_text(
        "import torch\n"
        "class Fills(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('total', torch.zeros(1))\n"
        "    def forward(self, x):\n"
        "        self.total.add_(1)\n"
        "        if not torch.compiler.is_compiling():\n"
        "            assert self.total.item() == 1, 'not the first state'\n"
        "        return x + self.total\n"
        "def fills():\n"
        "    return Fills(), (torch.ones(2),), None, None\n"
    )
    assert CliRunner().invoke(app, ["compile", "stateful.py:fills", "-o", "fills.pt2"]).exit_code == 0
    result = bench("fills.pt2", "--against", "stateful.py:fills")
    assert result.exit_code == 0, result.output
    assert set(seen) == {0.0}
    assert len(seen) == 1 + 2 * (3 + 2)


def test_inputs_of_several_calls_are_refused(here: Path) -> None:
    result = bench("counter.pt2", "--inputs", "a.safetensors", "--inputs", "b.safetensors")
    assert result.exit_code == 2
    assert "error: --inputs: found 2 files, expected one" in result.stderr


def test_the_ratio_says_what_is_over_what(here: Path) -> None:
    told = bench("counter.pt2", "--against", "factories.py:counter").stdout
    assert "over the file's" in told
    assert "2 takes twice as long as the file" in told


@pytest.mark.parametrize(
    ("ratio", "told"), [(0.000123, "0.000123"), (0.5, "0.500"), (2.0, "2.00"), (12.345, "12.3"), (1234.5, "1234")]
)
def test_a_ratio_has_three_significant_digits(
    here: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, told: str
) -> None:
    spread = Spread(ratio, ratio, ratio)
    rows = (Row("file", 1.0, spread, None), Row("model", 1.0, spread, spread))
    monkeypatch.setattr("intarsia.measurement.measure", lambda *_, **__: Measurement(rows, 3, 1))
    monkeypatch.setenv("COLUMNS", "200")
    assert f"{told} ({told} to {told})" in bench("counter.pt2", "--against", "factories.py:counter").stdout


@pytest.mark.parametrize(("upper", "hinted"), [(2.5, False), (4.0, True)])
def test_quartiles_far_apart_are_answered_with_a_hint(
    here: Path, monkeypatch: pytest.MonkeyPatch, upper: float, hinted: bool
) -> None:
    row = Row("counter.pt2", 1.0, Spread(2.0, 1.0, upper), None)
    monkeypatch.setattr("intarsia.measurement.measure", lambda *_, **__: Measurement((row,), 2, 3))
    assert ("OMP_WAIT_POLICY=PASSIVE" in bench("counter.pt2").stdout) is hinted
