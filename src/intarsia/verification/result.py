"""What verification found, as frozen data, and its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intarsia.core.vectors import Tolerance


@dataclass(frozen=True)
class Leaf:
    """One output leaf, or one state entry, of the program against the model, over all calls.

    Attributes:
        name: How the caller reaches it ("output['tokens']", "state 'cache'").
        dtype: Short name of the dtype, or of the Python type of what is no tensor.
        shape: Shape in the last call; None for what is no tensor.
        absolute_error: Largest `|found - expected|`; infinite where the two cannot be compared.
        relative_error: The largest error of a call divided by the largest `|expected|` of that call.
        tolerance: What was allowed.
        ok: Whether every element of every call was within it.
        note: What could not be compared, and why.

    Example:
        >>> leaf = Leaf("output", "f32", (2, 4), 3e-8, 2e-7, Tolerance(1e-4, 1e-4), ok=True)
        >>> str(leaf.tolerance)
        '0.0001 + 0.0001*|x|'
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    absolute_error: float
    relative_error: float
    tolerance: Tolerance
    ok: bool
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One question of parity.

    Attributes:
        name: What was compared: `calls`, `outputs`, `state`, `inputs`, `graph`, `signature`, `structure` or `ranges`.
        ok: Whether the two sides are equal; None when they could not be compared, which is no failure.
        detail: The first difference, or why there was nothing to compare.

    Example:
        >>> Check("ranges", ok=False, detail="a size that goes to 8, where the other goes to 16").name
        'ranges'
    """

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Replay:
    """What the test vectors of a file told.

    Attributes:
        calls: How many of them were called.
        leaves: Errors against the recorded answers.
        fault: What a call raised, which ended the replay, or no text.

    Example:
        >>> print(Replay(2, (), fault="test vector 2 raises IndexError: index out of range"))
        test vectors: FAILED, 2 calls
          test vector 2 raises IndexError: index out of range
    """

    calls: int
    leaves: tuple[Leaf, ...]
    fault: str = ""

    @property
    def ok(self) -> bool:
        """Whether every answer was within the recorded tolerances."""
        return not self.fault and all(leaf.ok for leaf in self.leaves)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, see `Verification.to_json`."""
        return _finite({"ok": self.ok, **asdict(self)})

    def __str__(self) -> str:
        return "\n".join([f"test vectors: {'ok' if self.ok else 'FAILED'}, {_count(self.calls)}", *self.lines()])

    def lines(self) -> list[str]:
        """The errors as lines of a table, and the fault."""
        return _leaf_table("against the test vectors", self.leaves) + ([f"  {self.fault}"] if self.fault else [])


@dataclass(frozen=True)
class Verification:
    """The result of `intarsia.verify`.

    Attributes:
        leaves: Errors against the model; empty without a reference.
        parity: Comparison with the retraced program and with the eager graph, to the bit.
        findings: What else came up, none of which is a fault of the program.
        calls: How many calls were compared.
        sizes: The sizes that were tried, one text for each corner of the ranges.
        replay: What the test vectors of the file told, or None where it has none.

    Example:
        >>> parity = Check("calls", ok=True), Check("graph", ok=None, detail="torch refuses it")
        >>> print(Verification(leaves=(), parity=parity, findings=(), calls=3, sizes=()))
        verification: ok, 3 calls
        parity
          calls   ok
          graph   not compared  torch refuses it
    """

    leaves: tuple[Leaf, ...]
    parity: tuple[Check, ...]
    findings: tuple[str, ...]
    calls: int
    sizes: tuple[str, ...]
    replay: Replay | None = None

    @property
    def ok(self) -> bool:
        """Whether every leaf is within its tolerance and nothing that could be compared differs."""
        answers = self.replay is None or self.replay.ok
        return answers and all(leaf.ok for leaf in self.leaves) and all(check.ok is not False for check in self.parity)

    def check(self, name: str) -> Check:
        """The check of one name.

        Raises:
            KeyError: There is none of that name.
        """
        found = {check.name: check for check in self.parity}
        return found[name]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; an error that is infinite or NaN, of what cannot be compared, becomes None."""
        return {**_finite({"ok": self.ok, **asdict(self)}), "replay": self.replay and self.replay.to_json()}

    def __str__(self) -> str:
        return self.text("verification")

    def text(self, heading: str) -> str:
        """The result as a table under a heading."""
        lines = [f"{heading}: {'ok' if self.ok else 'FAILED'}, {_count(self.calls)}"]
        lines += [f"  sizes tried: {'; '.join(self.sizes)}"] if self.sizes else []
        lines += [] if self.replay is None else self.replay.lines()
        lines += _leaf_table("against the model", self.leaves)
        lines += _align([("parity", "", ""), *((check.name, _word(check.ok), check.detail) for check in self.parity)])
        lines += [f"note: {finding}" for finding in self.findings]
        return "\n".join(lines)


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a comparison, with None for errors that JSON cannot hold."""
    for leaf in facts["leaves"]:
        for name in ("absolute_error", "relative_error"):
            leaf[name] = leaf[name] if math.isfinite(leaf[name]) else None
    return facts


def _leaf_table(heading: str, leaves: Sequence[Leaf]) -> list[str]:
    if not leaves:
        return []
    rows = [(heading, "type", "max abs", "max rel", "allowed", "")]
    for leaf in leaves:
        kind = leaf.dtype if leaf.shape is None else f"{leaf.dtype}{list(leaf.shape)}"
        is_compared = not leaf.note or math.isfinite(leaf.absolute_error)
        errors = (f"{leaf.absolute_error:.1e}", f"{leaf.relative_error:.1e}") if is_compared else ("-", "-")
        verdict = f"{_word(leaf.ok)} {leaf.note}".rstrip()
        rows.append((leaf.name, kind, *errors, str(leaf.tolerance), verdict))
    return _align(rows)


def _count(calls: int) -> str:
    return f"{calls} call{'' if calls == 1 else 's'}"


def _word(ok: bool | None) -> str:  # noqa: FBT001 - the three answers of a check
    return "not compared" if ok is None else "ok" if ok else "DIFFERS"


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [("" if index == 0 else "  ") + line.rstrip() for index, line in enumerate(lines)]
