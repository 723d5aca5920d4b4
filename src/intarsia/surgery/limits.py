"""What an export takes on at most. Far beyond what models need; a graph beyond it is refused by name."""

from __future__ import annotations

from intarsia.errors import HybridError

MAX_DEPTH = 1_000
"""Partitions nested in one another."""

MAX_BODY_DEPTH = 20
"""Bodies of higher-order operators inside one another; torch runs each in calls of Python within the last."""

MAX_NODES = 5_000_000
"""Calls of operators in the exported graph."""

MAX_SYMBOLS = 10_000
"""Symbols in the sizes of the exported graph."""


def check_limit(kind: str, name: str, count: int, limit: int, counted: str) -> None:
    """Refuse what goes beyond a limit.

    Args:
        kind: What the error is about: a node, a partition.
        name: Its name.
        count: How many there are.
        limit: How many there may be.
        counted: What is counted, in the plural.

    Raises:
        HybridError: There are too many.
    """
    if count > limit:
        raise HybridError(
            f"{kind} '{name[:200]}'",
            found=f"{count} {counted}",
            expected=f"at most {limit}",
            fix="Export it in parts, or raise the limit in intarsia.surgery.limits.",
        )
