"""Draw where the operators of a compiled hybrid run, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.core.coverage import Coverage
from intarsia.report.drawing import plain_table

LITTLE_SHARE = 0.5
"""Below this share of the operators, engines got little of a model. It counts operators, whatever each one costs."""


def draw_coverage(coverage: Coverage, *, notes: Sequence[str] = ()) -> RenderableType:
    """A headline, a table with one line per operator and reason, and advice where engines got little of the model.

    Args:
        coverage: What `intarsia.coverage(hybrid)` returns.
        notes: Further advice, printed first.

    Returns:
        Something that a rich console prints.
    """
    rows = [
        (group.operator, coverage.kind_of_place(group), str(group.count), group.reason)
        for group in coverage.by_operator()
    ]
    rows += [(operator, "removed", str(count), why) for (operator, why), count in coverage.removals().items()]
    parts: list[RenderableType] = [
        Text(f"{coverage.headline()}."),
        plain_table(("operator", "runs in", "nodes", "why"), rows),
    ]
    if coverage.failed:
        parts.append(plain_table(("could not be built", "why"), coverage.failed))
    parts += [Text(line) for line in (*notes, *advice(coverage))]
    return Group(*parts)


def advice(coverage: Coverage) -> Iterator[str]:
    """What to say where engines got little of the model (see `LITTLE_SHARE`): nothing where they got enough.

    Example:
        >>> from intarsia.core.coverage import OperatorPlacement
        >>> placement = OperatorPlacement("sort", "aten.sort.default", "torch", "no OpenVINO form")
        >>> for line in advice(Coverage((placement,))):
        ...     print(line)
        Engines got little of this model: 0 of 1 operators, less than half.
        Most of what stays in torch: 1 aten.sort.default (no OpenVINO form).
        Replace such operators in the model, keep fewer in torch, or allow smaller engines.
        Otherwise plain torch may be as fast.
    """
    if coverage.share >= LITTLE_SHARE:
        return
    left = [group for group in coverage.by_operator() if not group.in_engine][:3]
    inside = sum(group.count for group in coverage.by_operator() if group.in_engine)
    yield f"Engines got little of this model: {inside} of {len(coverage.placements)} operators, less than half."
    yield f"Most of what stays in torch: {', '.join(f'{g.count} {g.operator} ({g.reason})' for g in left)}."
    yield "Replace such operators in the model, keep fewer in torch, or allow smaller engines."
    yield "Otherwise plain torch may be as fast."


def coverage_json(coverage: Coverage, *, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The coverage as JSON values: one entry per operator, place and reason, as the table shows them.

    Args:
        coverage: What `intarsia.coverage(hybrid)` returns.
        notes: Further advice.
    """
    return {
        "engines": list(coverage.engines),
        "backends": dict(coverage.backends),
        "share_in_engines": coverage.share,
        "operators": [
            {
                "operator": g.operator,
                "in_engine": g.in_engine,
                "backend": g.backend,
                "nodes": g.count,
                "why": g.reason,
            }
            for g in coverage.by_operator()
        ],
        "removed": [
            {"operator": operator, "nodes": count, "why": why} for (operator, why), count in coverage.removals().items()
        ],
        "not_built": [{"partition": name, "why": why} for name, why in coverage.failed],
        "advice": [*notes, *advice(coverage)],
    }
