"""Symbolic sizes: shared, derived, data-dependent; across partitions, as inputs and outputs; their ranges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from builders.hybrids import CUTS, Draft, aten, captured, describe, fuse, hybrid, parameter, split, tensor
from builders.laws import FORMS, call, check, targets, through_file
from intarsia.errors import ConventionError
from intarsia.surgery import export


def ranges(program: ExportedProgram) -> list[tuple[Any, Any]]:
    """Lower and upper bound of every symbol, infinity as None."""
    found = program.range_constraints.values()
    return sorted((int(r.lower), None if "oo" in str(r.upper) else int(r.upper)) for r in found)


class Batched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(tensor(3, 4, 4))

    def forward(self, x: torch.Tensor) -> Any:
        b = x.shape[0]
        h = (x @ self.w).relu()
        return h.reshape(b * 2, 2) + torch.full((b * 2, 1), 0.5), x.new_zeros(b + 1, b * b)


class Derived(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return (x + y[1:]).sin() * z.reshape(-1, 2).sum(1), torch.cat([x, y, z])


class Shared(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> Any:
        return left.T @ right, right.shape[0], left.shape[0] * 2


class Sizes(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        area = x.shape[0] * y.shape[1]
        return x.shape[0] + 1, area, torch.ones(area) * x.sum(), {"s": y.shape[1] // 2}


def b(lower: int = 2, upper: int | None = 9) -> Any:
    return Dim("b", min=lower, max=upper)


@pytest.mark.parametrize("cut", CUTS)
def test_a_size_crosses_partitions(cut: str) -> None:
    def build() -> GraphModule:
        return CUTS[cut](captured(Batched(), (tensor(1, 3, 4),), dynamic_shapes=({0: b()},)))

    program = check(build, [call(tensor(n, n, 4)) for n in (3, 2, 9, 5)])
    assert ranges(program) == [(2, 9)]
    with pytest.raises(Exception, match=r"(?i)guard|9"):
        program.module()(tensor(1, 10, 4))


@pytest.mark.parametrize(("lower", "upper"), [(0, 5), (1, 5), (2, 2**20), (3, None), (0, None), (1, None)])
def test_ranges_of_the_capture_survive_when_they_are_stated(lower: int, upper: int | None) -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.exp().sum(1), x * 2

    shapes = ({0: b(lower, upper)},)

    def build() -> GraphModule:
        return fuse(captured(Plain(), (tensor(1, 3, 4),), dynamic_shapes=shapes), lambda index: index // 2)

    sizes = [n for n in (0, 1, 2, 4) if n >= lower]
    program = check(build, [call(tensor(n, n, 4)) for n in sizes], dynamic_shapes=shapes)
    for form in FORMS.values():
        assert ranges(form(program))[0][1] == upper
    assert ranges(program) == ranges(through_file(program)) == [(lower, upper)]


def test_a_derived_size() -> None:
    d = Dim("d", min=3, max=20)
    shapes = ({0: d}, {0: d + 1}, {0: 2 * d})
    examples = (tensor(1, 4), tensor(2, 5), tensor(3, 8))
    calls = [call(tensor(1, n), tensor(2, n + 1), tensor(3, 2 * n)) for n in (4, 3, 20)]
    for cut in (fuse, split):
        program = check(
            lambda cut=cut: cut(captured(Derived(), examples, dynamic_shapes=shapes), lambda index: index // 2), calls
        )
        assert ranges(program) == [(3, 20)]
        with pytest.raises(Exception, match=r"(?i)guard|expected|size"):
            program.module()(tensor(1, 4), tensor(2, 6), tensor(3, 8))


@pytest.mark.parametrize("cut", CUTS)
def test_a_shared_size_is_also_an_output(cut: str) -> None:
    d = Dim("d", min=3, max=6)
    examples = (tensor(1, 4, 2), tensor(2, 4, 5))
    shapes = {"left": {0: d}, "right": {0: d}}
    calls = [call(tensor(1, n, 2), tensor(2, n, 5)) for n in (4, 6, 3)]
    program = check(lambda: CUTS[cut](captured(Shared(), examples, dynamic_shapes=shapes)), calls)
    assert ranges(program) == [(3, 6)]
    with pytest.raises(Exception, match=r"(?i)guard|expected|size"):
        program.module()(tensor(1, 4, 2), tensor(2, 5, 5))


@pytest.mark.parametrize("cut", CUTS)
def test_products_of_sizes_cross_and_leave(cut: str) -> None:
    examples = (tensor(1, 3, 2), tensor(2, 2, 4))
    shapes = ({0: Dim("n", max=8)}, {1: Dim("m", min=1, max=12)})
    calls = [call(tensor(1, n, 2), tensor(2, 2, m)) for n, m in ((3, 4), (8, 2), (2, 12))]
    program = check(lambda: CUTS[cut](captured(Sizes(), examples, dynamic_shapes=shapes)), calls)
    assert len(program.range_constraints) == 2


@pytest.mark.parametrize("hint", [Dim.AUTO, Dim.DYNAMIC])
def test_hints_in_place_of_dims(hint: Any) -> None:
    shapes = ({0: hint},)

    def build() -> GraphModule:
        return fuse(captured(Batched(), (tensor(1, 3, 4),), dynamic_shapes=shapes), lambda index: index // 3)

    calls = [call(tensor(n, n, 4)) for n in (3, 2, 7)]
    check(build, calls, forms=["memory", "file"])
    check(build, calls, forms=["memory"], examples=call(tensor(1, 3, 4)), dynamic_shapes=shapes)


class Item(torch.nn.Module):
    def forward(self, n: torch.Tensor, x: torch.Tensor) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 5)
        return x.narrow(0, 0, k).sum() + k, torch.ones(k, 2), k


class Nonzero(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        rows = x.nonzero()
        return rows * 2, rows.shape[0], x.sum()


class Chosen(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return torch.masked_select(x, mask).exp(), x.relu()


@pytest.mark.parametrize("cut", CUTS)
def test_a_size_read_from_a_tensor(cut: str) -> None:
    calls = [call(torch.tensor(n), tensor(1, 6)) for n in (3, 0, 5)]
    program = check(lambda: CUTS[cut](captured(Item(), (torch.tensor(3), tensor(1, 6)))), calls)
    assert ranges(program) == [(0, 5)]
    with pytest.raises(RuntimeError, match=r"(?i)assert|expected|range|<= 5"):
        program.module()(torch.tensor(6), tensor(1, 6))


@pytest.mark.parametrize("cut", CUTS)
def test_a_size_that_is_a_count(cut: str) -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    calls = [call(x), call(torch.zeros(2, 2)), call(torch.ones(2, 2))]
    check(lambda: CUTS[cut](captured(Nonzero(), (x,))), calls)


@pytest.mark.parametrize("cut", CUTS)
def test_two_data_dependent_sizes(cut: str) -> None:
    mask = torch.tensor([True, False, True])
    calls = [call(tensor(1, 3), mask), call(tensor(2, 3), ~mask), call(tensor(3, 3), mask & ~mask)]
    check(lambda: CUTS[cut](captured(Chosen(), (tensor(1, 3), mask))), calls, forms=["memory", "file"])


def scaled(g: Draft) -> Any:
    a = g.placeholder("a")
    product = g.op(aten.mm.default, a, g.get_attr("w"))
    return g.op(aten.relu.default, product), g.op(aten.sum.dim_IntList, product, [1])


def by_hand(inputs: str = "x") -> GraphModule:
    def top(g: Draft) -> Any:
        results = [g.part("part", node) for node in g.inputs(inputs)]
        return tuple(
            g.op(aten.mul.Tensor, g.item(r, 0), g.op(aten.unsqueeze.default, g.item(r, 1), 1)) for r in results
        )

    return hybrid(top, {"part": hybrid(scaled, {"w": parameter(tensor(5, 4, 4))})})


SHAPES: list[tuple[Any, list[tuple[Any, Any]]]] = [
    (({0: Dim("b", min=2, max=9)},), [(2, 9)]),
    (({0: Dim("b", min=0, max=9)},), [(0, 9)]),
    (({0: Dim("b", min=1, max=9)},), [(1, 9)]),
    (({0: Dim("b")},), [(0, None)]),
    ({"x": {0: Dim("b", max=6)}}, [(0, 6)]),
    ({"x": (Dim("b", max=6), None)}, [(0, 6)]),
    (([Dim("b", min=1, max=6), None],), [(1, 6)]),
    (({0: Dim("b", max=6), 1: Dim.STATIC},), [(0, 6)]),
    (({0: Dim.DYNAMIC},), [(2, None)]),
    (({0: Dim.AUTO},), [(2, None)]),
    (({0: Dim.DYNAMIC(min=1, max=7)},), [(1, 7)]),
]


@pytest.mark.parametrize(("shapes", "expected"), SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("described", [True, False])
def test_ranges_of_a_graph_that_knows_no_symbol(shapes: Any, expected: Any, described: bool) -> None:
    x = tensor(1, 3, 4)
    build = (lambda: describe(by_hand(), (x,))) if described else by_hand
    sizes = [n for n in (3, 1, 0, 6) if n >= expected[0][0]]
    program = check(
        build,
        [call(tensor(n, n, 4)) for n in sizes],
        examples=None if described else call(x),
        dynamic_shapes=shapes,
        forms=["memory", "file"],
    )
    assert ranges(program) == expected
    if expected[0][1]:
        with pytest.raises(Exception, match=r"(?i)guard|expected|range|<="):
            program.module()(tensor(1, expected[0][1] + 1, 4))


def test_one_partition_meets_a_static_and_two_symbolic_sizes() -> None:
    shapes = ({0: Dim("n", max=5)}, None, {0: Dim("m", max=7)})
    examples = call(tensor(1, 3, 4), tensor(2, 6, 4), tensor(3, 2, 4))
    again = call(tensor(1, 5, 4), tensor(2, 6, 4), tensor(3, 7, 4))
    program = check(lambda: by_hand("x y z"), [examples, again], examples=examples, dynamic_shapes=shapes)
    assert ranges(program) == [(0, 5), (0, 7)]


def test_symbols_of_the_metadata_need_no_examples() -> None:
    def build() -> GraphModule:
        inputs = (tensor(1, 3, 4), tensor(2, 3, 4), tensor(3, 6, 4))
        return describe(by_hand("x y z"), inputs, dynamic={0: {0: "n"}, 1: {0: "n"}, 2: {0: "m"}})

    calls = [call(tensor(1, n, 4), tensor(2, n, 4), tensor(3, m, 4)) for n, m in ((3, 6), (5, 2))]
    program = check(build, calls)
    assert len(program.range_constraints) == 2
    with pytest.raises(Exception, match=r"(?i)guard|expected"):
        program.module()(tensor(1, 3, 4), tensor(2, 4, 4), tensor(3, 6, 4))


def test_ranges_that_the_hybrid_carries() -> None:
    x = tensor(1, 3, 4)

    def build() -> GraphModule:
        source = torch.export.export(Batched(), (x,), dynamic_shapes=({0: b(1, 7)},)).run_decompositions({})
        module = fuse(source.module(), lambda index: index // 2)
        module.meta["range_constraints"] = dict(source.range_constraints)
        return module

    assert ranges(check(build, [call(x), call(tensor(1, 7, 4)), call(tensor(2, 1, 4))])) == [(1, 7)]


def test_a_size_is_an_input() -> None:
    class Repeating(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> Any:
            return x.expand(n, 4) * 2, n + 1

    shapes = {"x": None, "n": Dim.DYNAMIC}
    calls = [call(tensor(1, 4), n) for n in (3, 5, 2)]
    for cut in (split, fuse):
        program = check(
            lambda cut=cut: cut(captured(Repeating(), calls[0][0], dynamic_shapes=shapes), lambda index: index // 2),
            calls,
        )
        assert targets(program, "USER_INPUT")[:2] == [None, None]


def test_two_dynamic_dims_of_one_input() -> None:
    class Table(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.reshape(-1, 2).exp(), x.T @ x, x.reshape(-1)

    shapes = ({0: Dim("n", min=1, max=9), 1: 2 * Dim("m", min=1, max=9)},)
    calls = [call(tensor(1, n, 2 * m)) for n, m in ((3, 2), (9, 9), (2, 3))]
    check(lambda: fuse(captured(Table(), calls[0][0], dynamic_shapes=shapes), lambda index: index // 2), calls)


@pytest.mark.parametrize(
    "shapes",
    [
        {"wrong": {0: Dim("b")}},
        ({0: Dim("b")}, {0: Dim("b")}),
        (Dim("b"),),
        "x",
        ([{0: Dim("b")}],),
        ({"k": {0: Dim("b")}},),
        ({5: Dim("b")},),
    ],
    ids=range(7),
)
def test_dynamic_shapes_that_do_not_fit_are_refused(shapes: Any) -> None:
    with pytest.raises(ConventionError, match="dynamic_shapes"):
        export(by_hand(), (tensor(1, 3, 4),), dynamic_shapes=shapes)
