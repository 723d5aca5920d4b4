"""How the test vectors of two files differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from intarsia.core.vectors import Tolerance, Vector, Vectors
from intarsia.report.vectors import compare_vectors

TOLERANCES = {torch.float32: Tolerance(1e-4, 1e-4)}


def vectors(*calls: Vector, tolerances: Any = None, coarsest: torch.dtype = torch.float32) -> Vectors:
    methods = {call.method: (coarsest,) for call in calls}
    return Vectors(calls, TOLERANCES if tolerances is None else tolerances, methods)


def call(value: Any = 1.0, answer: Any = 2.0, written: Any = None, *, method: str = "forward") -> Vector:
    return Vector(method, (torch.ones(2), value), (answer,), {} if written is None else {0: written})


def found(before: Vectors, after: Vectors) -> list[tuple[Any, ...]]:
    changes = compare_vectors(before, after)
    assert {change.part for change in changes} <= {"test vector"}
    return [(change.method, *change[2:]) for change in changes]


def test_equal_ones_do_not_differ() -> None:
    values = torch.tensor([torch.nan, -0.0]), None, True, 3, torch.nan, "text"
    for value in values:
        assert found(vectors(call(value, value, value)), vectors(call(value, value, value))) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.tensor([0.0, -0.0])),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.tensor(1), 1),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        (None, 0),
    ],
)
def test_values_that_differ_in_anything(one: Any, other: Any) -> None:
    for place, name in enumerate(["input 1", "output 0", "input 0 after the call"]):
        calls = [call(*[value if index == place else 7 for index in range(3)]) for value in (one, other)]
        ((method, subject, before, after),) = found(*(vectors(call(), changed) for changed in calls))
        assert (method, subject) == ("forward", f"call 2, {name}")
        assert before != after


def test_a_value_is_told_by_its_type_and_its_bytes() -> None:
    ((_, _, before, after),) = found(vectors(call(torch.zeros(2))), vectors(call(0.5)))
    assert (before, after) == ("f32[2], af5570f5a181", "0.5")


def test_calls_that_one_file_lacks_and_calls_of_another_method() -> None:
    one = vectors(call(method="prefill"), call(method="decode"))
    other = vectors(call(method="prefill"), call(method="prefill"), call(method="decode"))
    assert [change for change in found(one, other) if change[1].startswith("call")] == [
        ("decode", "call 2", "decode", "prefill"),
        ("decode", "call 3", None, "decode"),
    ]
    assert found(one, vectors()) == [("prefill", "call 1", "prefill", None), ("decode", "call 2", "decode", None)]


def test_what_a_call_wrote_only_in_one_file() -> None:
    ((_, subject, before, after),) = found(vectors(call(written=1)), vectors(call()))
    assert (subject, before, after) == ("call 1, input 0 after the call", "1", None)


def test_tolerances() -> None:
    wide = {torch.float32: Tolerance(1e-2, 1e-2), torch.float16: Tolerance(1e-2, 1e-3)}
    assert found(vectors(call()), vectors(call(), tolerances=wide)) == [
        ("", "tolerance of f32", "0.0001 + 0.0001*|x|", "0.01 + 0.01*|x|"),
        ("", "tolerance of f16", None, "0.001 + 0.01*|x|"),
    ]
    assert found(vectors(call()), vectors(call(), coarsest=torch.bfloat16)) == [
        ("", "coarsest dtypes of the outputs of forward", "f32", "bf16")
    ]
