"""The coarsest dtype on the way to a result, and what verification allows for it."""

from __future__ import annotations

import pytest
import torch

import intarsia
from intarsia.verification import TOLERANCES
from intarsia.verification.leaves import compare_leaf
from intarsia.verification.precision import coarsest_dtypes

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
X = torch.linspace(-1, 1, 8)


class Rounding(torch.nn.Module):
    """Two results that pass through bf16, one of them through a buffer; one that does not; and what is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, dtype=BF16), requires_grad=False)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        before = self.seen * 2
        self.seen.copy_((x * 3).to(BF16).float())
        return {"weighed": x * self.weight.float(), "seen": before, "cast": x.to(BF16).float(), "best": x.argmax()}

    def read(self, x: torch.Tensor) -> torch.Tensor:
        return self.seen + x


def test_only_what_is_computed_of_inputs_and_written_state_counts() -> None:
    program = torch.export.export(Rounding(), (X,)).run_decompositions({})
    found = coarsest_dtypes({"": program})
    assert found["output['weighed']"] is F32
    assert found["output['cast']"] is BF16
    assert found["output['seen']"] is BF16
    assert found["state 'seen'"] is BF16


def test_what_one_method_rounds_is_coarse_in_the_other_one() -> None:
    model = Rounding()
    examples = {"write": (X,), "read": (X,)}
    methods = intarsia.compile({"write": model, "read": model.read}, examples, min_block_size=99)
    found = coarsest_dtypes(intarsia.export(methods))
    assert found["read: output"] is BF16
    assert found["write: output['weighed']"] is F32


@pytest.mark.parametrize(("own", "coarsest", "allowed"), [(F32, BF16, BF16), (F16, F32, F16), (BF16, F16, BF16)])
def test_the_larger_tolerance_is_allowed(own: torch.dtype, coarsest: torch.dtype, allowed: torch.dtype) -> None:
    leaf = compare_leaf("y", torch.ones(1, dtype=own), torch.ones(1, dtype=own), coarsest)
    assert leaf.tolerance == TOLERANCES[allowed]


def test_integers_are_exact_whatever_they_come_of() -> None:
    assert not compare_leaf("y", torch.tensor([8]), torch.tensor([9]), BF16).ok


def test_a_neighbour_in_bf16_is_no_fault_and_the_same_error_elsewhere_is_one() -> None:
    model = Rounding()
    program = torch.export.export(model, (X,)).run_decompositions({})
    assert intarsia.verify(program, Nudged(), inputs=[((X,), {})]).ok
    worse = intarsia.verify(program, Nudged(error=2**-8), inputs=[((X,), {})])
    assert [leaf.name for leaf in worse.leaves if not leaf.ok] == ["output['weighed']"]


class Nudged(Rounding):
    """Computes what passes through bf16 to the next neighbour, and all else with an error."""

    def __init__(self, error: float = 0.0) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(x)
        return {**found, "cast": found["cast"] * (1 + 2**-8), "weighed": found["weighed"] * (1 + self.error)}
