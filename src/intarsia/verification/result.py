"""What verification found, as frozen data, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.verification.tolerances import Tolerance


@dataclass(frozen=True)
class Leaf:
    """One output leaf, or one state entry, of the program against the model, over all calls.

    Attributes:
        name: How the caller reaches it ("output['tokens']", "state 'cache'").
        dtype: Short name of the dtype, or of the Python type of what is no tensor.
        shape: Shape in the last call.
        absolute_error: Largest `|found - expected|`; infinite where the two cannot be compared.
        relative_error: The largest error of a call divided by the largest `|expected|` of that call.
        tolerance: What was allowed.
        ok: Whether every element of every call was within it.
        note: What could not be compared, and why.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
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
    """

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    """The result of `intarsia.verify`.

    Attributes:
        leaves: Errors against the model; empty without a reference.
        parity: Comparison with the retraced program and with the eager graph, to the bit.
        findings: What else came up, none of which is a fault of the program.
        calls: How many calls were compared.
        sizes: The sizes that were tried, one text for each corner of the ranges.
    """

    leaves: tuple[Leaf, ...]
    parity: tuple[Check, ...]
    findings: tuple[str, ...]
    calls: int
    sizes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every leaf is within its tolerance and nothing that could be compared differs."""
        return all(leaf.ok for leaf in self.leaves) and all(check.ok is not False for check in self.parity)

    def check(self, name: str) -> Check:
        """The check of one name.

        Raises:
            KeyError: There is none of that name.
        """
        found = {check.name: check for check in self.parity}
        return found[name]

    def __str__(self) -> str:
        lines = [f"verification: {'ok' if self.ok else 'FAILED'}, {self.calls} calls"]
        lines += [f"  sizes tried: {'; '.join(self.sizes)}"] if self.sizes else []
        lines += _leaf_table(self.leaves)
        lines += _align([("parity", "", ""), *((check.name, _word(check.ok), check.detail) for check in self.parity)])
        lines += [f"note: {finding}" for finding in self.findings]
        return "\n".join(lines)


def _leaf_table(leaves: Sequence[Leaf]) -> list[str]:
    if not leaves:
        return []
    rows = [("against the model", "type", "max abs", "max rel", "allowed", "")]
    for leaf in leaves:
        shape = f"{leaf.dtype}{list(leaf.shape)}"
        errors = f"{leaf.absolute_error:.1e}", f"{leaf.relative_error:.1e}"
        verdict = f"{_word(leaf.ok)} {leaf.note}".rstrip()
        rows.append((leaf.name, shape, *errors, str(leaf.tolerance), verdict))
    return _align(rows)


def _word(ok: bool | None) -> str:  # noqa: FBT001 - the three answers of a check
    return "not compared" if ok is None else "ok" if ok else "DIFFERS"


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [("" if index == 0 else "  ") + line.rstrip() for index, line in enumerate(lines)]
