"""Medians of calls that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]


def medians(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Median microseconds of each call. The calls take turns; each turn is an untimed call and a timed one."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds):
        names = [*calls][index % len(calls) :] + [*calls][: index % len(calls)]
        for name in names:
            calls[name]()
            begin = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e6 * statistics.median(of_call) for name, of_call in times.items()}
