"""Inputs are bound by position, keyword, default and repetition; what a name looks like decides nothing."""

from __future__ import annotations

import operator
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
    chain,
    describe,
    give_convention,
    hybrid,
    new_mode,
    parameter,
    tensor,
    wrap,
)
from builders.laws import call, check, targets
from intarsia.errors import HybridError
from intarsia.surgery import export

X, Y, Z = tensor(1, 2, 3), tensor(2, 2, 3), tensor(3, 2, 3)
THREE = [call(X, Y, Z), call(Z, X, Y)]


def affine(names: str = "a b c") -> GraphModule:
    """`a * b - c`, whose three inputs all matter."""

    def fill(g: Draft) -> Any:
        a, b, c = g.inputs(names)
        return g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, a, b), c)

    return hybrid(fill)


def calling(part: GraphModule, *args: int, **kwargs: int) -> Any:
    """Builds a hybrid of three inputs that passes those of these indices to a partition."""

    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            given = g.inputs("x y z")
            return g.part("part", *[given[i] for i in args], **{name: given[i] for name, i in kwargs.items()})

        return describe(hybrid(fill, {"part": part}), (X, Y, Z))

    return build


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1, 1), (0, 0, 2), (2, 0, 0)])
@pytest.mark.parametrize("names", ["a b c", "z y x", "sub mul part", "y z x"])
def test_a_call_binds_by_position(order: tuple[int, ...], names: str) -> None:
    check(calling(affine(names), *order), THREE, forms=["memory"])


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"a": 0, "b": 1, "c": 2}), ((), {"c": 0, "b": 1, "a": 2}), ((2,), {"c": 0, "b": 1}), ((1, 0), {"c": 0})],
)
def test_a_call_binds_by_keyword(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    check(calling(affine(), *args, **kwargs), THREE)


def test_a_default_stands_for_what_a_call_leaves_out() -> None:
    def fill(g: Draft) -> Any:
        a, b = g.placeholder("a"), g.placeholder("b", default_value=2.5)
        c = g.placeholder("c", default_value=None)
        assert c is not None
        return g.op(aten.mul.Tensor, a, b)

    check(calling(hybrid(fill), 0), THREE)
    check(calling(hybrid(fill), 0, b=1), THREE)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_starred_placeholder_takes_the_rest(count: int) -> None:
    def fill(g: Draft) -> Any:
        first, rest = g.placeholder("first"), g.placeholder("*rest")
        for index in range(count):
            first = g.op(aten.sub.Tensor, first, g.op(operator.getitem, rest, index))
        return first

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x, y, z = g.inputs("x y z")
            return g.part("part", *[x, y, z, y][: count + 1])

        return hybrid(top, {"part": hybrid(fill)})

    check(build, THREE, examples=THREE[0], forms=["memory", "file"])


def test_placeholders_and_state_reads_stand_in_any_order() -> None:
    def part(g: Draft) -> Any:
        a = g.placeholder("a")
        w = g.get_attr("w")
        b = g.placeholder("b")
        return g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, a, w), b)

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            w = g.get_attr("w")
            x = g.placeholder("x")
            scaled = g.op(aten.mul.Tensor, x, w)
            y = g.placeholder("y")
            return g.part("part", y, scaled)

        part_module = hybrid(part, {"w": Buffer(tensor(6, 3))})
        return describe(hybrid(top, {"w": parameter(tensor(5, 3)), "part": part_module}), (X, Y))

    check(build, [call(X, Y), call(Y, Z)])


def test_one_partition_at_two_sites_has_its_state_once() -> None:
    def scale(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w"))

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            first = g.part("part", g.placeholder("x"))
            return g.part("part", first), first

        return describe(hybrid(top, {"part": hybrid(scale, {"w": parameter(tensor(5, 3))})}), (X,))

    assert targets(check(build, [call(X), call(Y)]), "PARAMETER") == ["w"]


def test_one_partition_under_two_names_has_its_state_once() -> None:
    def count(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("a"), g.op(aten.add_.Tensor, g.get_attr("n"), 1))

    def build() -> GraphModule:
        shared = hybrid(count, {"n": Buffer(torch.zeros(()))})
        return describe(chain(shared, shared, shared), (X,))

    assert targets(check(build, [call(X), call(Y)]), "BUFFER") == ["n"]


def test_one_partition_meets_two_shapes_and_has_metadata_of_one() -> None:
    def part(g: Draft) -> Any:
        a = g.placeholder("a")
        flat = g.op(aten.sum.dim_IntList, g.op(aten.relu.default, a), [-1])
        return g.op(aten.exp.default, flat)

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x, y = g.inputs("x y")
            return g.part("part", x), g.part("part", y)

        return describe(hybrid(top, {"part": hybrid(part)}), (X, tensor(4, 4, 5, 6)))

    program = check(build, [call(X, tensor(4, 4, 5, 6)), call(Y, tensor(5, 4, 5, 6))])
    assert [tuple(node.meta["val"].shape) for node in program.graph.nodes if node.target is aten.exp.default] == [
        (2,),
        (4, 5),
    ]


def test_partitions_described_in_other_fake_modes() -> None:
    def build() -> GraphModule:
        parts = [describe(affine(), (X, Y, Z), mode=new_mode()) for _ in range(3)]

        def top(g: Draft) -> Any:
            x, y, z = g.inputs("x y z")
            value = g.part("a", x, y, z)
            value = g.part("b", y, value, x)
            return g.part("c", value, value, z)

        made = hybrid(top, dict(zip("abc", parts, strict=True)))
        for node, value in zip(made.graph.find_nodes(op="placeholder", sort=True), (X, Y, Z), strict=True):
            node.meta["val"] = new_mode().from_tensor(value)
        return made

    program = check(build, THREE)
    modes = {node.meta["val"].fake_mode for node in program.graph.nodes if node.op != "output"}
    assert len(modes) == 1


def test_a_partition_with_its_own_convention_takes_nested_values() -> None:
    def fill(g: Draft) -> Any:
        a, b, c, scale = g.inputs("a b c scale")
        return g.op(aten.add.Tensor, a, b), g.op(aten.mul.Tensor, c, scale), a

    part = give_convention(
        hybrid(fill),
        ["pair", "more", "scale"],
        (((0, 1), {"k": 2}), {"scale": 3}),
        {"sum": 0, "rest": [1, {"first": 2}]},
    )

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x, y, z = g.inputs("x y z")
            result = g.part("part", (y, x), {"k": z}, scale=x)
            rest = g.item(result, "rest")
            return g.item(result, "sum"), g.item(rest, 0), g.item(g.item(rest, 1), "first")

        return describe(hybrid(top, {"part": part}), (X, Y, Z))

    check(build, THREE)


def test_a_partition_with_its_own_convention_takes_keywords_in_any_order() -> None:
    def fill(g: Draft) -> Any:
        a, b, c = g.inputs("a b c")
        return [g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, a, b), c)]

    part = give_convention(hybrid(fill), ["a", "b", "c"], ((0,), {"b": 1, "c": 2}), 0)

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x, y, z = g.inputs("x y z")
            return g.part("part", z, c=x, b=y)

        return describe(hybrid(top, {"part": part}), (X, Y, Z))

    check(build, THREE)


@pytest.mark.parametrize("cut", CUTS)
def test_torch_splitters_order_inputs_by_first_use(cut: str) -> None:
    class Mixing(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
            later = c.exp() - b
            first = b * a - later
            return {"first": first.relu() - c, "later": later * b, "a": a.sin()}

    check(lambda: CUTS[cut](captured(Mixing(), (X, Y, Z))), THREE, forms=["memory", "file"])


def test_a_guard_call_that_was_left_in_goes() -> None:
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp() * 2

    def build() -> GraphModule:
        shapes = ({0: torch.export.Dim("b", min=2, max=9)},)
        module = torch.export.export(Doubling(), (X,), dynamic_shapes=shapes).run_decompositions({}).module()
        assert module.graph.find_nodes(op="call_module")
        return module

    program = check(build, [call(X), call(tensor(4, 7, 3))])
    with pytest.raises(Exception, match=r"(?i)guard|9"):
        program.module()(tensor(4, 10, 3))


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((0, 1), {}, "2 positional values"),
        ((0, 1, 2, 0), {}, "4 positional values"),
        ((0, 1), {"d": 2}, r"keywords \['d'\]"),
        ((0, 1, 2), {"a": 2}, r"keywords \['a'\]"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_name(args: Any, kwargs: Any, found: str) -> None:
    def fill(g: Draft) -> Any:
        given = g.inputs("x y z")
        return g.part("inner", *[given[i] for i in args], **{name: given[i] for name, i in kwargs.items()})

    with pytest.raises(HybridError, match=rf"partition 'inner'.*{found}.*\(a, b, c\)"):
        export(hybrid(fill, {"inner": affine()}), (X, Y, Z))


def test_an_element_that_a_partition_does_not_return_is_refused() -> None:
    def fill(g: Draft) -> Any:
        return g.item(g.part("inner", g.placeholder("x")), 2)

    def two(g: Draft) -> Any:
        a = g.placeholder("a")
        return a, g.op(aten.neg.default, a)

    with pytest.raises(HybridError, match=r"node 'getitem'.*element 2.*one of the 2"):
        export(hybrid(fill, {"inner": hybrid(two)}), (X,))


def test_wrapped_in_many_layers_wiring_holds() -> None:
    def build() -> GraphModule:
        module = affine("c a b")
        for _ in range(5):
            module = wrap(module, 3)
        return describe(module, (X, Y, Z))

    check(build, THREE, forms=["memory"])
