"""Draw where the operators of a compiled hybrid run, and why."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.core.coverage import Coverage
from intarsia.report.drawing import plain_table


def draw_coverage(coverage: Coverage) -> RenderableType:
    """A headline, a table with one line per operator and reason, and what was removed or could not be built.

    Args:
        coverage: What `intarsia.coverage(hybrid)` returns.

    Returns:
        Something that a rich console prints.
    """
    rows = [
        (group.operator, "engine" if group.in_engine else "torch", str(group.count), group.reason)
        for group in coverage.by_operator()
    ]
    parts: list[RenderableType] = [
        Text(f"{coverage.headline()}."),
        plain_table(("operator", "runs in", "nodes", "why"), rows),
    ]
    if coverage.removed:
        removals = [(reason, str(count)) for reason, count in coverage.removals().items()]
        parts.append(plain_table(("removed before partitioning", "nodes"), removals))
    if coverage.failed:
        parts.append(plain_table(("could not be built, stays in torch", "why"), coverage.failed))
    return Group(*parts)
