"""The account of an export: what became of every node, partition output, state entry, write and engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from intarsia.errors import ConventionError

Kind = Literal["node", "partition", "output", "state", "mutation", "engine", "user output"]
Fate = Literal["kept", "merged", "removed"]

# How a summary counts each kind, in the order of its lines.
_COUNTED: Mapping[Kind, tuple[str, str]] = {
    "partition": ("partition", "partitions"),
    "engine": ("engine", "engines"),
    "node": ("node", "nodes"),
    "output": ("partition output", "partition outputs"),
    "user output": ("user output", "user outputs"),
    "mutation": ("mutation", "mutations"),
    "state": ("state entry", "state entries"),
}
_MOST_REASONS = 4


class Entry(NamedTuple):
    """What became of one thing of the hybrid.

    Attributes:
        kind: What it is.
        subject: Its name in the hybrid, with the path of the partition call ("submod_1/add_2").
        fate: "kept", "merged" (into `image`) or "removed".
        image: Name in the exported program, or None when it was removed.
        reason: Why; empty for what was simply kept.

    Example:
        >>> Entry("node", "submod_1/add_2", "kept", "add_2").image
        'add_2'
    """

    kind: Kind
    subject: str
    fate: Fate
    image: str | None
    reason: str = ""


@dataclass(frozen=True)
class Ledger:
    """Every entry of one export, in the order in which the exporter met the things.

    Example:
        >>> ledger = Ledger((Entry("node", "relu", "kept", "relu"), Entry("node", "neg", "removed", None, "unused")))
        >>> print(ledger.summary())
        2 nodes: 1 kept, 1 removed (unused: 1)
    """

    entries: tuple[Entry, ...]

    def select(self, kind: Kind | None = None, fate: Fate | None = None) -> tuple[Entry, ...]:
        """Entries of one kind, of one fate, or both."""
        return tuple(e for e in self.entries if kind in (None, e.kind) and fate in (None, e.fate))

    def summary(self) -> str:
        """A line per kind: how many were kept, merged and removed, and for which reasons."""
        return "\n".join(self._line(kind, entries) for kind in _COUNTED if (entries := self.select(kind)))

    def _line(self, kind: Kind, entries: tuple[Entry, ...]) -> str:
        parts = []
        for fate in ("kept", "merged", "removed"):
            chosen = [entry for entry in entries if entry.fate == fate]
            if chosen:
                parts.append(f"{len(chosen)} {fate}{_reasons(chosen)}")
        return f"{len(entries)} {_COUNTED[kind][len(entries) != 1]}: {', '.join(parts)}"

    def to_json(self) -> list[dict[str, Any]]:
        """The entries as JSON values; `from_json` reads them back."""
        return [entry._asdict() for entry in self.entries]

    @classmethod
    def from_json(cls, values: Iterable[dict[str, Any]]) -> Ledger:
        """The ledger that `to_json` wrote."""
        return cls(tuple(Entry(**value) for value in values))


def told(ledger: Ledger | None) -> Ledger:
    """A ledger that there must be.

    Raises:
        ConventionError: There is none.
    """
    if ledger is None:
        raise ConventionError(
            "the program's ledger",
            found="none",
            expected="the account of the export that made the program",
            fix="Pass the very object that intarsia.export returned, or intarsia.load(path) of a saved file; "
            "of several methods, one of them.",
        )
    return ledger


def _reasons(entries: Iterable[Entry]) -> str:
    counts = Counter(entry.reason for entry in entries if entry.reason).most_common()
    parts = [f"{reason}: {count}" for reason, count in counts[:_MOST_REASONS]]
    others = sum(count for _, count in counts[_MOST_REASONS:])
    if others:
        parts.append(f"other reasons: {others}")
    return f" ({', '.join(parts)})" if parts else ""
