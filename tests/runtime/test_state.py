"""The state of a program: read and set by name, brought back, and owned by each session."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

import intarsia
from intarsia.errors import ArgumentError, PositionError, StateError
from intarsia.runtime.program import Program


class Recorder(torch.nn.Module):
    """Records rows in a cache, counts its calls, and has a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("cache", torch.zeros(4, 2), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, position: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.cache.index_copy_(0, position, row * self.weight)
        return self.cache.sum(0)


ROW = torch.ones(1, 2)


def at(position: int) -> torch.Tensor:
    return torch.tensor([position])


@pytest.fixture(params=["TRAINING", "ATEN"])
def exported(request: pytest.FixtureRequest) -> ExportedProgram:
    program = export(Recorder(), (at(0), ROW))
    return program if request.param == "TRAINING" else program.run_decompositions({})


def values(program: Program) -> dict[str, Any]:
    return {name: value.tolist() for name, value in program.state.items()}


def test_reads_and_sets_entries_by_name(exported: ExportedProgram) -> None:
    program = Program(exported)
    assert sorted(program.state) == ["cache", "count", "weight"]
    program.state["cache"] = torch.full((4, 2), 1.0)
    program.state["count"] = torch.tensor(7)
    program.state["weight"] = torch.tensor([10.0, 20.0])
    assert program(at(1), ROW).tolist() == [13.0, 23.0]
    assert program.state["count"].item() == 8
    assert exported.state_dict["weight"].tolist() == [2.0, 3.0]
    assert exported.state_dict["count"].item() == 0
    assert not exported.constants["cache"].any()


def test_reset_gives_the_initial_values_again(exported: ExportedProgram) -> None:
    program = Program(exported)
    before = values(program)
    program.state["weight"] = torch.ones(2)
    program(at(1), ROW)
    assert values(program) != before
    program.reset()
    assert values(program) == before


def test_a_snapshot_brings_the_state_back(exported: ExportedProgram) -> None:
    program = Program(exported)
    program(at(1), ROW)
    snapshot, then = program.snapshot(), values(program)
    program(at(2), ROW)
    program.state["weight"] = torch.ones(2)
    program.restore(snapshot)
    assert values(program) == then
    assert program(at(2), ROW).tolist() == [4.0, 6.0]


def test_a_snapshot_brings_another_session_to_the_same_point(exported: ExportedProgram) -> None:
    program = Program(exported)
    program.state["weight"] = torch.ones(2)
    program(at(1), ROW)
    session = program.session()
    session.restore(program.snapshot())
    assert values(session) == values(program)
    program(at(2), ROW)
    assert values(session) != values(program)


def test_a_session_starts_anew_and_owns_what_it_writes(exported: ExportedProgram) -> None:
    program = Program(exported)
    program(at(1), ROW)
    session = program.session()
    assert not session.state["cache"].any()
    session(at(2), ROW)
    assert program.state["cache"].tolist() == [[0, 0], [2, 3], [0, 0], [0, 0]]
    assert session.state["cache"].tolist() == [[0, 0], [0, 0], [2, 3], [0, 0]]
    assert session.state["weight"] is program.state["weight"]


def test_many_sessions_run_from_many_threads_at_once(exported: ExportedProgram) -> None:
    program = Program(exported)
    results: dict[int, list[float]] = {}

    def converse(which: int) -> None:
        session = program.session()
        for step in range(40):
            session(at(step % 4), ROW * which)
        results[which] = [*session.state["cache"].flatten().tolist(), session.state["count"].item()]

    threads = [threading.Thread(target=converse, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {which: [*[2.0 * which, 3.0 * which] * 4, 40] for which in range(8)}
    assert not program.state["cache"].any()


def test_one_session_refuses_two_threads_at_once() -> None:
    started, release = threading.Event(), threading.Event()

    @torch.library.custom_op("intarsia_test::wait", mutates_args=())
    def wait(x: torch.Tensor) -> torch.Tensor:
        started.set()
        release.wait(10)
        return x.clone()

    wait.register_fake(torch.empty_like)

    class Waits(Recorder):
        def forward(self, position: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return super().forward(position, torch.ops.intarsia_test.wait(row))

    exported = export(Waits(), (at(0), ROW))
    started.clear()
    program = Program(exported)
    thread = threading.Thread(target=program, args=(at(1), ROW))
    thread.start()
    started.wait(10)
    try:
        for use in (lambda: program(at(2), ROW), program.reset, program.snapshot):
            with pytest.raises(StateError, match=r"another thread's call is running.*program\.session\(\)"):
                use()
    finally:
        release.set()
        thread.join()
    assert program.state["cache"].tolist() == [[0, 0], [2, 3], [0, 0], [0, 0]]
    program(at(2), ROW)


BAD_VALUES = [
    ("cachet", torch.zeros(4, 2), r"state 'cachet': found no such entry.*Did you mean 'cache'\?"),
    ("cache", torch.zeros(4, 3), r"state 'cache': found f32\[4, 3\] on cpu, expected f32\[4, 2\] on cpu"),
    ("cache", torch.zeros(4, 2, dtype=torch.float64), r"found f64\[4, 2\] on cpu, expected f32\[4, 2\]"),
    ("count", 3, r"state 'count': found an int, expected i64\[\] on cpu"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES)
def test_what_does_not_fit_is_not_set(exported: ExportedProgram, name: str, value: Any, message: str) -> None:
    program = Program(exported)
    before = values(program)
    with pytest.raises(StateError, match=message):
        program.state[name] = value
    assert values(program) == before


def test_an_entry_cannot_be_deleted(exported: ExportedProgram) -> None:
    program = Program(exported)
    with pytest.raises(StateError, match="found a deletion"):
        del program.state["cache"]
    assert "cache" in program.state


def test_a_snapshot_of_another_program_is_refused(exported: ExportedProgram) -> None:
    program, other = Program(exported), Program(export(Recorder(), (at(0), ROW)))
    program(at(1), ROW)
    before = values(program)
    with pytest.raises(StateError, match="found one of another program"):
        program.restore(other.snapshot())
    with pytest.raises(StateError, match="found a dict"):
        program.restore({})
    assert values(program) == before


@pytest.mark.parametrize("position", [4, -1, 400])
def test_a_position_outside_is_refused_before_anything_is_written(exported: ExportedProgram, position: int) -> None:
    program = Program(exported)
    program(at(1), ROW)
    before = values(program)
    message = rf"input 'position': found index {position}, which is out of bounds for dimension 0 with size 4"
    with pytest.raises(PositionError, match=message) as raised:
        program(at(position), ROW)
    assert isinstance(raised.value, IndexError)
    assert isinstance(raised.value, ArgumentError)
    assert values(program) == before
    program(at(2), ROW)


def test_a_position_that_the_state_holds_is_named_by_it() -> None:
    class Ring(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("next", torch.zeros(1, dtype=torch.int32))
            self.register_buffer("ring", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.ring.index_put_((self.next.to(torch.int64),), x)
            self.next.add_(1)
            return self.ring.sum()

    program = Program(export(Ring(), (torch.ones(1),)).run_decompositions({}))
    for _ in range(3):
        program(torch.ones(1))
    with pytest.raises(PositionError, match=r"state 'next': found index 3"):
        program(torch.ones(1))
    assert program.state["next"].item() == 3


class Ahead(torch.nn.Module):
    """Moves its position on in place before it writes there, though it has taken a view of it before."""

    def __init__(self, *, start: int) -> None:
        super().__init__()
        self.register_buffer("position", torch.tensor(start))
        self.register_buffer("ring", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = self.position.view(1)
        self.position += 1
        self.ring.index_copy_(0, at, x)
        return self.ring.sum()


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
def test_a_position_that_is_written_in_place_is_checked_where_it_is_used(dialect: str) -> None:
    exported = export(Ahead(start=-1), (torch.ones(1),))
    program = Program(exported if dialect == "TRAINING" else exported.run_decompositions({}))
    model = Ahead(start=-1)
    for call in range(3):
        assert torch.equal(program(torch.full((1,), call + 1.0)), model(torch.full((1,), call + 1.0)))
        assert torch.equal(program.state["ring"], model.ring)
    with pytest.raises(PositionError, match="found index 3"):
        program(torch.ones(1))
    assert torch.equal(program.state["ring"], model.ring)


def test_entries_that_share_memory_are_set_together() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("base", torch.arange(4.0))
            self.register_buffer("tail", self.base[2:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base.sum() + self.tail.sum() + x

    model = Tied()
    program = Program(export(model, (torch.zeros(()),)))
    live = program.state["base"]
    program.state["tail"] = torch.tensor([10.0, 20.0])
    assert program.state["base"].tolist() == [0.0, 1.0, 10.0, 20.0]
    held = program.state["base"]
    program.state["base"] = torch.ones(4)
    assert program.state["tail"].tolist() == [1.0, 1.0]
    assert program.state["base"] is held
    assert program(torch.zeros(())).item() == 6.0
    assert live.tolist() == model.base.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_saving_stores_the_initial_state(exported: ExportedProgram, tmp_path: Path) -> None:
    program = Program(exported)
    program(at(1), ROW)
    intarsia.save(exported, tmp_path / "recorder.pt2")
    loaded = intarsia.load(tmp_path / "recorder.pt2")
    assert not loaded.state["cache"].any()
    assert loaded.state["count"].item() == 0


def test_engines_are_no_state_of_the_user() -> None:
    hybrid = intarsia.compile(torch.nn.Linear(2, 2), (ROW,))
    program = Program(intarsia.export(hybrid))
    assert not [name for name in program.state if "engine" in name or "openvino" in name]
    assert "openvino_0" not in program.state


def test_an_unknown_entry_is_named_when_it_is_read(exported: ExportedProgram) -> None:
    program = Program(exported)
    with pytest.raises(
        KeyError, match=r"state 'cahce': found no such entry, expected one of the 3 .* Did you mean 'cache'"
    ):
        _ = program.state["cahce"]
    with pytest.raises(KeyError, match="inside of an engine"):
        _ = program.state["conv.0.filter"]
    assert "conv.0.filter" not in program.state
    assert program.state.get("conv.0.filter") is None


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_program_is_neither_copied_nor_pickled(exported: ExportedProgram, way: Any) -> None:
    with pytest.raises(
        StateError, match=r"program: found an attempt to copy .* program\.session\(\) .* intarsia\.save"
    ):
        way(Program(exported))
