"""Named sizes of a program: what range each has, and where a call first tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from intarsia._torch import is_unbounded
from intarsia.core.dim import Dim, Symbol, from_expression
from intarsia.errors import ArgumentError

Sizes: TypeAlias = dict[str, int]


@dataclass(frozen=True)
class Range:
    """Sizes that are allowed, both ends included; None for an end that is open."""

    lower: int | None
    upper: int | None

    def allows(self, size: int) -> bool:
        """Whether a size is in the range."""
        return (self.lower is None or self.lower <= size) and (self.upper is None or size <= self.upper)

    def __str__(self) -> str:
        if self.upper is None:
            return "any size" if self.lower is None else f"{self.lower} or more"
        return f"at most {self.upper}" if self.lower is None else f"{self.lower} to {self.upper}"


class NamedSizes:
    """The named sizes of a program.

    torch gives every size that it was told nothing about the range "2 or more", and runs it with 0 and 1 all the
    same; so is it here. Any other range holds as it stands.

    Attributes:
        ranges: Allowed sizes, by name or by expression.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.ranges: dict[Dim, Range] = dict(_read_ranges(program))
        self._by_name = {dim.name: allowed for dim, allowed in self.ranges.items() if isinstance(dim, Symbol)}
        self._sources: dict[str, str] = {}

    def note_source(self, name: str, source: str) -> None:
        """Note where a call tells a size, for messages; the first source counts."""
        self._sources.setdefault(name, source)

    def bind(self, name: str, size: int, sizes: Sizes, subject: str, found: str) -> None:
        """Enter what a name stands for in this call into `sizes`.

        Raises:
            ArgumentError: Another input told another size, or the size is out of range.
        """
        if name in sizes and sizes[name] != size:
            expected = f"{sizes[name]}, the same as {self._sources[name]}"
            raise ArgumentError(subject, found=found, expected=expected, fix="Make the two sizes equal.")
        _check(self._by_name.get(name), size, subject, found)
        sizes[name] = size

    def check_range(self, dim: Dim, size: int, subject: str, found: str) -> None:
        """Refuse a size outside of its range.

        Raises:
            ArgumentError: The size is out of range.
        """
        _check(self.ranges.get(dim), size, subject, found)


def _check(allowed: Range | None, size: int, subject: str, found: str) -> None:
    if allowed is not None and not allowed.allows(size):
        raise ArgumentError(subject, found=found, expected=f"{allowed}", fix="Pass a size in that range.")


def _read_ranges(program: torch.export.ExportedProgram) -> Iterable[tuple[Dim, Range]]:
    for expression, bounds in program.range_constraints.items():
        dim = from_expression(expression)
        if dim is None or is_unbounded(bounds):
            continue
        lower = int(bounds.lower) if bounds.lower.is_Integer else None
        upper = int(bounds.upper) if bounds.upper.is_Integer else None
        untold = lower == 2 and upper is None
        yield dim, Range(None if untold else lower, upper)
