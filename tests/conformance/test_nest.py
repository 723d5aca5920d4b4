"""Partitions inside partitions: to any depth, within a stated limit, without Python's recursion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from builders.hybrids import Buffer, Draft, aten, describe, hybrid, parameter, tensor
from builders.laws import call, check, operators
from intarsia.errors import HybridError
from intarsia.runtime.program import Program
from intarsia.surgery import export
from intarsia.surgery.limits import MAX_DEPTH

X, Y = tensor(1, 2, 3), tensor(2, 2, 3)


def layered(depth: int) -> GraphModule:
    """Every level multiplies by its own `w`, adds the buffer `b`, and hands the result to the level below."""
    module = hybrid(lambda g: g.op(aten.exp.default, g.placeholder("a")))
    shared = Buffer(tensor(6, 3))

    for level in range(depth):

        def fill(g: Draft) -> Any:
            scaled = g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w"))
            return g.op(aten.add.Tensor, g.part("inner", scaled), g.get_attr("b"))

        module = hybrid(fill, {"w": parameter(tensor(level, 3)), "b": shared, "inner": module})
    return module


def plain(depth: int) -> GraphModule:
    """Every level only calls the one below."""
    module = hybrid(lambda g: g.op(aten.exp.default, g.placeholder("a")))
    for _ in range(depth):
        module = hybrid(lambda g: g.part("inner", g.placeholder("a")), {"inner": module})
    return module


def test_equal_names_at_every_level() -> None:
    program = check(lambda: describe(layered(6), (X,)), [call(X), call(Y)])
    assert len(program.state_dict) == 7
    assert "w" in program.state_dict
    assert "inner.w" in program.state_dict


def test_dotted_targets() -> None:
    def build() -> GraphModule:
        leaf = hybrid(lambda g: g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("k.w")), {"k.w": tensor(5, 3)})

        def middle(g: Draft) -> Any:
            value = g.part("d.e", g.placeholder("a"))
            return value, g.op(aten.add.Tensor, value, g.get_attr("d.w"))

        def top(g: Draft) -> Any:
            result = g.part("a.b.c", g.placeholder("x"))
            return g.item(result, 0), g.op(aten.sub.Tensor, g.item(result, 1), g.get_attr("a.b.c.d.w"))

        inner = hybrid(middle, {"d.e": leaf, "d.w": Buffer(tensor(6, 3))})
        return describe(hybrid(top, {"a.b.c": inner}), (X,))

    assert len(check(build, [call(X), call(Y)]).state_dict) == 1


def test_a_partition_that_calls_a_module_of_the_root_is_not_confused() -> None:
    def build() -> GraphModule:
        negate = hybrid(lambda g: g.op(aten.neg.default, g.placeholder("a")))
        double = hybrid(lambda g: g.op(aten.mul.Tensor, g.placeholder("a"), 2.0))

        def outer(g: Draft) -> Any:
            return g.part("one", g.part("two", g.placeholder("a")))

        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            return g.part("one", x), g.part("two", x), g.part("outer", x)

        nested = hybrid(outer, {"one": double, "two": negate})
        return describe(hybrid(top, {"one": negate, "two": double, "outer": nested}), (X,))

    check(build, [call(X), call(Y)])


def test_nested_900_levels_deep() -> None:
    depth = 900
    module = layered(depth)
    program = export(module, (X,))
    expected = X
    for level in reversed(range(depth)):
        expected = expected * tensor(level, 3)
    expected = expected.exp()
    for _ in range(depth):
        expected = expected + tensor(6, 3)
    # `program.module()` would take torch's unflattening of paths of 900 names, most of this file's time
    assert torch.equal(Program(program)(X), expected)
    assert len(program.state_dict) == depth + 1


def test_nested_as_deep_as_the_limit() -> None:
    program = export(plain(MAX_DEPTH - 1), (X,))
    assert operators(program) == [aten.exp.default]


def test_deeper_than_the_limit_is_refused() -> None:
    with pytest.raises(HybridError, match=f"{MAX_DEPTH + 1} levels of nesting, expected at most {MAX_DEPTH}"):
        export(plain(MAX_DEPTH + 1), (X,))


def test_a_partition_that_calls_itself_is_refused() -> None:
    module = hybrid(lambda g: g.part("again", g.placeholder("x")))
    object.__setattr__(module, "again", module)
    with pytest.raises(HybridError, match="levels of nesting"):
        export(module, (X,))
