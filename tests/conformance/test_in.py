"""What the program takes: keywords, nesting, optional and defaulted inputs, numbers, nothing; and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule

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
    split,
    tensor,
    wrap,
)
from builders.laws import call, check, targets
from intarsia.errors import ConventionError
from intarsia.surgery import export

X, Y, Z = tensor(1, 2, 4), tensor(2, 2, 4), tensor(3, 2, 4)


def affine(g: Draft) -> Any:
    a, b, c = g.inputs("a b c")
    return g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, a, b), c)


def three(names: str = "x y z") -> GraphModule:
    def top(g: Draft) -> Any:
        return g.part("part", *g.inputs(names))

    return hybrid(top, {"part": hybrid(affine)})


@pytest.mark.parametrize(
    "examples",
    [call(X, Y, Z), call(X, z=Z, y=Y), call(X, y=Y, z=Z), call(z=Z, y=Y, x=X), call(x=X, y=Y, z=Z)],
    ids=["positional", "keywords reversed", "keywords", "keywords only, reversed", "keywords only"],
)
def test_examples_say_what_plain_code_takes(examples: Any) -> None:
    args, kwargs = examples
    again = call(*[tensor(8, 2, 4) for _ in args], **{name: tensor(ord(name), 2, 4) for name in reversed(kwargs)})
    check(three, [examples, again], examples=examples)
    check(lambda: describe(three(), (X, Y, Z)), [examples, again], examples=examples, forms=["memory"])


def test_without_examples_metadata_says_it() -> None:
    program = check(lambda: describe(three(), (X, Y, Z)), [call(X, Y, Z), call(Z, X, Y)])
    assert program.example_inputs is None
    assert targets(program, "USER_INPUT")[:3] == [None] * 3


NAMES = ["self_1 input output", "args kwargs forward", "getitem add mul", "x_1 x x_2", "größe ключ x", "p_w w part"]


@pytest.mark.parametrize("names", NAMES)
def test_awkward_input_names(names: str) -> None:
    check(lambda: describe(three(names), (X, Y, Z)), [call(X, Y, Z)])
    keywords = dict(zip(names.split(), (X, Y, Z), strict=True))
    check(lambda: three(names), [call(**keywords)], examples=call(**keywords), forms=["memory", "file"])


def test_inputs_that_nobody_reads() -> None:
    def part(g: Draft) -> Any:
        _, a, _ = g.inputs("u a v")
        return g.op(aten.exp.default, a)

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            _, x, v, _ = g.inputs("u x v w")
            return g.part("part", v, x, x)

        return describe(hybrid(top, {"part": hybrid(part)}), (X, Y, Z, X))

    program = check(build, [call(X, Y, Z, X)])
    assert [spec.arg.name for spec in program.graph_signature.input_specs] == ["u", "x", "v", "w"]


def test_a_program_without_inputs() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            return g.op(aten.mul.Tensor, g.part("part"), g.get_attr("w"))

        part = hybrid(lambda g: g.op(aten.exp.default, g.get_attr("b")), {"b": Buffer(tensor(5, 4))})
        return describe(hybrid(top, {"w": parameter(tensor(6, 4)), "part": part}))

    check(build, [call()])


def test_a_program_without_calls() -> None:
    check(lambda: describe(hybrid(lambda g: tuple(reversed(g.inputs("x y")))), (X, Y)), [call(X, Y), call(Y, X)])


class Nested(torch.nn.Module):
    def forward(self, first: Any, /, second: Any, *rest: Any, key: Any, other: Any = None, **more: Any) -> Any:
        total = first["a"][0] * second - rest[0] + rest[1][1] * key["deep"][0]
        total = total + more["last"] * 2
        return total if other is None else total * other


@pytest.mark.parametrize("cut", [split, fuse])
def test_every_kind_of_argument(cut: Any) -> None:
    inputs = call({"a": [X, Y]}, Y, Z, (X, Z), key={"deep": [X], "unused": Y}, last=Z)
    twice = call({"a": [Z, Y]}, X, Y, (X, X), last=X, key={"deep": [Y], "unused": Y})
    program = check(lambda: cut(captured(Nested(), *inputs), lambda index: index // 2), [inputs, twice])
    assert len(targets(program, "USER_INPUT")) == 9


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "inputs",
    [
        call({"a": (X, Y)}, Y, Z, (X, Z), key={"deep": [X]}, last=Z, other=X),
        call({"a": [X]}, Y, Z, (X, Z), key={"deep": [X]}, last=Z, other=None),
    ],
    ids=["given", "None"],
)
def test_an_optional_input_is_given_or_none(cut: str, inputs: Any) -> None:
    check(lambda: CUTS[cut](captured(Nested(), *inputs)), [inputs], forms=["memory"])


class Numbers(torch.nn.Module):
    def forward(self, x: torch.Tensor, power: int, scale: float, flip: bool, name: str, nothing: None) -> Any:  # noqa: PLR0917
        result = x**power * scale
        return (-result if flip else result), power


def test_numbers_among_the_inputs() -> None:
    inputs = call(X, 3, 0.5, True, "text", None)
    program = check(
        lambda: fuse(captured(Numbers(), inputs[0]), lambda index: index // 2), [inputs, call(Y, *inputs[0][1:])]
    )
    module = program.module()
    for position, other in [(1, 4), (2, 0.25), (3, False), (4, "other")]:
        wrong = [*inputs[0]]
        wrong[position] = other
        with pytest.raises(Exception, match=r"(?i)guard|expected|specialized"):
            module(*wrong)


@pytest.mark.parametrize("number", [3, 0.5, True, -2])
def test_numbers_of_plain_code(number: Any) -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x, n = g.inputs("x n")
            return g.part("part", n, x)

        def part(g: Draft) -> Any:
            n, x = g.inputs("n x")
            return g.op(aten.mul.Tensor, x, n)

        return hybrid(top, {"part": hybrid(part)})

    check(build, [call(X, number), call(Y, number)], examples=call(X, number), forms=["memory", "file"])


def test_a_container_for_one_placeholder_of_plain_code() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            pair, extra = g.inputs("pair extra")
            first = g.part("part", g.item(pair, 1), g.item(pair, 0))
            return g.op(aten.sub.Tensor, first, g.item(g.item(extra, "k"), 0))

        return hybrid(top, {"part": hybrid(lambda g: g.op(aten.div.Tensor, *g.inputs("a b")))})

    check(build, [call([X, Y], {"k": (Z,)}), call([Z, Y], {"k": (X,)})], examples=call([X, Y], {"k": (Z,)}))


@pytest.mark.parametrize("default", [None, 2.5, 3, True])
def test_defaults_are_left_out_or_given(default: Any) -> None:
    def build() -> GraphModule:
        def part(g: Draft) -> Any:
            a = g.placeholder("a")
            b = g.placeholder("b", default_value=default)
            value = g.op(aten.exp.default, a)
            return (value, b) if default is None else (g.op(aten.mul.Tensor, value, b), b)

        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            return g.part("part", x, g.placeholder("y", default_value=default))

        return hybrid(top, {"part": hybrid(part)})

    check(build, [call(X), call(Y)], examples=call(X), forms=["memory", "file"])
    check(lambda: describe(build(), (X,)), [call(X), call(Y)], forms=["memory", "file"])
    if default is not None:
        check(build, [call(X, Y)], examples=call(X, Y), forms=["memory", "file"])
        check(build, [call(X, y=Y)], examples=call(X, y=Y), forms=["memory", "file"])


def test_keyword_only_inputs_by_convention() -> None:
    def build() -> GraphModule:
        module = hybrid(lambda g: [g.part("part", *g.inputs("c a b"))], {"part": hybrid(affine)})
        give_convention(module, ["c", "a", "b"], ((), {"c": 0, "a": 1, "b": 2}), 0)
        return describe(module, (), {"c": X, "a": Y, "b": Z})

    check(build, [call(c=X, a=Y, b=Z), call(b=X, c=Y, a=Z)])


@pytest.mark.parametrize("bad", [call(X), call(X, Y, Z, X), call(X, Y, w=Z), call(tensor(1, 3, 4), Y, Z)])
def test_a_call_that_does_not_fit_is_refused(bad: Any) -> None:
    module = export(describe(three(), (X, Y, Z))).module()
    args, kwargs = bad
    with pytest.raises((RuntimeError, ValueError, TypeError, AssertionError)):
        module(*args, **kwargs)


@pytest.mark.parametrize("bad", [call(X), call(X, Y, Z, X), call(X, Y, w=Z), call(x=X, y=Y), call(X, Y, x=Z)])
def test_examples_that_do_not_fit_are_refused(bad: Any) -> None:
    args, kwargs = bad
    with pytest.raises(ConventionError, match="the example inputs"):
        export(three(), args, kwargs)


@pytest.mark.parametrize("wrong", [tensor(1, 3, 4), tensor(1, 2, 4, 1), X.double(), 3.0])
def test_examples_that_disagree_with_the_metadata_are_refused(wrong: Any) -> None:
    with pytest.raises(ConventionError, match="input 'y'"):
        export(describe(three(), (X, Y, Z)), (X, wrong, Z))


def test_neither_metadata_nor_examples_is_refused_by_name() -> None:
    with pytest.raises(ConventionError, match=r"input 'x'.*without metadata and no example"):
        export(three())


def test_a_bare_tensor_for_args_is_refused() -> None:
    with pytest.raises(ConventionError, match=r"args=\(x,\)"):
        export(wrap(hybrid(lambda g: g.op(aten.exp.default, g.placeholder("a")))), X)  # type: ignore[arg-type]
