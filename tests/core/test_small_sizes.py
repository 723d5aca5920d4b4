"""What torch captures wrongly of sizes of 0 and 1 is found, and nothing else; eager torch tells which it is."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

from intarsia.core.small_sizes import misfits


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def find(function: Callable[[torch.Tensor], torch.Tensor], least: int) -> dict[str, str]:
    rows = Dim("rows", min=least, max=9)
    program = torch.export.export(Calls(function), (torch.randn(3, 4),), dynamic_shapes=({0: rows},))
    program = program.run_decompositions({})
    found = misfits(program.graph, program.range_constraints)
    return {node.name: str(misfit) for node, misfit in found.items()}


@pytest.mark.parametrize(
    ("function", "least", "expected"),
    [
        (lambda x: x[:1].exp(), 0, {"slice_1": 0, "exp": 0}),
        (lambda x: x.exp()[:1], 1, {}),
        (lambda x: x[:2].exp().sum(0), 1, {"slice_1": 1, "exp": 1, "sum_1": 1}),
        (lambda x: x[:2].exp().sum(0), 2, {}),
        (lambda x: x.squeeze(0).exp(), 1, {"squeeze": 1, "exp": 1}),
        (lambda x: x[0].exp(), 0, {"select": 0}),
        (lambda x: x.exp().amax(0), 0, {"amax": 0}),
        (lambda x: x.exp().amax(0), 1, {}),
        (lambda x: (x.exp().reshape(-1, 2) + 1).softmax(-1).mean(0), 0, {}),
        (lambda x: torch.cat([x, x * 2]).view(-1, 2, 2).transpose(1, 2).reshape(2 * x.shape[0], 4), 0, {}),
        (lambda x: x + torch.arange(x.shape[0], device="cpu").unsqueeze(1) * x.shape[0], 0, {}),
        (lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]), 1, {}),
        (lambda x: x.max(1)[1], 0, {}),
        (lambda x: x[x > 0].sum(), 0, {}),
    ],
)
def test_calls_that_are_captured_wrongly_are_found(
    function: Callable[[torch.Tensor], torch.Tensor], least: int, expected: dict[str, int]
) -> None:
    """An expectation names calls, and the rows at which torch refuses them or they meet another shape than captured."""
    found = find(function, least)
    assert {name: int(text.split(" = ")[1].split(",")[0]) for name, text in found.items()} == expected


def test_it_tells_the_shapes_and_the_refusal() -> None:
    assert find(lambda x: x[:1] * 2, 0)["mul"] == (
        "where x.shape[0] = 0, it meets f32[0, 4], which torch captured as f32[1, 4]"
    )
    assert "torch refuses it (select(): index 0 out of range" in find(lambda x: x[0], 0)["select"]


def test_what_torch_cannot_try_without_data_is_not_blamed(caplog: pytest.LogCaptureFixture) -> None:
    assert find(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + x.nonzero().sum(), 0) == {}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
