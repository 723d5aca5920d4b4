"""Inputs drawn from a program: sizes at the corners, integers by their use, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sympy
import torch
from torch.export import Dim, ExportedProgram

from intarsia.errors import ConventionError
from intarsia.verification import Call, Drawing, UndrawableInput, middle
from intarsia.verification.sizes import MAX_ELEMENTS, _number, corners

Tensor = torch.Tensor
TABLE = torch.arange(40.0).view(8, 5)


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.embedding = torch.nn.Embedding(8, 5)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def exported(function: Callable[..., Any], *args: Any, shapes: Any = None, decompose: bool = True) -> ExportedProgram:
    dynamic = None if shapes is None else (tuple(shapes),)
    program = torch.export.export(Function(function), args, dynamic_shapes=dynamic)
    return program.run_decompositions({}) if decompose else program


def drawn(program: ExportedProgram, index: int = 0) -> Tensor:
    """Many integers of one input, all draws of it together."""
    drawing = Drawing(program)
    points = corners(program)
    return torch.cat([drawing.draw(points[-1], seed).args[index].flatten() for seed in range(40)])


IDS = torch.zeros(6, dtype=torch.int64)
FLOATS = torch.ones(6, 5)
USES: dict[str, tuple[Callable[..., Any], Sequence[Tensor], int]] = {
    "embedding": (lambda m, i: m.embedding(i), (IDS,), 8),
    "embedding behind views": (lambda m, i: m.embedding(i.view(2, 3).t().unsqueeze(0)), (IDS,), 8),
    "embedding behind a cast": (lambda m, i: m.embedding(i.long()), (IDS.to(torch.int32),), 8),
    "index_select": (lambda m, i, x: x.index_select(1, i), (IDS, torch.ones(2, 4)), 4),
    "gather": (lambda m, i, x: x.gather(1, i.view(2, 3)), (IDS, torch.ones(2, 7)), 7),
    "index": (lambda m, i, x: x[:, i], (IDS, torch.ones(2, 3)), 3),
    "index_put": (lambda m, i, x: x.index_put((i,), x[0]), (IDS, torch.ones(9, 5)), 9),
    "scatter": (lambda m, i, x: x.scatter(0, i.view(2, 3), 1.0), (IDS, torch.ones(4, 3)), 4),
    "the smaller of two tables": (lambda m, i, x: m.embedding(i) + x[i], (IDS, torch.ones(3, 5)), 3),
    "index and comparison": (lambda m, i: m.embedding(i) * (i == 0).unsqueeze(1), (IDS,), 8),
    "comparison": (lambda m, i, x: torch.where((i == 0).unsqueeze(1), x, 0.0), (IDS, FLOATS), 2),
    "cast to bool": (lambda m, i, x: x * i.bool().unsqueeze(1), (IDS, FLOATS), 2),
    "cast to float": (lambda m, i, x: x - (1 - i.float()).unsqueeze(1), (IDS, FLOATS), 2),
    "times floats": (lambda m, i, x: (x * i.unsqueeze(1)).sum(0) / i.sum(), (IDS, FLOATS), 2),
    "counted": (lambda m, i, x: x * (i.cumsum(0) * i).unsqueeze(1), (IDS, FLOATS), 2),
    "returned": (lambda m, i: i, (IDS,), 2),
    "unused": (lambda m, i, x: x * 2, (IDS, FLOATS), 2),
}


@pytest.mark.parametrize("use", USES)
def test_integers_are_drawn_by_their_use(use: str) -> None:
    function, args, count = USES[use]
    assert sorted(set(drawn(exported(function, *args)).tolist())) == list(range(count))


def test_an_index_into_a_dynamic_size_follows_it() -> None:
    program = exported(lambda m, i, x: x[i], IDS, torch.ones(5, 2), shapes=(None, {0: Dim("n", min=1, max=9)}))
    highest = [int(Drawing(program).draw(point, 3).args[0].max()) for point in corners(program)]
    sizes = [Drawing(program).draw(point, 3).args[1].shape[0] for point in corners(program)]
    assert sizes == [1, 2, 5, 9]
    assert all(high < size for high, size in zip(highest, sizes, strict=True))
    assert highest[0] == 0 < highest[-1]


UNTOLD: dict[str, Callable[..., Any]] = {
    "an index that is computed": lambda m, i: m.embedding(i + 1),
    "an index, and one that is computed": lambda m, i: m.embedding(i) + m.embedding(i * 2),
    "another operator": lambda m, i: torch.bincount(i, minlength=4),
    "the body of a condition": lambda m, i: torch.cond(i.sum() > 3, lambda j: j * 2, lambda j: j + 1, (i,)),
}


@pytest.mark.parametrize("use", UNTOLD)
def test_integers_whose_use_is_not_told_are_asked_for(use: str) -> None:
    program = exported(UNTOLD[use], IDS, decompose=False)
    with pytest.raises(ConventionError, match=r"input 'args_0': found integers whose use.*inputs="):
        Drawing(program)


def test_an_example_tells_what_the_graph_does_not() -> None:
    program = exported(lambda m, i, j: (torch.bincount(i, minlength=9), m.embedding(j)), IDS, IDS.clone())
    example = Call((torch.tensor([3, -2, 5, 5, 3, 3]), IDS), {})
    drawing = Drawing(program, example)
    calls = [drawing.draw({}, seed) for seed in range(40)]
    assert set(torch.cat([call.args[0] for call in calls]).tolist()) == set(range(-2, 6))
    assert set(torch.cat([call.args[1] for call in calls]).tolist()) == set(range(8))
    assert drawing.findings == ("the integers of input 'args_0' were drawn from -2 to 5, as in the example",)


def test_keywords_of_an_example_may_stand_in_another_order() -> None:
    class Keywords(torch.nn.Module):
        def forward(self, *, a: Tensor, b: Tensor) -> Tensor:
            return torch.bincount(a, minlength=9) + torch.bincount(b, minlength=9)

    program = torch.export.export(Keywords(), (), {"a": IDS, "b": IDS.clone()})
    drawing = Drawing(program, Call((), {"b": IDS + 7, "a": IDS + 4}))
    assert {name: set(value.tolist()) for name, value in drawing.draw({}, 0).kwargs.items()} == {"a": {4}, "b": {7}}


@pytest.mark.parametrize("example", [Call((), {}), Call(([IDS],), {}), Call((IDS,), {"more": IDS})])
def test_an_example_of_another_structure_is_refused(example: Call) -> None:
    program = exported(UNTOLD["another operator"], IDS)
    with pytest.raises(ConventionError, match=r"the example inputs: found .*expected the structure.*\(\(\*,\), {}\)"):
        Drawing(program, example)


def test_several_examples_reach_from_the_lowest_to_the_highest_of_all() -> None:
    program = exported(UNTOLD["another operator"], IDS)
    drawing = Drawing(program, *(Call((IDS * 0 + value,), {}) for value in (3, 7, 5)))
    drawn = torch.cat([drawing.draw({}, seed).args[0] for seed in range(20)])
    assert (int(drawn.min()), int(drawn.max())) == (3, 7)


@pytest.mark.parametrize("examples", [(), (Call((IDS[:0],), {}),)])
def test_an_example_without_integers_tells_nothing(examples: tuple[Call, ...]) -> None:
    with pytest.raises(UndrawableInput, match="integers whose use"):
        Drawing(exported(UNTOLD["another operator"], IDS), *examples)


def test_the_middle_is_one_of_the_corners() -> None:
    dynamic = {0: Dim("a", min=2, max=10), 1: Dim("b", min=2, max=40)}
    program = exported(lambda m, x: x * 2, FLOATS, shapes=(dynamic,))
    assert middle(program) in corners(program)
    assert Drawing(program).draw(middle(program), 0).args[0].shape == (6, 15)
    assert middle(exported(lambda m, x: x * 2, FLOATS)) == {}


def test_other_dtypes() -> None:
    args = (torch.ones(50, dtype=torch.float64), torch.ones(50, dtype=torch.bfloat16), torch.ones(50) > 0)
    args = (*args, torch.ones(50, dtype=torch.complex64), 3, None, "text")
    program = exported(lambda m, a, b, c, d, n, *rest: (a * n, b, c, d), *args)
    call = Drawing(program).draw({}, 0)
    for value, example in zip(call.args[:4], args[:4], strict=True):
        assert value.dtype == example.dtype
        assert value.shape == example.shape
        assert len(set(value.tolist())) == (2 if value.dtype is torch.bool else len(set(value.tolist())) or 50) > 1
    assert call.args[4:] == (3, None, "text")


def test_the_seed_decides() -> None:
    drawing = Drawing(exported(lambda m, x: x * 2, FLOATS))
    one, same, other = (drawing.draw({}, seed).args[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_strides_are_those_of_the_export() -> None:
    for example in (torch.ones(3, 4).t(), torch.ones(3, 1).expand(3, 4), torch.ones(3, 8)[:, ::2], torch.ones(0, 4)):
        value = Drawing(exported(lambda m, x: x * 2, example)).draw({}, 0).args[0]
        assert (value.shape, value.stride()) == (example.shape, example.stride())


def test_structures_and_keywords_are_those_of_the_model() -> None:
    class Nested(torch.nn.Module):
        def forward(self, pair: list[Tensor], *, scale: dict[str, Tensor]) -> Tensor:
            return pair[0] + pair[1] * scale["by"]

    x = torch.ones(2)
    call = Drawing(torch.export.export(Nested(), ([x, x],), {"scale": {"by": x}})).draw({}, 0)
    assert [value.shape for value in call.args[0]] == [(2,), (2,)]
    assert list(call.kwargs) == ["scale"]
    assert call.kwargs["scale"]["by"].shape == (2,)


class Sizes(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + y.sum(0)


def points(x: Any, y: Any, columns: int = 2, example: tuple[int, int] = (4, 8)) -> list[tuple[int, int]]:
    args = torch.ones(example[0], columns), torch.ones(example[1], columns)
    program = torch.export.export(Sizes(), args, dynamic_shapes=({0: x}, {0: y}))
    drawing = Drawing(program)
    calls = [drawing.draw(point, 0) for point in corners(program)]
    return [(call.args[0].shape[0], call.args[1].shape[0]) for call in calls]


def test_corners_of_two_sizes() -> None:
    found = points(Dim("a", min=1, max=11), Dim("b", min=2, max=30))
    assert {(1, 2), (2, 3), (11, 30), (11, 2), (1, 30)} <= set(found)
    assert any(1 < a < 11 and 2 < b < 30 and a != b for a, b in found)


def test_corners_of_a_derived_size() -> None:
    batch = Dim("batch", min=3, max=20)
    assert points(batch, 2 * batch) == [(3, 6), (4, 8), (11, 22), (20, 40)]


def test_an_open_range_has_an_end_here() -> None:
    assert max(points(Dim("a", min=2), Dim("b", min=2, max=9)))[0] < 200


def test_large_tensors_are_not_made() -> None:
    wide = 2**12
    found = points(Dim("a", min=1, max=2**20), Dim("b", min=2, max=9), columns=wide)
    assert all(a * wide <= MAX_ELEMENTS for a, _ in found)
    assert max(a for a, _ in found) > 64
    assert (1, 2) in found


def test_large_weights_leave_the_sizes_as_they_are() -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(MAX_ELEMENTS + 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.weight[:4, 0]

    program = torch.export.export(Wide(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("a", min=1, max=9)},))
    assert [list(point.values()) for point in corners(program)] == [[1], [2], [5], [9]]


def test_lower_bounds_that_make_large_tensors_stand() -> None:
    found = points(Dim("a", min=600, max=700), Dim("b", min=2, max=4), columns=2**11, example=(650, 3))
    assert {a for a, _ in found} <= {600, 601}
    assert (600, 2) in found


def test_a_size_that_is_an_input() -> None:
    program = torch.export.export(
        Function(lambda m, x, n: x * n), (FLOATS, 4), dynamic_shapes=((None, Dim.DYNAMIC(min=3, max=8)),)
    )
    drawing = Drawing(program)
    assert [drawing.draw(point, 0).args[1] for point in corners(program)] == [3, 4, 5, 8]


def test_a_size_that_is_no_number_is_told() -> None:
    symbol = sympy.Symbol("s0")
    with pytest.raises(ConventionError, match=r"the size 1/\(s0 - 2\): found no number of elements at s0 = 2"):
        _number(1 / (symbol - 2), {symbol: sympy.Integer(2)})
    with pytest.raises(ConventionError, match=r"the size s1: found no number"):
        _number(sympy.Symbol("s1"), {})


def test_a_tensor_that_no_memory_holds_is_not_drawn() -> None:
    program = exported(lambda self, x: x + 1, torch.ones(3))
    node = list(program.graph.find_nodes(op="placeholder"))[-1]
    node.meta["val"] = torch.empty_strided((3,), (2**60,), device="meta")
    with pytest.raises(UndrawableInput, match=r"found sizes \[3\] and strides \[1152921504606846976\], of which torch"):
        Drawing(program).draw({}, 0)
