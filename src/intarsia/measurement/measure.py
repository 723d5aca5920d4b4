"""`measure`: how long the calls of several sides take, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from intarsia.errors import first_line
from intarsia.measurement.result import Measurement, Row, Spread

WARM_UP = 3
"""Rounds that are not timed, after the first call of each side."""

PAUSE_S = 0.01
"""Seconds before each turn, in which the threads that the turn before left spinning go to sleep."""

_REPORTS = 10  # rounds are short, and a line for each would be many

Sides: TypeAlias = Mapping[str, Callable[[], Any]]
"""What is measured: each callable makes one call."""


def measure(
    sides: Sides,
    rounds: int,
    *,
    prepare: Sides = MappingProxyType({}),
    may_fail: Collection[str] = (),
    progress: Callable[[int, int, str], None],
) -> Measurement:
    """Time the calls of several sides, taken in turns, so that what else the machine does meets all of them alike.

    First each side is called once, which is its first call. Then come `WARM_UP` rounds that are not timed, and then
    `rounds` that are. In a round each side has one turn, and another one is first every time. A turn is a pause of
    `PAUSE_S`, a call that is not timed, and a call that is: the first finds caches and threads as another side left
    them.

    Args:
        sides: The first one is what the others are compared with.
        rounds: How often each side is timed, at least twice.
        prepare: By name of a side: what is called before each of its calls, and is not timed.
        may_fail: Names of sides that are left out from the first call on that raises; not that of the first side.
        progress: Called with steps done, steps in all, and the name of the next one.

    Returns:
        Times of each side. What a side that may fail raised is told in its row.

    Raises:
        Exception: A side that may not fail raised it.

    Example:
        >>> found = measure({"sum": lambda: sum(range(9)), "max": lambda: max(range(9))}, 3, progress=lambda *_: None)
        >>> [row.name for row in found.rows if row.ratio], found.rounds
        (['max'], 3)
    """
    clocks = [_Clock(call, prepare.get(name, _nothing), may_fail=name in may_fail) for name, call in sides.items()]
    total = len(clocks) + WARM_UP + rounds
    for done, (name, clock) in enumerate(zip(sides, clocks, strict=True)):
        progress(done, total, f"first call, {name}")
        clock.first()
    for index in range(WARM_UP + rounds):
        if index % max(1, rounds // _REPORTS) == 0:
            progress(len(clocks) + index, total, "warm-up" if index < WARM_UP else "rounds")
        first = index % len(clocks)
        for clock in (*clocks[first:], *clocks[:first]):
            clock.turn(is_timed=index >= WARM_UP)
    progress(total, total, "")
    rows = tuple(clock.row(name, clocks[0]) for name, clock in zip(sides, clocks, strict=True))
    return Measurement(rows, rounds, WARM_UP)


class _Clock:
    """Times the calls of one side, until one raises."""

    def __init__(self, call: Callable[[], Any], prepare: Callable[[], Any], *, may_fail: bool) -> None:
        self._call = call
        self._prepare = prepare
        self._may_fail = may_fail
        self._first: float | None = None
        self._times: list[float] = []
        self._fault = ""

    def first(self) -> None:
        self._first = self._seconds()

    def turn(self, *, is_timed: bool) -> None:
        if self._fault:
            return
        time.sleep(PAUSE_S)
        if self._seconds() is None:
            return
        seconds = self._seconds()
        if is_timed and seconds is not None:
            self._times.append(seconds)

    def row(self, name: str, base: _Clock) -> Row:
        if self._fault:
            return Row(name, self._first, None, None, self._fault)
        ratio = None
        if base is not self:
            ratio = Spread.of([mine / other for mine, other in zip(self._times, base._times, strict=True)])
        return Row(name, self._first, Spread.of(self._times), ratio)

    def _seconds(self) -> float | None:
        self._prepare()
        _finish()
        begin = time.perf_counter()
        try:
            self._call()
            _finish()
        except Exception as error:
            if not self._may_fail:
                raise
            self._fault = f"{type(error).__name__}: {first_line(error)}"
            return None
        return time.perf_counter() - begin


def _nothing() -> None:
    pass


def _finish() -> None:
    """Wait for an accelerator, whose calls return before they are done."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
