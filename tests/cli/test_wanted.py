"""Backends and their options as a command line tells them."""

from __future__ import annotations

import pytest

from intarsia.cli.wanted import read_backends, read_options
from intarsia.errors import ArgumentError


def test_backends_are_an_order_and_what_is_told_of_parts_is_one_too() -> None:
    texts = ["onnxruntime", " openvino ", "encoder.layer.0=torch", "aten.linear=openvino", "aten.linear=onnxruntime"]
    assert read_backends(texts) == {
        "": ["onnxruntime", "openvino"],
        "encoder.layer.0": ["torch"],
        "aten.linear": ["openvino", "onnxruntime"],
    }


@pytest.mark.parametrize(
    ("text", "found"), [("", "no name"), ("encoder=", "no name"), ("=openvino", "nothing before the equals sign")]
)
def test_a_backend_without_a_part_is_an_error(text: str, found: str) -> None:
    with pytest.raises(ArgumentError, match=f"--backend {text}: found {found}"):
        read_backends([text])


def test_options_of_one_backend_have_no_other_name() -> None:
    assert read_options(["A=1", "B=x:y", "C=[1, 2]", "D.E=true"], ["one"]) == {
        "A": 1,
        "B": "x:y",
        "C": [1, 2],
        "D.E": True,
    }


def test_options_of_several_backends_are_told_with_their_names() -> None:
    assert read_options(["one:A=1", "two:A=2", "one:B=x"], ["one", "two"]) == {
        "one": {"A": 1, "B": "x"},
        "two": {"A": 2},
    }


@pytest.mark.parametrize(
    ("texts", "backends", "message"),
    [
        (["A"], ["one"], "--option A: found no name and value, expected NAME=VALUE"),
        (["=3"], ["one"], "--option =3: found no name, expected"),
        (["A=1", "A=2"], ["one"], "--option A: found two values, 1 and 2"),
        (
            ["A=1"],
            ["one", "two"],
            r"found no backend whose option it is, expected BACKEND:NAME=VALUE.*Write --option one:A=1\.",
        ),
        (["one:=1"], ["one", "two"], "found no backend whose option it is"),
        (["one:A=1", "one:A=2"], ["one", "two"], "--option A: found two values, 1 and 2"),
    ],
)
def test_an_option_that_cannot_be_read_is_an_error(texts: list[str], backends: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_options(texts, backends)
