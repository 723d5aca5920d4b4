"""Positions that are read and written at: inside of a tensor, counted back, none at all, and outside."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance.case import Case
from torch.export import Dim

# A function of a table [3, 4] and of positions, and the least and the greatest of them.
_Lookup = tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, int]]
_LOOKUPS: dict[str, _Lookup] = {
    "embedding": (lambda a, i: F.embedding(i, a), (0, 2)),
    "index_select": (lambda a, i: a.index_select(1, i), (0, 3)),
    "gather": (lambda a, i: a.gather(1, i.view(1, -1).expand(3, -1)), (0, 3)),
    "index": (lambda a, i: a[i], (-3, 2)),
    "index of a later axis": (lambda a, i: a[:, i.view(-1, 1)], (-4, 3)),
    "index of two axes": (lambda a, i: a[i, i], (-3, 2)),
    "take": (lambda a, i: a.take(i), (-12, 11)),
    "computed": (lambda a, i: F.embedding(i * 2 - i, a), (0, 2)),
    "index_put": (lambda a, i: torch.index_put(a, (i,), a[0] * 2), (-3, 2)),
    "index_add": (lambda a, i: a.index_add(0, i, a[:2] * 2), (0, 2)),
    "index_copy": (lambda a, i: a.index_copy(0, i, a[:2] * 2), (0, 2)),
    "index_fill": (lambda a, i: a.index_fill(0, i, 7.0), (-3, 2)),
    "scatter": (lambda a, i: a.scatter(0, i[:, None], 7.0), (0, 2)),
    "scatter of values": (lambda a, i: a.scatter(0, i[:, None], a[:2]), (0, 2)),
    "scatter_add": (lambda a, i: a.scatter_add(0, i[:, None], a[:2]), (0, 2)),
}


def _lookup(function: Callable[..., torch.Tensor], lowest: int, highest: int, dtype: torch.dtype) -> Case:
    table = torch.randn(3, 4)

    def call(*positions: int) -> tuple[torch.Tensor, ...]:
        return table, torch.tensor(positions, dtype=dtype)

    wide = 2**40 if dtype is torch.int64 else 2**31 - 1
    wrong = tuple(call(0, position) for position in (lowest - 1, highest + 1, wide))
    return Case(function, (call(lowest, highest), call(1, 0)), wrong=wrong, tolerance=1e-6)


def _table_of_any_size() -> Case:
    """Positions that are inside of the largest table, and of this one or not."""
    function, calls = _LOOKUPS["index"][0], [(3, 2), (9, 8), (3, -3), (1, 0)]
    given = tuple((torch.randn(rows, 4), torch.tensor([0, position])) for rows, position in calls)
    wrong = tuple((torch.randn(rows, 4), torch.tensor([0, position])) for rows, position in [(3, 3), (3, -4), (1, 8)])
    return Case(function, given, ({0: Dim("table_rows", min=1, max=9)}, None), wrong=wrong)


def _any_number_of_positions() -> Case:
    """None among them."""
    table = torch.randn(3, 4)
    given = tuple((table, torch.arange(count) % 3) for count in (4, 0, 1, 9))
    function = lambda a, i: (a[i], F.embedding(i, a), a.index_select(0, i))  # noqa: E731
    wrong = ((table, torch.tensor([3])), (table, torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, -4])))
    return Case(function, given, (None, {0: Dim("positions", min=0, max=9)}), wrong=wrong)


def _often_the_same() -> Case:
    """Sums of many numbers at each position, added in one order (torch itself adds in any by `index_put`)."""
    values, positions = torch.randn(4096, 8), torch.randint(0, 3, (4096,))
    return Case(
        lambda a, v, i: (
            a.index_add(0, i, v), a.scatter_add(0, i[:, None].expand(-1, 8), v),
            a.scatter_reduce(0, i[:, None].expand(-1, 8), v, "sum"),
        ),
        ((torch.zeros(3, 8), values, positions),),
        tolerance=1e-4,
    )  # fmt: skip


def lookup_cases() -> dict[str, Case]:
    """Cases of positions."""
    narrow = ("embedding", "index_select", "index")
    return {
        **{name: _lookup(function, *bounds, torch.int64) for name, (function, bounds) in _LOOKUPS.items()},
        **{f"{name}, 32 bits": _lookup(_LOOKUPS[name][0], *_LOOKUPS[name][1], torch.int32) for name in narrow},
        "index of a table of any size": _table_of_any_size(),
        "any number of positions": _any_number_of_positions(),
        "positions that are often the same": _often_the_same(),
    }
