"""What is written in place gives what the functional form gives: outputs, state, and what was handed out before."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.export import ExportedProgram, export

from intarsia.runtime.program import Program

ROWS, COLUMNS = 4, 3


class Steps(torch.nn.Module):
    """Carries out steps on a list of values that starts with its buffers and inputs.

    `whole` and `tail` may share memory; `other` has its own. Values of shape (4, 3) are whole, of shape (2, 3) parts.
    """

    def __init__(self, steps: list[tuple[str, int, int]], *, shared: bool) -> None:
        super().__init__()
        memory = torch.arange(6.0 * COLUMNS).reshape(6, COLUMNS)
        self.register_buffer("whole", memory[:ROWS])
        self.register_buffer("tail", memory[2:] if shared else memory[2:].clone())
        self.register_buffer("other", torch.ones(ROWS, COLUMNS), persistent=False)
        self.steps = steps

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        values: dict[torch.Size, list[torch.Tensor]] = {
            torch.Size((ROWS, COLUMNS)): [self.whole, self.other, self.tail, x],
            torch.Size((2, COLUMNS)): [x[:2]],
        }
        returned = []
        for name, first, second in self.steps:
            wholes, parts = values.values()
            a, b = wholes[first % len(wholes)], wholes[second % len(wholes)]
            part = parts[second % len(parts)]
            if name == "return":
                returned.append((wholes + parts)[first % len(wholes + parts)])
            elif (made := STEPS[name](self, a, b, part, index)) is not None:
                values[made.shape].append(made)
        return returned or [x + 1]


Step = Callable[[Steps, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]
STEPS: dict[str, Step] = {
    "index_copy": lambda _, a, __, part, index: torch.index_copy(a, 0, index, part),
    "index_put": lambda _, a, __, part, index: torch.index_put(a, (index,), part),
    "slice_scatter": lambda _, a, __, part, ___: torch.slice_scatter(a, part, 0, 1, 3),
    "select_scatter": lambda _, a, __, part, ___: torch.select_scatter(a, part[0], 0, 2),
    "masked_fill": lambda _, a, b, *__: torch.masked_fill(a, b > 2, 0.5),
    "copy": lambda _, a, b, *__: torch.ops.aten.copy(a, b),
    "row": lambda _, a, __, part, ___: a[1:3].copy_(part),
    "column": lambda _, a, *__: a[:2, 1:2].fill_(0.25).expand(2, COLUMNS),
    "index_copy_": lambda _, a, __, part, index: a.index_copy_(0, index, part),
    "nested": lambda _, a, b, *__: torch.slice_scatter(a, torch.select_scatter(a[0:2], b[3], 0, 1), 0, 0, 2),
    "part": lambda _, a, *__: a[1:3],
    "head": lambda _, a, *__: a[0:2],
    "view": lambda _, a, *__: a.t().t(),
    "read": lambda _, a, b, *__: a * 0.5 + b,
    "keep": lambda self, a, *_: self.other.copy_(a),
    "keep whole": lambda self, a, *_: self.whole.copy_(a),
}


def functional_form(steps: list[tuple[str, int, int]], *, shared: bool) -> ExportedProgram | None:
    """The program of some steps; None where torch refuses them (a copy onto an overlap, writes of shared memory)."""
    try:
        args = (torch.ones(ROWS, COLUMNS), torch.tensor([0, 2]))
        return export(Steps(steps, shared=shared), args).run_decompositions({})
    except Exception:  # noqa: BLE001 - torch's own faults, of many types
        return None


step = st.tuples(
    st.sampled_from([*STEPS, *("return", "return", "keep", "index_copy")]), st.integers(0, 9), st.integers(0, 9)
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, min_size=2, max_size=9), shared=st.booleans())
def test_equals_the_functional_form(*, steps: list[tuple[str, int, int]], shared: bool) -> None:
    exported = functional_form(steps, shared=shared)
    if exported is None:
        return
    program = Program(exported)
    before = {name: value.clone() for name, value in exported.state_dict.items()}
    reference = Program(exported)
    reference._graph = reference._as_exported
    handed_out: list[tuple[torch.Tensor, torch.Tensor]] = []
    for call in range(3):
        x = torch.full((ROWS, COLUMNS), float(call)) + torch.arange(COLUMNS)
        index = torch.tensor([call, 3])
        found, expected = program(x.clone(), index), reference(x.clone(), index)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
            is_live = any(one is program.state[name] for name in program.writes)
            assert is_live or not any(other is reference.state[name] for name in program.writes)
            handed_out += [] if is_live else [(one, one.clone())]
        for name in program.state:
            assert torch.equal(program.state[name], reference.state[name]), name
    shared = {name for name in program.state if program.state[name].data_ptr() in {t.data_ptr() for t, _ in handed_out}}
    assert not shared & {name for name, write in program.writes.items() if write.in_place}
    for value, then in handed_out:
        assert torch.equal(value, then) or not program.writes
    for name, value in before.items():
        assert torch.equal(exported.state_dict[name], value)


class Cache(torch.nn.Module):
    """A cache written by one of many operators, in place or functionally, then read."""

    def __init__(self, write: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 5, 3), persistent=False)
        self.write = write

    def forward(self, position: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        written = self.write(self.cache, position, value)
        if written is not None:
            self.cache.copy_(written)
        return self.cache.sum(-1)


def assign(*index: Any) -> Callable[..., None]:
    def write(cache: torch.Tensor, position: torch.Tensor, value: torch.Tensor) -> None:
        cache[tuple(position if part is Ellipsis else part for part in index)] = value[:, 0]

    return write


def narrow(cache: torch.Tensor, position: torch.Tensor, value: torch.Tensor) -> None:
    start = position.item()
    torch._check(start >= 0)
    torch._check(start < cache.shape[1])
    cache.narrow(1, start, 1).copy_(value)


def spread(position: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return position.reshape(1, 1, 1).expand(value.shape)


ALL = slice(None)
WRITES: dict[str, Callable[..., Any]] = {
    "index_copy": lambda c, p, v: torch.index_copy(c, 1, p, v),
    "index_put": lambda c, p, v: torch.index_put(c, (torch.arange(2)[:, None], p), v),
    "index_add": lambda c, p, v: torch.index_add(c, 1, p, v),
    "index_fill": lambda c, p, _: torch.index_fill(c, 1, p, 2.0),
    "scatter": lambda c, p, v: torch.scatter(c, 1, spread(p, v), v),
    "scatter_add": lambda c, p, v: torch.scatter_add(c, 1, spread(p, v), v),
    "scatter_reduce": lambda c, p, v: torch.scatter_reduce(c, 1, spread(p, v), v, "amax"),
    "masked_fill": lambda c, p, _: torch.masked_fill(c, torch.arange(5)[:, None] == p, 3.0),
    "slice_scatter": lambda c, _, v: torch.slice_scatter(c, v, 1, 2, 3),
    "select_scatter": lambda c, _, v: torch.select_scatter(c, v[:, 0], 1, 2),
    "diagonal_scatter": lambda c, _, v: torch.diagonal_scatter(c, v[:, 0].t(), 0, 0, 1),
    "nested": lambda c, _, v: torch.select_scatter(c, torch.slice_scatter(c[1], v[0], 0, 1, 2), 0, 1),
    "narrow": narrow,
    "one position": assign(ALL, 2),
    "one cell": assign(slice(0, 2), 4, ALL),
    "at a tensor": lambda c, p, v: c.__setitem__((ALL, p), v),
    "added to": lambda c, _, v: torch.select_scatter(c, c[:, 1] + v[:, 0], 1, 1),
}


@pytest.mark.parametrize("table", ["none", "empty", "core"])
@pytest.mark.parametrize("name", WRITES)
def test_writes_only_what_changes(name: str, table: str) -> None:
    args = (torch.tensor([0]), torch.ones(2, 1, 3))
    exported = export(Cache(WRITES[name]), args)
    if table != "none":
        exported = exported.run_decompositions({} if table == "empty" else None)
    program, model = Program(exported), Cache(WRITES[name])
    address = program.state["cache"].data_ptr()
    for call in range(5):
        given = (torch.tensor([call]), torch.full((2, 1, 3), call + 1.0))
        assert torch.equal(program(*given), model(*given))
        assert torch.equal(program.state["cache"], model.cache)
    assert program.state["cache"].data_ptr() == address
    assert not exported.constants["cache"].any()
    write = program.writes["cache"]
    assert write.in_place is not (table == "core" and name == "masked_fill"), write.reason
    assert "copy_" not in write.operators or name in ("narrow", "one position", "one cell")


class Rule(torch.nn.Module):
    """A body that breaks, or just keeps, one rule of the proof."""

    def __init__(self, body: Callable[..., Any], *, tied: bool) -> None:
        super().__init__()
        self.register_buffer("cache", torch.arange(12.0).reshape(4, 3))
        self.register_buffer("tail", self.cache[2:] if tied else torch.ones(2, 3))
        self.register_buffer("other", torch.zeros(4, 3))
        self.body = body

    def forward(self, index: torch.Tensor, row: torch.Tensor) -> Any:
        return self.body(self, index, row)


def read_old_later(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    new = torch.index_copy(m.cache, 0, index, row)
    old = m.cache.sum()
    m.cache.copy_(new)
    return old + new.sum()


def read_old_view_later(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    head = m.cache[:2]
    new = torch.index_copy(m.cache, 0, index, row)
    y = head * 2
    m.cache.copy_(new)
    return y


def read_tied_later(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    new = torch.slice_scatter(m.cache, row, 0, 3, 4)
    y = m.tail * 2
    m.cache.copy_(new)
    return y


def read_old_before(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    y = m.cache[:2] * 2
    m.cache.copy_(torch.index_copy(m.cache, 0, index, row))
    return y


def write_its_own_row(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    m.cache.copy_(torch.index_copy(m.cache, 0, index, m.cache[1:2]))
    return row + 1


def read_part_alone(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    part = torch.index_copy(m.cache[:2], 0, index * 0, row)
    m.cache.copy_(torch.slice_scatter(m.cache, part, 0, 0, 2))
    return part.view(-1)


def put_in_another_part(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    part = torch.index_copy(m.cache[:2], 0, index * 0, row)
    m.cache.copy_(torch.slice_scatter(m.cache, part, 0, 2, 4))
    return row + 1


def write_between(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    part = torch.index_copy(m.cache[:2], 0, index * 0, row)
    new = torch.slice_scatter(torch.slice_scatter(m.cache, row, 0, 3, 4), part, 0, 0, 2)
    m.cache.copy_(new)
    return row + 1


def two_branches(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    one = torch.index_copy(m.cache, 0, index, row)
    two = torch.slice_scatter(m.cache, one[:1], 0, 3, 4)
    m.cache.copy_(two)
    return one


def whole_anew(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    m.cache.copy_(m.cache.roll(1, 0))
    return row + 1


def from_another(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    m.cache.copy_(torch.index_copy(m.other, 0, index, row))
    return row + 1


def transposed(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    m.cache[:3].copy_(torch.index_copy(m.cache[:3].t(), 0, index * 0, row))
    return row + 1


def return_a_part(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    m.cache.copy_(torch.index_copy(m.cache, 0, index, row))
    return m.cache[1:]


def two_writes(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    new = torch.index_copy(m.cache, 0, index, row)
    m.cache.copy_(torch.select_scatter(new, row[0] + new[1], 0, 2))
    return row + 1


def into_two(m: Rule, index: torch.Tensor, row: torch.Tensor) -> Any:
    new = torch.index_copy(m.cache, 0, index, row)
    m.cache.copy_(new)
    m.other.copy_(new * 1)
    return row + 1


IN_PLACE = ""
RULES: list[tuple[Callable[..., Any], str]] = [
    (read_old_later, "%sum_1 reads what it held before a write"),
    (read_old_view_later, "%mul reads what it held before a write"),
    (read_tied_later, "%mul reads what it held before a write"),
    (read_old_before, IN_PLACE),
    (write_its_own_row, "%index_copy also reads what it writes"),
    (read_part_alone, "%index_copy, a part of it, is read by itself"),
    (put_in_another_part, "%slice_scatter reads what it held before a write"),
    (write_between, "%slice_scatter reads what it held before a write"),
    (two_branches, "reads what it held before a write|also reads what it writes"),
    (whole_anew, "%roll makes the whole value"),
    (from_another, "%index_copy makes the whole value"),
    (transposed, IN_PLACE),
    (return_a_part, IN_PLACE),
    (two_writes, IN_PLACE),
    (into_two, IN_PLACE),
]


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
@pytest.mark.parametrize(("body", "reason"), RULES, ids=[body.__name__ for body, _ in RULES])
def test_a_rule_of_the_proof(body: Callable[..., Any], reason: str, dialect: str) -> None:
    tied = body is read_tied_later
    if tied and dialect == "ATEN":
        pytest.skip("torch cannot decompose a program whose entries share memory")
    exported = export(Rule(body, tied=tied), (torch.tensor([1]), torch.ones(1, 3)))
    if dialect == "ATEN":
        exported = exported.run_decompositions({})
    program, model = Program(exported), Rule(body, tied=tied)
    kept = []
    for call in range(4):
        given = (torch.tensor([call]), torch.full((1, 3), call + 0.5))
        found = program(*given)
        assert torch.equal(found, model(*given))
        kept.append((found, found.clone()))
        for name, value in model.named_buffers():
            assert torch.equal(program.state[name], value)
    if dialect == "TRAINING":  # a `copy_` of the graph is no copy of ours, and views of buffers are returned live
        reason = "" if "whole value" in reason else reason
    else:
        assert all(torch.equal(value, then) for value, then in kept)
    found = program.writes["cache"].reason
    assert re.search(reason, found) if reason else not found


def test_a_call_with_the_live_tensor_as_input_runs_the_functional_form() -> None:
    class Mixes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.cache.copy_(torch.slice_scatter(self.cache, x[:2] + 1, 0, 2, 4))
            return self.cache, x * 1

    program = Program(export(Mixes(), (torch.ones(4),)).run_decompositions({}))
    assert program.writes["cache"].in_place
    live, _ = program(torch.ones(4))
    before = live.clone()
    _, x = program(live)
    assert torch.equal(x, before)


def test_writes_a_whole_copy_in_a_graph_that_also_writes_in_place() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.slice_scatter(self.cache, x[:2], 0, 2, 4)
            self.cache.copy_(first)
            self.count.add_(1)
            second = torch.slice_scatter(self.cache, self.count[None], 0, 0, 1)
            self.cache.copy_(second)
            return self.cache.sum() + second.sum()

    program, model = Program(export(Both(), (torch.ones(4),))), Both()
    for call in range(3):
        x = torch.full((4,), float(call))
        assert torch.equal(program(x), model(x))
        assert torch.equal(program.state["cache"], model.cache)
    assert program.writes["cache"].operators == ("slice_scatter",)
    assert program.writes["cache"].in_place


def test_a_value_read_after_a_later_write_is_copied() -> None:
    class Late(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.slice_scatter(self.cache, x[:2], 0, 2, 4)
            self.cache.copy_(first)
            self.cache.add_(1)
            return first * 2

    program, model = Program(export(Late(), (torch.ones(4),))), Late()
    for _ in range(3):
        assert torch.equal(program(torch.ones(4)), model(torch.ones(4)))
        assert torch.equal(program.state["cache"], model.cache)
    assert program.writes["cache"].reason == "%mul reads what it held before a write"


def exported_cache(write: Callable[..., Any], shape: tuple[int, ...] = (4, 4)) -> ExportedProgram:
    """An ATEN program whose buffers `cache` and `other` are both written by `write`."""

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(shape))
            self.register_buffer("other", torch.zeros(shape))

        def forward(self, row: torch.Tensor) -> torch.Tensor:
            self.cache.copy_(write(self.cache, row))
            self.other.copy_(write(self.other, row * 2))
            return row + 1

    return export(Two(), (torch.ones(shape[1]),)).run_decompositions({})


def first_row(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.select_scatter(cache, row, 0, 0)


def assert_functional(exported: ExportedProgram, reason: str) -> None:
    """The program copies both entries, for this reason, and gives what the functional form gives."""
    program, reference = Program(exported), Program(exported)
    reference._graph = reference._as_exported
    for call in range(3):
        row = torch.arange(4.0) + call
        assert torch.equal(program(row), reference(row))
        for name in program.state:
            assert torch.equal(program.state[name], reference.state[name])
    assert {write.reason for write in program.writes.values()} == {reason}


def test_entries_that_show_elements_twice_are_copied() -> None:
    exported = exported_cache(first_row)
    for name in ("cache", "other"):
        exported.state_dict[name] = torch.zeros(7).as_strided((4, 4), (1, 1))
    assert_functional(exported, "it shows elements more than once")


def test_entries_with_other_strides_than_the_graph_was_told_are_copied() -> None:
    exported = exported_cache(first_row)
    for name in ("cache", "other"):
        exported.state_dict[name] = torch.zeros(4, 4).t()
    program = Program(exported)
    assert [write.reason for write in program.writes.values()] == [
        "%select_scatter has other strides",
        "%select_scatter_1 has other strides",
    ]
    program(torch.arange(4.0))
    assert program.state["cache"].tolist()[0] == [0, 1, 2, 3]


def test_two_written_entries_that_share_memory_are_copied() -> None:
    exported = exported_cache(first_row)
    memory = torch.zeros(6, 4)
    exported.state_dict["cache"], exported.state_dict["other"] = memory[:4], memory[2:]
    assert_functional(exported, "it shares memory with b_other, which is written too")


def test_a_value_made_of_a_view_of_the_whole_is_copied() -> None:
    exported = exported_cache(lambda cache, row: torch.select_scatter(cache.view(2, 8).view(4, 4), row, 0, 0))
    program, reference = Program(exported), Program(exported)
    reference._graph = reference._as_exported
    assert torch.equal(program(torch.arange(4.0)), reference(torch.arange(4.0)))
    assert torch.equal(program.state["other"], reference.state["other"])
    assert program.writes["cache"].reason == "%select_scatter, a part of it, is read by itself"


def test_a_part_copied_onto_its_own_entry_is_right() -> None:
    class Shifts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            new = torch.slice_scatter(self.cache, x, 0, 0, 2)
            self.cache.copy_(new)
            self.cache[1:].copy_(new[:-1])
            return self.cache * 1

    program, model = Program(export(Shifts(), (torch.ones(2),))), Shifts()
    for call in range(4):
        x = torch.tensor([call + 1.0, call + 0.5])
        assert torch.equal(program(x), model(x))
    assert "also reads what it writes" in program.writes["cache"].reason
