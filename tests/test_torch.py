"""What stands in for a function of torch gives what that one gives."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch._export.serde.serialize import _dict_to_dataclass
from torch.export import Dim, export

from intarsia._torch import _schema_reader, graph_schema, serialize_graph


class Kinds(torch.nn.Module):
    """Arguments, state and results of many kinds, and graphs in graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.table = torch.arange(4.0)

    def forward(self, x: torch.Tensor, *, scale: float, flag: bool) -> dict[str, Any]:
        self.calls.add_(1)
        rows = torch.cond(x.sum() > 0, lambda x: self.layer(x) + 1, lambda x: x * 2, (x,))
        parts = torch.split(torch.cat([rows, x]), [1, x.shape[0] * 2 - 1])
        low = parts[0].clamp(min=float("-inf"), max=0.5).to(torch.float16).sum(-1, dtype=torch.float64)
        return {"parts": parts, "low": low * scale + self.table, "rows": x.shape[0], "flag": flag, "none": None}


def test_a_graph_becomes_the_objects_that_torch_makes_of_it() -> None:
    shapes = {"x": {0: Dim("rows", min=1, max=8)}, "scale": None, "flag": None}
    captured = export(Kinds(), (torch.ones(3, 4),), {"scale": 2.0, "flag": True}, dynamic_shapes=shapes)
    for program in (captured, captured.run_decompositions({})):
        values = {**json.loads(serialize_graph(program, {})), "of_a_newer_torch": 1}
        expected = _dict_to_dataclass(graph_schema().program, values)
        found = _schema_reader(graph_schema().program)(values)
        assert found == expected
        assert repr(found) == repr(expected)
