"""Odd ways to write, read, alias and return state: a program does what the eager model does, call after call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import intarsia
from builders.hybrids import Buffer, Draft, aten, describe, hybrid
from intarsia.errors import PositionError, StateError
from intarsia.runtime.program import Program

LIBRARY = torch.library.Library("intarsia_odd_state", "DEF")
LIBRARY.define("accumulate(Tensor(a!) total, Tensor x) -> Tensor")
LIBRARY.define("put(Tensor(a!) slot, Tensor x, int at) -> ()")
LIBRARY.define("add_and_copy(Tensor(a!) one, Tensor(b!) other, Tensor x) -> Tensor")


def accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return x * 2


def put(slot: torch.Tensor, x: torch.Tensor, at: int) -> None:
    slot[at] = x


def add_and_copy(one: torch.Tensor, other: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    other.copy_(one.add_(x))
    return one * 1


for function in (accumulate, put, add_and_copy):
    LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")
torch.library.register_fake("intarsia_odd_state::accumulate", lambda total, x: torch.empty_like(x), lib=LIBRARY)
torch.library.register_fake("intarsia_odd_state::put", lambda slot, x, at: None, lib=LIBRARY)
torch.library.register_fake("intarsia_odd_state::add_and_copy", lambda one, _, x: torch.empty_like(one), lib=LIBRARY)
CUSTOM = torch.ops.intarsia_odd_state


class Odd(torch.nn.Module):
    """A cache f32[4, 3], another one, and entries of other kinds; `body` does with them what it likes."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("cache", torch.arange(12.0).reshape(4, 3))
        self.register_buffer("other", torch.ones(4, 3), persistent=False)
        self.register_buffer("turned", torch.zeros(3, 4).t())
        self.register_buffer("spread", torch.zeros(8, 3)[::2])
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("positions", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("small", torch.zeros(4, 3, dtype=torch.float16), persistent=False)
        self.register_buffer("base", torch.zeros(1, 3))
        self.register_buffer("line", torch.arange(4.0))
        self.body = body

    def forward(self, row: torch.Tensor, index: torch.Tensor) -> Any:
        return self.body(self, row, index)


def recorded(m: Odd, row: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """What the cache is to be."""
    return torch.index_copy(m.cache, 0, index, row)


def kept(m: Odd, new: torch.Tensor, *returned: Any) -> Any:
    """Make a value the cache, and return what was computed before."""
    m.cache.copy_(new)
    return [*returned, m.cache * 1]


def value_written_after_the_copy(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    return new.add_(100), m.cache + 0


def view_of_value_written_after_the_copy(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    first = new[0]
    first.mul_(2)
    return first, new, m.cache * 1


def value_written_before_the_copy(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    CUSTOM.put(new, row[0], 2)
    return kept(m, new)


def value_written_by_a_custom_operator(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    CUSTOM.put(new[1:], row[0] * 7, 0)
    return new * 1, m.cache * 1


def value_written_as_one_of_a_list(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    torch._foreach_mul_([new, m.other], 2.0)
    return new * 1, m.cache * 1, m.other


def value_written_as_an_out_argument(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    torch.add(m.cache, row, out=new)
    return new * 1, m.cache * 1


def one_value_for_two_entries(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    m.other.copy_(new)
    return new * 1, m.other * 1


def written_by_a_custom_operator(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    doubled = CUSTOM.accumulate(m.cache[1:], row)
    return kept(m, recorded(m, doubled, index), doubled)


def two_written_by_a_custom_operator(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    summed = CUSTOM.add_and_copy(m.cache, m.other, row)
    m.other.copy_(torch.index_copy(m.other, 0, index, row))
    return summed, m.cache * 1, m.other * 1


def old_values_returned(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    old = m.cache.clone()
    return kept(m, recorded(m, row, index), old, old[1:])


def both_values_returned(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    first = recorded(m, row, index)
    second = torch.index_copy(first, 0, (index + 1) % 4, row + 5)
    return kept(m, second, first)


def view_of_the_new_value_returned(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    return kept(m, new, new[1:], new.t(), new[0].expand(4, 3), new.reshape(12))


def view_read_across_two_writes(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    first = m.cache[0]
    m.cache.copy_(recorded(m, row, index))
    between = first * 1
    m.cache.copy_(torch.index_copy(m.cache, 0, (index + 1) % 4, first[None]))
    return between, first * 1


def read_through_what_no_schema_tells(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    one, (two, _) = torch.conj_physical(m.cache), torch.ops.aten.unsafe_split.Tensor(m.cache, 2)
    new = recorded(m, row, index)
    return kept(m, new, one * 2, two * 2)


def read_through_a_mesh(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    one, _ = torch.meshgrid(m.line, m.line, indexing="ij")
    new = torch.index_put(m.line, (index,), row[0, :1])
    before = one * 2
    m.line.copy_(new)
    return before


def read_by_a_branch_before_the_copy(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    chosen = torch.cond(index[0] > 1, lambda a, b: a * b, lambda a, b: a - b, (m.cache, new))
    return kept(m, new, chosen)


def read_by_a_branch_after_the_copy(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, index)
    m.cache.copy_(new)
    return torch.cond(index[0] > 1, lambda a, b: a + b.sum(0), lambda a, b: a - b[0], (m.cache, new))


def nested_views(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    m.cache[1:].t()[1:].t()[0].add_(row[0, 1:])
    m.cache.unsqueeze(0)[0, 1].copy_(row[0])
    m.cache.view(2, 6)[0, ::2] = row[0]
    return m.cache.sum(0)


def part_of_a_part(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    part = torch.select_scatter(m.cache[1], row[0, 0] + m.cache[1, 1], 0, 2)
    return kept(m, torch.select_scatter(m.cache, part, 0, 1))


def part_put_in_two_places(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    part = torch.select_scatter(m.cache[1], row[0, 0], 0, 2)
    return kept(m, torch.select_scatter(torch.select_scatter(m.cache, part, 0, 1), part, 0, 2))


def part_of_the_old_value_in_the_new(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    part = torch.select_scatter(m.cache[1], row[0, 0], 0, 2)
    return kept(m, torch.select_scatter(recorded(m, row, index), part, 0, 1))


def part_of_the_new_value_in_the_old(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    part = torch.select_scatter(recorded(m, row, index)[1], row[0, 0], 0, 2)
    return kept(m, torch.select_scatter(m.cache, part, 0, 1))


def shifted_within_itself(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    m.cache.copy_(torch.slice_scatter(m.cache, m.cache[1:], 0, 0, 3))
    m.cache[3] = row[0]
    return m.cache + 0


def halves_exchanged(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = torch.slice_scatter(m.cache, m.cache[2:], 0, 0, 2)
    return kept(m, torch.slice_scatter(new, m.cache[:2] + row, 0, 2, 4))


def two_entries_of_each_other(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    one, other = recorded(m, row, index), torch.slice_scatter(m.other, m.cache[:2], 0, 1, 3)
    m.other.copy_(other)
    return kept(m, one, one + other)


def source_written_before_it_is_read(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    source = m.other[:1]
    new = recorded(m, source, index)
    m.other.copy_(torch.index_copy(m.other, 0, index * 0, row))
    return kept(m, new)


def mask_of_the_old_value(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    return kept(m, torch.masked_fill(recorded(m, row, index), m.cache > 8, 7.0))


def index_read_from_the_entry_itself(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = torch.index_copy(m.positions, 0, m.positions[:1] % 2, index)
    m.positions.copy_(new)
    return new + 0


def position_that_is_state(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = recorded(m, row, (m.count % 4).reshape(1))
    m.count.add_(1)
    return kept(m, new, m.count)


def transposed_entry(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = torch.index_copy(m.turned, 0, index, row)
    m.turned.copy_(new)
    return new + 0, new.t().contiguous().view(-1)


def entry_with_gaps(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    new = torch.index_copy(m.spread, 0, index, row)
    m.spread.copy_(new)
    return new.view(-1), m.spread * 1


def entry_without_elements(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    m.nothing.copy_(torch.slice_scatter(m.nothing, row[:0], 0, 0, 0))
    return m.nothing.add_(1), m.nothing.sum() + row


def entry_of_another_dtype(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    m.small[index] = (row / 3).half()
    m.small.copy_(torch.index_copy(m.small, 0, index * 0, row.half()))
    return m.small.float() * m.count.add_(1)


def expanded_view_of_the_entry(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    wide = m.base.expand(4, 3)
    new = torch.slice_scatter(m.base, row, 0, 0, 1)
    before = wide * 2
    m.base.copy_(new)
    return before, wide + 0


def input_and_entry_written(m: Odd, row: torch.Tensor, index: torch.Tensor) -> Any:
    first = row[0]
    row.mul_(2)
    return kept(m, recorded(m, row, index), first)


BODIES = [
    value_written_after_the_copy,
    view_of_value_written_after_the_copy,
    value_written_before_the_copy,
    value_written_by_a_custom_operator,
    value_written_as_one_of_a_list,
    value_written_as_an_out_argument,
    one_value_for_two_entries,
    written_by_a_custom_operator,
    two_written_by_a_custom_operator,
    old_values_returned,
    both_values_returned,
    view_of_the_new_value_returned,
    view_read_across_two_writes,
    read_through_what_no_schema_tells,
    read_through_a_mesh,
    read_by_a_branch_before_the_copy,
    read_by_a_branch_after_the_copy,
    nested_views,
    part_of_a_part,
    part_put_in_two_places,
    part_of_the_old_value_in_the_new,
    part_of_the_new_value_in_the_old,
    shifted_within_itself,
    halves_exchanged,
    two_entries_of_each_other,
    source_written_before_it_is_read,
    mask_of_the_old_value,
    index_read_from_the_entry_itself,
    position_that_is_state,
    transposed_entry,
    entry_with_gaps,
    entry_without_elements,
    entry_of_another_dtype,
    expanded_view_of_the_entry,
    input_and_entry_written,
]


@cache
def exported_of(body: Callable[..., Any]) -> ExportedProgram:
    return export(Odd(body), (torch.ones(1, 3), torch.tensor([0])))


@pytest.mark.filterwarnings("ignore")  # torch warns of its own doings while it exports a branch
@pytest.mark.parametrize("table", ["none", "empty", "core"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_does_what_eager_does(body: Callable[..., Any], table: str) -> None:
    if body is one_value_for_two_entries and table != "none":
        pytest.skip("torch cannot decompose a program that writes one value into two entries")
    exported = exported_of(body)
    if table != "none":
        exported = exported.run_decompositions({} if table == "empty" else None)
    program, model = Program(exported), Odd(body)
    handed_out: list[tuple[torch.Tensor, torch.Tensor]] = []
    for call in range(6):
        mine, its = ((torch.full((1, 3), call + 1.0), torch.tensor([call % 4])) for _ in range(2))
        with torch.no_grad():
            found, expected = program(*mine), model(*its)
        for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert one.dtype is other.dtype
            assert torch.equal(one, other)
            if not any(shares(other, entry) for entry in model.buffers()):
                handed_out.append((one, one.clone()))
        for one, other in zip(mine, its, strict=True):
            assert torch.equal(one, other)
        for name, value in program.state.items():
            if hasattr(model, name):  # a constant of torch's has no name there
                assert torch.equal(value, getattr(model, name)), name
    for value, then in handed_out:
        assert torch.equal(value, then)


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_an_expanded_entry_is_read_and_not_set() -> None:
    class Expanded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("base", torch.zeros(1, 3))
            self.register_buffer("wide", self.base.expand(4, 3))

        def forward(self, row: torch.Tensor) -> torch.Tensor:
            self.base.add_(row)
            return self.wide + 1

    program = Program(export(Expanded(), (torch.ones(1, 3),)))
    with pytest.raises(StateError, match="state 'wide': found a new value, expected none, for the entry shows"):
        program.state["wide"] = torch.ones(4, 3)
    assert torch.equal(program(torch.ones(1, 3)), torch.full((4, 3), 2.0))
    program.reset()
    assert not program.state["wide"].any()


@pytest.mark.parametrize("write", [aten.copy_.default, aten.mul_.Tensor])
def test_a_graph_whose_calls_give_their_arguments_by_keyword(write: Any) -> None:
    """As the graphs of other tools may; what is not recognised is copied."""

    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            row, index = g.inputs("row index")
            s = g.get_attr("s")
            new = g.call_function(aten.index_copy.default, (s,), {"dim": 0, "index": index, "source": row})
            newer = g.call_function(aten.index_copy.default, (), {"self": new, "dim": 0, "index": index, "source": row})
            second = "src" if write is aten.copy_.default else "other"
            g.call_function(write, (), {"self": s, second: newer})
            part = g.call_function(aten.slice.Tensor, (), {"self": s, "dim": 0, "start": 1})
            g.op(aten.add_.Tensor, s, 1.0)
            g.call_function(aten.index_add_.default, (), {"self": s, "dim": 0, "index": index, "source": row})
            return g.op(aten.mul.Tensor, part, 2.0)

        return describe(hybrid(fill, {"s": Buffer(torch.ones(4, 3))}), (torch.ones(1, 3), torch.tensor([0])))

    model, program = build(), Program(intarsia.export(build()))
    for call in range(3):
        given = torch.full((1, 3), call + 1.0), torch.tensor([call])
        assert torch.equal(program(*given), model(*given))
        assert torch.equal(program.state["s"], model.s)
    with pytest.raises(PositionError, match="input 'index': found index 4"):
        program(torch.ones(1, 3), torch.tensor([4]))
