"""How long calls took, as frozen data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it: half of the values lie between the two.

    Attributes:
        median: The value in the middle.
        lower: First quartile.
        upper: Third quartile.
    """

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """The spread of two values or more.

        Example:
            >>> Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
            Spread(median=3.0, lower=2.0, upper=4.0)
        """
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, lower, upper)


@dataclass(frozen=True)
class Row:
    """What one side showed.

    Attributes:
        name: Name of the side.
        first_call_s: Seconds of its first call; None when that raised.
        steady_s: Seconds of a call after the warm-up; None when a call raised.
        ratio: How many times as long as the first side's a call takes, taken round by round; None for the first side,
            and when a call raised.
        fault: What a call raised, or no text.
    """

    name: str
    first_call_s: float | None
    steady_s: Spread | None
    ratio: Spread | None
    fault: str = ""


@dataclass(frozen=True)
class Measurement:
    """What `measure` found.

    Attributes:
        rows: One for each side.
        rounds: How often each side was timed.
        warm_up: How many rounds before those were not timed.
    """

    rows: tuple[Row, ...]
    rounds: int
    warm_up: int

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; all times in seconds."""
        return asdict(self)
