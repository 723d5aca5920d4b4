"""Sides are called in turns, as often as is said; no test here looks at how long anything took."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable

import pytest

from intarsia.measurement import WARM_UP, Row, Spread, measure

MODULE = importlib.import_module("intarsia.measurement.measure")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "PAUSE_S", 0)


def quiet(*_: object) -> None: ...


def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on only when it is told to."""
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(MODULE.time, "perf_counter", lambda: now[0])
    return advance


def test_every_side_is_called_as_often_and_another_one_is_first_each_time() -> None:
    called: list[str] = []
    sides = {name: lambda name=name: called.append(name) for name in "abc"}
    result = measure(sides, 4, progress=quiet)
    assert result.rounds == 4
    assert result.warm_up == WARM_UP
    assert called[:3] == ["a", "b", "c"]
    turns = ["".join(called[start : start + 6]) for start in range(3, len(called), 6)]
    assert len(turns) == WARM_UP + 4
    assert turns[:4] == ["aabbcc", "bbccaa", "ccaabb", "aabbcc"]


def test_first_call_and_steady_calls_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = ticking(monkeypatch)
    times = iter([9.0, *[5.0] * 2 * WARM_UP, 7.0, 1.0, 7.0, 3.0, 7.0, 2.0])
    (row,) = measure({"file": lambda: advance(next(times))}, 3, progress=quiet).rows
    assert row == Row("file", 9.0, Spread(2.0, 1.5, 2.5), None)


def test_ratios_are_taken_round_by_round_to_the_first_side(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = ticking(monkeypatch)
    calls = Counter[str]()

    def side(name: str, factor: float) -> Callable[[], None]:
        def call() -> None:
            calls[name] += 1
            advance(factor * calls[name])  # both slow down alike, as on a machine that others use

        return call

    file, eager = measure({"file": side("file", 2), "eager": side("eager", 3)}, 5, progress=quiet).rows
    assert file.ratio is None
    assert eager.ratio == Spread(1.5, 1.5, 1.5)
    assert file.steady_s != Spread(2, 2, 2)


@pytest.mark.parametrize("good", [0, 1, 2, 2 * WARM_UP + 2])
def test_a_side_that_may_fail_is_left_out_from_then_on(good: int) -> None:
    calls = Counter[str]()

    def fail() -> None:
        calls["compiled"] += 1
        if calls["compiled"] > good:
            message = "no compiler\nat all"
            raise RuntimeError(message)

    file, compiled = measure({"file": dict, "compiled": fail}, 2, may_fail={"compiled"}, progress=quiet).rows
    assert calls["compiled"] == good + 1
    assert compiled.fault == "RuntimeError: no compiler"
    assert compiled.steady_s is compiled.ratio is None
    assert (compiled.first_call_s is None) == (good == 0)
    assert file.steady_s
    assert not file.fault


def test_what_another_side_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        measure({"file": lambda: 1 // 0, "other": dict}, 2, may_fail={"other"}, progress=quiet)


def test_progress_begins_at_nothing_ends_at_all_and_is_told_a_few_times() -> None:
    told: list[tuple[int, int, str]] = []
    measure({"a": dict, "b": dict}, 100, progress=lambda *step: told.append(step))
    total = 2 + WARM_UP + 100
    assert told[:3] == [(0, total, "first call, a"), (1, total, "first call, b"), (2, total, "warm-up")]
    assert told[-1] == (total, total, "")
    assert len(told) < 20
    assert sorted(told, key=lambda step: step[0]) == told


def test_an_accelerator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = ticking(monkeypatch)
    monkeypatch.setattr(MODULE.torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(MODULE.torch.accelerator, "synchronize", lambda: advance(4.0))
    (row,) = measure({"file": dict}, 2, progress=quiet).rows
    assert row.first_call_s == 4.0
    assert row.steady_s == Spread(4.0, 4.0, 4.0)


def test_a_side_is_prepared_before_each_call_and_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = ticking(monkeypatch)
    done: list[str] = []

    def prepare() -> None:
        done.append("prepare")
        advance(100.0)

    def call() -> None:
        done.append("call")
        advance(1.0)

    sides = {"file": call, "other": lambda: advance(2.0)}
    file, other = measure(sides, 2, prepare={"file": prepare}, progress=quiet).rows
    assert (file.first_call_s, file.steady_s, other.ratio) == (1.0, Spread(1.0, 1.0, 1.0), Spread(2.0, 2.0, 2.0))
    assert done == ["prepare", "call"] * (1 + 2 * (WARM_UP + 2))
