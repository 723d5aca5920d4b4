"""What partitions do with integers: told to who draws inputs, where it can be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance import Calls, export
from torch.export import Dim

from intarsia.core.uses import describe_integers

TABLE = torch.zeros(7, 4)
IDS, MASK = torch.tensor([[0, 6], [3, 1]]), torch.tensor([[1, 1], [1, 0]])


def positions(dim: int, size: int, *, counts_back: bool = False) -> dict[str, Any]:
    return {"positions": [{"input": 1, "dim": dim, "size": size, "counts_back": counts_back}]}


@pytest.mark.parametrize(
    ("function", "described"),
    [
        (lambda table, i: F.embedding(i, table), positions(0, 7)),
        (lambda table, i: table[:, i.view(-1).to(torch.int32)], positions(1, 4, counts_back=True)),
        (lambda table, i: table.gather(-1, i), positions(1, 4)),
        (lambda table, i: table[:2, :2].masked_fill(i == 0, 1.0), {"masks": [1]}),
        (lambda table, i: table[:2, :2] * i.float(), {"masks": [1]}),
        (lambda table, i: (table[:2, :2] * i.float(), i.view(-1)), {}),
        (lambda table, i: F.embedding(i.cumsum(1), table), {}),
        (lambda table, i: F.embedding(i, table) + torch.topk(i, 1)[0].float().sum(), {}),
    ],
    ids=["embedding", "index", "gather", "mask", "weights", "returned", "computed", "also something else"],
)
def test_integers_are_described_where_they_can_be_told(function: Callable[..., Any], described: Any) -> None:
    assert describe_integers(export(Calls(function), (TABLE, IDS % 4))) == described


def test_positions_along_a_size_that_varies_are_not_told() -> None:
    rows = ({0: Dim("rows", min=2, max=9)}, None)
    assert describe_integers(export(Calls(lambda table, i: table[i]), (TABLE, IDS), rows)) == {}
