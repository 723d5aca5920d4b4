"""What the program returns comes back as itself: nesting, registered containers, constants, one node twice."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from transformers.modeling_outputs import BaseModelOutputWithPooling

from builders.hybrids import (
    CUTS,
    Buffer,
    Draft,
    aten,
    captured,
    describe,
    fuse,
    give_convention,
    hybrid,
    parameter,
    strip,
    tensor,
)
from builders.laws import FORMS, call, check

X, Y = tensor(1, 2, 4), tensor(2, 2, 4)
CALLS = [call(X), call(Y)]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Result:
    score: Any
    extra: Any


torch.export.register_dataclass(Result, serialized_type_name="tests.conformance.Result")
pytree._register_namedtuple(Pair, serialized_type_name="tests.conformance.Pair")

SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "bare": lambda a, b: a,
    "tuple of one": lambda a, b: (a,),
    "list of one": lambda a, b: [a],
    "pair": lambda a, b: (b, a),
    "twice": lambda a, b: (a, b, a, a),
    "dict": lambda a, b: {"z": a, "a": b},
    "deep": lambda a, b: {"out": [a, (b, None, [])], "more": {"k": (a,), 3: b}},
    "constants": lambda a, b: (None, 3, a, True, 2.5, -1),
    "nothing": lambda a, b: None,
    "empty": lambda a, b: (),
    "no tensor": lambda a, b: {"n": None, "i": 1},
}
REGISTERED: dict[str, Callable[[Any, Any], Any]] = {
    "named tuple": lambda a, b: Pair(a, [b, Pair(None, a)]),
    "dataclass": lambda a, b: Result(a, {"b": b, "r": Result(b, None)}),
    "ordered dict": lambda a, b: collections.OrderedDict(z=a, a=b),
    "model output": lambda a, b: BaseModelOutputWithPooling(last_hidden_state=a, hidden_states=(b, a)),
}


def forms_of(shape: str) -> list[str]:
    """Torch saves a program without outputs, and cannot load it."""
    return [form for form in FORMS if (form, shape) != ("file", "empty")]


def two(g: Draft) -> Any:
    a = g.placeholder("a")
    return g.op(aten.mul.Tensor, a, g.get_attr("w")), g.op(aten.exp.default, a)


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_output_structure_of_plain_code(shape: str, described: bool) -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            result = g.part("part", g.placeholder("x"))
            return SHAPES[shape](g.item(result, 0), g.item(result, 1))

        module = hybrid(top, {"part": hybrid(two, {"w": parameter(tensor(5, 4))})})
        return describe(module, (X,)) if described else module

    forms = forms_of(shape) if described else ["memory"]
    check(build, CALLS, examples=None if described else CALLS[0], forms=forms)


@pytest.mark.parametrize("shape", {**SHAPES, **REGISTERED})
def test_an_output_structure_by_convention(shape: str) -> None:
    shapes = {**SHAPES, **REGISTERED}

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            result = g.part("part", g.placeholder("x"))
            return pytree.tree_leaves(shapes[shape](g.item(result, 0), g.item(result, 1)))

        module = hybrid(top, {"part": hybrid(two, {"w": parameter(tensor(5, 4))})})
        return describe(give_convention(module, ["x"], ((0,), {}), shapes[shape](0, 1)), (X,))

    if shape not in ("constants", "no tensor", "nothing", "deep"):
        check(build, CALLS, forms=forms_of(shape))


class Returning(torch.nn.Module):
    def __init__(self, shape: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.shape = shape
        self.w = torch.nn.Parameter(tensor(5, 4, 4))

    def forward(self, x: torch.Tensor) -> Any:
        h = x @ self.w
        return self.shape(h.relu(), h.sum() - x)


@pytest.mark.parametrize("shape", {**SHAPES, **REGISTERED})
def test_an_output_structure_of_a_captured_model(shape: str) -> None:
    model = Returning({**SHAPES, **REGISTERED}[shape])
    check(lambda: fuse(captured(model, (X,)), lambda index: index // 2), CALLS, forms=forms_of(shape))


@pytest.mark.parametrize("cut", CUTS)
def test_containers_in_containers_under_every_cut(cut: str) -> None:
    model = Returning(lambda a, b: {"p": Pair(a, (b, None)), "r": Result([a, 2], b)})
    check(lambda: CUTS[cut](captured(model, (X,))), CALLS, forms=["memory"])


def test_inputs_and_state_are_returned() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x, y = g.inputs("x y")
            return y, g.get_attr("w"), x, g.get_attr("b"), g.get_attr("c"), g.part("part", x), y, g.get_attr("w")

        part = hybrid(lambda g: g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w")), {"w": tensor(8, 4)})
        state = {"w": parameter(tensor(5, 4)), "b": Buffer(tensor(6, 4)), "c": tensor(7, 4)}
        return describe(hybrid(top, {**state, "part": part}), (X, Y))

    check(build, [call(X, Y), call(Y, X)])


def test_the_whole_result_of_a_partition_is_the_output() -> None:
    def build() -> GraphModule:
        module = hybrid(lambda g: g.part("part", g.placeholder("x")), {"part": hybrid(two, {"w": tensor(5, 4)})})
        return describe(module, (X,))

    check(build, CALLS)
    check(lambda: strip(build()), CALLS, examples=CALLS[0], forms=["memory"])


def test_the_result_of_a_partition_with_its_own_containers() -> None:
    def fill(g: Draft) -> Any:
        a = g.placeholder("a")
        return [g.op(aten.exp.default, a), a]

    part = give_convention(hybrid(fill), ["a"], ((0,), {}), Pair(0, Result(1, None)))

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            result = g.part("part", g.placeholder("x"))
            return {"all": result, "first": g.item(result, 0)}

        return describe(hybrid(top, {"part": part}), (X,))

    check(build, CALLS)
