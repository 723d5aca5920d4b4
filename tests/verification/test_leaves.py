"""Errors of single leaves, and which of them are within tolerance."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from intarsia.verification.bits import difference
from intarsia.verification.leaves import LeafErrors, compare_leaf
from intarsia.verification.result import Check, Verification
from intarsia.verification.tolerances import EXACT, TOLERANCES, tolerance_of

LARGE = 2**60
NAN, INF = math.nan, math.inf


def leaf(found: Any, expected: Any, dtype: torch.dtype = torch.float32) -> Any:
    return compare_leaf("y", torch.tensor(found, dtype=dtype), torch.tensor(expected, dtype=dtype))


def test_one_element_of_several_is_compared_as_it_is() -> None:
    pair = torch.tensor([1.0, 2.0])[::2]
    assert not difference(pair, torch.tensor([1.0]))
    assert difference(pair, torch.tensor([1.5])) == "other bits, at most 0.5 apart"


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_an_error_within_the_tolerance_passes_and_one_beyond_fails(dtype: torch.dtype) -> None:
    allowed = tolerance_of(dtype)
    inside, outside = (
        8 + 0.5 * (allowed.absolute + 8 * allowed.relative),
        8 + 4 * (allowed.absolute + 8 * allowed.relative),
    )
    assert leaf([inside], [8.0], dtype).ok
    assert not leaf([outside], [8.0], dtype).ok


@pytest.mark.parametrize(
    ("found", "expected", "dtype", "ok"),
    [
        ([1, 2], [1, 2], torch.int64, True),
        ([LARGE + 1], [LARGE], torch.int64, False),
        ([True], [False], torch.bool, False),
        ([NAN, 1.0], [NAN, 1.0], torch.float32, True),
        ([NAN], [1.0], torch.float32, False),
        ([1.0], [NAN], torch.float32, False),
        ([INF], [INF], torch.float32, True),
        ([INF], [-INF], torch.float32, False),
        ([1.0], [INF], torch.float32, False),
        ([INF], [1.0], torch.float32, False),
        ([], [], torch.float32, True),
        ([1e-5], [0.0], torch.float32, True),
    ],
)
def test_special_values(found: Any, expected: Any, dtype: torch.dtype, ok: bool) -> None:
    assert leaf(found, expected, dtype).ok is ok


def test_errors_are_told() -> None:
    found = leaf([1.0, 3.0], [1.0, 4.0])
    assert (found.absolute_error, found.relative_error, found.dtype, found.shape) == (1.0, 0.25, "f32", (2,))


def test_what_cannot_be_compared_fails_with_a_reason() -> None:
    one = torch.ones(2)
    assert "float32[2], not float64[2]" in compare_leaf("y", one, one.double()).note
    assert "float32[2], not float32[1, 2]" in compare_leaf("y", one, one[None]).note
    assert compare_leaf("y", 3, 4).note == "3, not 4"
    assert not compare_leaf("y", True, 1).ok
    assert compare_leaf("y", None, None).ok


def test_the_worst_call_counts() -> None:
    errors = LeafErrors({})
    for value in (1.0, 2.0, 1.0):
        errors.add({"y": torch.tensor(value)}, {"y": torch.tensor(1.0)})
    (worst,) = errors.close()
    assert (worst.ok, worst.absolute_error) == (False, 1.0)


def test_an_unknown_dtype_is_compared_exactly() -> None:
    assert tolerance_of(torch.int8) is EXACT
    assert tolerance_of(torch.float8_e5m2) is EXACT


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
        (torch.ones(1), torch.ones(1, 1)),
        (1, True),
        (1.0, -1.0),
        ("a", None),
        (torch.tensor([1j]).conj(), torch.tensor([1j])),
    ],
)
def test_one_bit_is_a_difference(found: Any, expected: Any) -> None:
    assert difference(found, expected)
    assert not difference(found, found)


def test_nan_is_the_same_as_itself() -> None:
    assert not difference(torch.tensor([NAN]), torch.tensor([NAN]))
    assert not difference(math.nan, math.nan)
    assert not difference(torch.ones(3, 2).t(), torch.ones(2, 3))


def test_the_table() -> None:
    leaves = (leaf([1.0], [1.0]), leaf([2.0], [1.0]))
    checks = (Check("outputs", ok=True), Check("graph", ok=None, detail="no retrace"))
    result = Verification(leaves, checks, ("a finding",), 3, ("x.shape[0] = 1",))
    assert not result.ok
    assert str(result).splitlines() == [
        "verification: FAILED, 3 calls",
        "  sizes tried: x.shape[0] = 1",
        "against the model  type    max abs  max rel  allowed",
        "  y                  f32[1]  0.0e+00  0.0e+00  0.0001 + 0.0001*|x|  ok",
        "  y                  f32[1]  1.0e+00  1.0e+00  0.0001 + 0.0001*|x|  DIFFERS",
        "parity",
        "  outputs  ok",
        "  graph    not compared  no retrace",
        "note: a finding",
    ]


def test_only_a_failed_check_fails() -> None:
    def of(*checks: bool | None) -> bool:
        return Verification((), tuple(Check("graph", ok=ok) for ok in checks), (), 1, ()).ok

    assert of(True, None)
    assert not of(True, False)
