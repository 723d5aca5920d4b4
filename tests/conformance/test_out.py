"""What partitions return: unused, whole, sliced, nested, constants, their own inputs, nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.fx import GraphModule

from builders.hybrids import Draft, aten, describe, give_convention, hybrid, parameter, tensor
from builders.laws import FORMS, call, check, operators

X, Y = tensor(1, 2, 3), tensor(2, 2, 3)
CALLS = [call(X), call(Y)]

Fill = Callable[[Draft], Any]


def law(part: Fill, top: Callable[[Draft, Any, Any], Any], *, described: bool = True, **options: Any) -> Any:
    """Check a hybrid of one partition `part`, whose result `top` uses."""

    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            x = g.placeholder("x")
            return top(g, g.part("part", x), x)

        module = hybrid(fill, {"part": hybrid(part, {"w": parameter(tensor(5, 3))})})
        return describe(module, (X,)) if described else module

    return check(build, CALLS, examples=None if described else CALLS[0], **options)


def four(g: Draft) -> Any:
    a = g.placeholder("a")
    return tuple(g.op(aten.add.Tensor, a, float(index)) for index in range(4))


@pytest.mark.parametrize("indices", [(3,), (0, 3), (2, 0, 1), (3, 3, -1), (1, -4), ()])
def test_some_outputs_in_any_order(indices: tuple[int, ...]) -> None:
    program = law(four, lambda g, p, x: (x, *[g.item(p, i) for i in indices]))
    assert operators(program).count(aten.add.Tensor) == len({i % 4 for i in indices})


@pytest.mark.parametrize("described", [True, False])
def test_a_result_taken_whole(described: bool) -> None:
    law(four, lambda g, p, x: (p, g.op(aten.cat.default, p), g.item(p, slice(1, None, 2))), described=described)


def test_a_result_taken_whole_by_another_partition() -> None:
    def second(g: Draft) -> Any:
        t = g.placeholder("t")
        return g.op(aten.sub.Tensor, g.item(t, -1), g.item(g.item(t, slice(0, 2)), 1))

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            return g.part("two", g.part("one", g.placeholder("x")))

        return describe(hybrid(top, {"one": hybrid(four), "two": hybrid(second)}), (X,))

    check(build, CALLS)


def nested(g: Draft) -> Any:
    a = g.placeholder("a")
    b = g.op(aten.exp.default, a)
    return {"list": [a, (b, None)], "number": 3, "deep": {"b": b, "empty": ()}}


def test_a_nested_result() -> None:
    def top(g: Draft, p: Any, x: Any) -> Any:
        pair = g.item(g.item(p, "list"), 1)
        return g.item(pair, 0), g.item(pair, 1), g.item(p, "number"), g.item(g.item(p, "deep"), "empty"), p

    law(nested, top)


def test_a_nested_result_by_convention() -> None:
    def fill(g: Draft) -> Any:
        a = g.placeholder("a")
        return [g.op(aten.exp.default, a), a, g.op(aten.neg.default, a)]

    part = give_convention(hybrid(fill), ["a"], ((0,), {}), {"e": 0, "rest": (1, [2])})

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            result = g.part("part", g.placeholder("x"))
            rest = g.item(result, "rest")
            return g.item(g.item(rest, 1), 0), g.item(rest, 0), result

        return describe(hybrid(top, {"part": part}), (X,))

    check(build, CALLS)


@pytest.mark.parametrize("constant", [None, 3, 2.5, True, "text"])
def test_a_constant_among_the_outputs(constant: Any) -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.exp.default, g.placeholder("a")), constant

    # torch saves a program that returns a string, and cannot load it
    forms = ["memory", "decomposed"] if isinstance(constant, str) else FORMS
    law(part, lambda g, p, x: (g.item(p, 1), g.item(p, 0)), forms=forms)


@pytest.mark.parametrize("constant", [3, 2.5])
def test_a_constant_output_is_used_in_arithmetic(constant: float) -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.exp.default, g.placeholder("a")), constant

    law(part, lambda g, p, x: g.op(aten.mul.Tensor, g.item(p, 0), g.item(p, 1)))


def test_a_partition_returns_its_inputs_and_its_state() -> None:
    def part(g: Draft) -> Any:
        a, w = g.placeholder("a"), g.get_attr("w")
        return w, a, a, g.op(aten.mul.Tensor, a, w)

    law(part, lambda g, p, x: (g.item(p, 1), g.op(aten.sub.Tensor, g.item(p, 2), g.item(p, 0)), g.item(p, 0)))


def test_a_partition_that_only_hands_through() -> None:
    program = law(lambda g: g.placeholder("a"), lambda g, p, x: (p, g.op(aten.exp.default, p)))
    assert len(operators(program)) == 1


@pytest.mark.parametrize("nothing", [None, (), [], {}], ids=repr)
def test_a_partition_that_returns_nothing(nothing: Any) -> None:
    def part(g: Draft) -> Any:
        g.op(aten.exp.default, g.placeholder("a"))
        return nothing

    program = law(part, lambda g, p, x: g.op(aten.neg.default, x))
    assert len(operators(program)) == 1
    law(part, lambda g, p, x: (p, x))


def test_a_dead_partition_goes_with_its_state() -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w"))

    assert not law(part, lambda g, p, x: g.op(aten.neg.default, x)).state_dict


def test_indexing_a_tensor_is_no_element_of_a_result() -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.exp.default, g.placeholder("a"))

    def one(g: Draft) -> Any:
        return (g.op(aten.exp.default, g.placeholder("a")),)

    law(part, lambda g, p, x: (g.item(p, 0), g.item(p, (slice(None), 1)), g.item(p, None), g.item(p, -1)))
    law(one, lambda g, p, x: (g.item(g.item(p, 0), 0), g.item(p, 0)))


def test_one_result_of_an_operator_with_several() -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.topk.default, g.placeholder("a"), 2)

    law(part, lambda g, p, x: g.item(p, 1))


def test_an_operator_with_several_results_crosses_a_border() -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.topk.default, g.placeholder("a"), 2)

    def chunks(g: Draft) -> Any:
        return g.op(aten.split.Tensor, g.placeholder("a"), 1)

    law(part, lambda g, p, x: (g.item(p, 1), g.item(p, 0)))
    law(chunks, lambda g, p, x: (g.item(p, 0), g.item(p, 1)))
    law(chunks, lambda g, p, x: (g.item(p, -1), g.item(p, 0)))


def test_a_list_of_an_operator_is_used_whole() -> None:
    def part(g: Draft) -> Any:
        return g.op(aten.split.Tensor, g.placeholder("a"), 1)

    law(part, lambda g, p, x: (g.op(aten.cat.default, p), g.item(p, 1)))
    law(part, lambda g, p, x: g.op(aten.cat.default, g.item(p, slice(0, 1))))


@pytest.mark.parametrize(
    "operator",
    [lambda g, a: g.op(aten.split.Tensor, a, 1), lambda g, a: g.op(aten.topk.default, a, 2)],
    ids=["split", "topk"],
)
def test_a_result_of_an_operator_is_returned_whole(operator: Any) -> None:
    def part(g: Draft) -> Any:
        return operator(g, g.placeholder("a"))

    law(part, lambda g, p, x: (x, {"all": p, "one": g.item(p, 0)}))
    law(part, lambda g, p, x: p)


def test_a_result_is_passed_by_keyword() -> None:
    def top(g: Draft, p: Any, x: Any) -> Any:
        return g.call_function(aten.add.Tensor, (), {"other": g.item(p, 1), "self": g.item(p, 2), "alpha": 3})

    law(four, top)
