"""Several programs that share the state of one model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export
from torch.utils._python_dispatch import TorchDispatchMode

from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.errors import ConventionError, StateError
from intarsia.runtime.method_set import UnknownMethod
from intarsia.runtime.methods import Methods, check_methods
from intarsia.runtime.program import Program


class Cache(torch.nn.Module):
    """Writes rows into a cache; the answer is the sum over the rows, times a weight."""

    def __init__(self, rows: int = 4) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]), requires_grad=False)
        self.register_buffer("rows", torch.zeros(rows, 2), persistent=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, position, x)
        self.calls.add_(1)
        return self.rows.sum(0) * self.weight


class Reader(torch.nn.Module):
    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.register_buffer("rows", cache.rows)

    def forward(self) -> torch.Tensor:
        return self.rows.sum(0) + torch.tensor([1.0, 1.0])


class Shifted(Reader):
    def forward(self) -> torch.Tensor:
        return self.rows.sum(0) + torch.tensor([5.0, 5.0])


def call(count: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(2.0 * count).reshape(count, 2) + start, torch.arange(start, start + count)


def programs(model: Cache, decompose: bool = False) -> dict[str, ExportedProgram]:
    made = {
        "prefill": export(model, call(3)),
        "decode": export(model, call(1)),
        "total": export(Reader(model), ()),
        "shifted": export(Shifted(model), ()),
    }
    return {name: program.run_decompositions({}) if decompose else program for name, program in made.items()}


def methods(given: dict[str, ExportedProgram]) -> Methods:
    return Methods({name: Program(program) for name, program in given.items()})


@pytest.fixture(params=[False, True], ids=["training", "aten"])
def loaded(request: pytest.FixtureRequest) -> Methods:
    return methods(programs(Cache(), request.param))


def test_what_one_method_writes_the_others_read(loaded: Methods) -> None:
    model = Cache()
    assert torch.equal(loaded.prefill(*call(3)), model(*call(3)))
    assert torch.equal(loaded.total(), model.rows.sum(0) + 1)
    assert torch.equal(loaded.decode(*call(1, 3)), model(*call(1, 3)))
    assert torch.equal(loaded.shifted(), model.rows.sum(0) + 5)
    assert loaded.state["calls"] == loaded.decode.state["calls"] == 2
    assert torch.equal(loaded.state["rows"], model.rows)


def test_no_call_changes_the_exported_programs() -> None:
    model = Cache()
    given = programs(model)
    loaded = methods(given)
    loaded.prefill(*call(3))
    assert not model.rows.any()
    assert loaded.prefill.state["weight"].data_ptr() == model.weight.data_ptr()


def test_setting_state_reaches_every_method(loaded: Methods) -> None:
    loaded.prefill(*call(3))
    loaded.state["weight"] = torch.tensor([1.0, 1.0])
    assert torch.equal(loaded.decode(*call(1, 3)), loaded.state["rows"].sum(0))
    loaded.decode.state["rows"] = torch.zeros(4, 2)
    assert torch.equal(loaded.total(), torch.ones(2))


def test_state_is_brought_back_for_all(loaded: Methods) -> None:
    loaded.prefill(*call(3))
    snapshot = loaded.snapshot()
    before = loaded.total()
    loaded.decode(*call(1, 3))
    loaded.restore(snapshot)
    assert torch.equal(loaded.total(), before)
    loaded.total.restore(snapshot)
    loaded.restore(loaded.total.snapshot())
    assert torch.equal(loaded.total(), before)
    loaded.decode.reset()
    assert torch.equal(loaded.total(), torch.ones(2))
    loaded.prefill(*call(3))
    loaded.reset()
    assert loaded.state["calls"] == 0


def test_sessions_answer_as_if_they_were_alone(loaded: Methods) -> None:
    other = loaded.session()
    loaded.prefill(*call(3))
    assert torch.equal(other.total(), torch.ones(2))
    other.decode(*call(1, 3))
    assert other.state["calls"] == 1
    assert torch.equal(loaded.decode(*call(1, 3)), other.session().state["weight"] * loaded.state["rows"].sum(0))
    other.state["weight"] = torch.zeros(2)
    assert not other.decode(*call(1, 3)).any()
    assert loaded.decode(*call(1, 3)).all()


def test_a_session_of_one_method_is_its_own(loaded: Methods) -> None:
    alone = loaded.decode.session()
    alone(*call(1, 3))
    alone.state["weight"] = torch.zeros(2)
    assert not alone(*call(1, 3)).any()
    assert torch.equal(loaded.total(), torch.ones(2))
    assert torch.equal(loaded.shifted.session()(), torch.full((2,), 5.0))


def test_one_call_of_all_methods_runs_at_a_time(loaded: Methods) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            loaded.total()
        except StateError as error:
            raised.append(error)

    with loaded.decode._turn():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert "a call while another thread's call is running" in str(raised[0])
    loaded.total()


def test_methods_are_attributes(loaded: Methods) -> None:
    assert loaded.methods == tuple(loaded) == ("prefill", "decode", "total", "shifted")
    assert {"prefill", "state"} <= set(dir(loaded))
    assert repr(loaded).startswith("prefill: Program of 0 engines")
    assert isinstance(loaded.prefill, Program)
    assert loaded.prefill.methods == ("forward",)


def test_a_method_that_is_not_there_is_named(loaded: Methods) -> None:
    with pytest.raises(UnknownMethod, match=r"prefill, decode, .*: found no method 'decod', .* Did you mean 'decode'"):
        loaded.decod(*call(1))
    assert not hasattr(loaded, "exported_program")
    with pytest.raises(StateError, match="found an attempt to copy"):
        copy.copy(loaded)


def test_a_call_without_a_method_is_an_error(loaded: Methods) -> None:
    with pytest.raises(ConventionError, match=r"found a call without a method, .* Call program\.prefill\(\.\.\.\)"):
        loaded(*call(1))


def test_a_name_that_cannot_be_an_attribute_is_an_error() -> None:
    program = programs(Cache())["decode"]
    with pytest.raises(ConventionError, match="method 'state': found a name that is taken"):
        check_methods({"fine": program, "state": program})


@pytest.mark.parametrize("make", [check_methods, Methods])
def test_no_method_is_an_error(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ConventionError, match="methods: found none, expected at least one"):
        make({})


# State of one name.


def with_rows(rows: torch.Tensor) -> ExportedProgram:
    model = Cache()
    model.rows = rows
    return export(model, call(1))


DIFFERENT = {
    "shape": (torch.zeros(5, 2), r"found f32\[4, 2\] on cpu and f32\[5, 2\] on cpu"),
    "dtype": (torch.zeros(4, 2, dtype=torch.float64), r"found f32\[4, 2\] on cpu and f64\[4, 2\] on cpu"),
    "value": (torch.ones(4, 2), "found two initial values"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_state_of_one_name_that_differs_is_an_error(case: str) -> None:
    rows, message = DIFFERENT[case]
    given = {"prefill": with_rows(torch.zeros(4, 2)), "total": export(Reader(Cache()), ())}
    other = Cache()
    other.rows = rows
    given["other"] = export(Reader(other), ())
    with pytest.raises(StateError, match=rf"state 'rows' of the methods 'prefill' and 'other': {message}") as raised:
        check_methods(given)
    assert "rename the state of one, or save them to two files" in raised.value.fix


def test_copies_of_a_model_share_state_too() -> None:
    model = Cache()
    model.rows[0, 0] = torch.nan
    twin = copy.deepcopy(model)
    loaded = methods({"prefill": export(model, call(3)), "total": export(Reader(twin), ())})
    loaded.prefill(*call(3))
    assert torch.equal(loaded.total(), loaded.state["rows"].sum(0) + 1)


class Views(torch.nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[1:3] if tied else torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.add_(x)
        return self.whole.sum()


def test_copies_that_are_tied_otherwise_are_an_error() -> None:
    given = {str(tied): export(Views(tied), (torch.ones(2),)) for tied in (True, False)}
    with pytest.raises(StateError, match=r"found a tie to 'part' in one of them alone"):
        check_methods({"a": given["True"], "b": given["False"]})
    methods({"a": given["True"], "b": export(Views(tied=True), (torch.ones(2),))})


def test_written_state_of_one_name_that_is_two_tensors_is_an_error() -> None:
    model = Cache()
    given = {"prefill": export(model, call(3)), "total": export(Reader(copy.deepcopy(model)), ())}
    message = "state 'rows' of the methods 'prefill' and 'total': found two tensors, each with memory of its own"
    with pytest.raises(StateError, match=message) as raised:
        check_methods(given)
    assert "they seem to be of unrelated models" in raised.value.consequence
    check_methods({"total": given["total"], "again": export(Reader(Cache()), ())})
    with pytest.raises(StateError, match="two initial values") as raised:
        check_methods({**given, "total": with_rows(torch.ones(4, 2))})
    assert "they seem to be of unrelated models" in raised.value.consequence
    shared = Cache()
    shared.weight = model.weight
    with pytest.raises(StateError, match="found two tensors") as raised:
        check_methods({"prefill": given["prefill"], "decode": export(shared, call(1))})
    assert raised.value.consequence == "In one file they would be one."


def test_ties_across_methods_hold() -> None:
    model = Views(tied=True)
    reader = Cache()
    reader.rows = model.whole
    loaded = methods({"write": export(model, (torch.ones(2),)), "total": export(Reader(reader), ())})
    assert loaded.write(torch.ones(2)) == 2
    assert loaded.total().tolist() == [3, 3]


class Whole(torch.nn.Module):
    def __init__(self, views: Views) -> None:
        super().__init__()
        self.register_buffer("whole", views.whole)

    def forward(self) -> torch.Tensor:
        return self.whole * 1


def test_a_method_need_not_know_all_ties_of_one_memory() -> None:
    model = Views(tied=True)
    loaded = methods({"read": export(Whole(model), ()), "write": export(model, (torch.ones(2),))})
    loaded.write(torch.ones(2))
    assert loaded.read().tolist() == [0, 1, 1, 0]


class Read(TorchDispatchMode):
    """The operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_is_shared_already_is_not_read_to_compare_it() -> None:
    given = programs(Cache())
    with Read() as read:
        check_methods(given)
    assert not any("eq" in operator for operator in read.operators)


class Plain(torch.nn.Module):
    """Writes a tensor that is no buffer: a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 1


def test_a_constant_that_is_written_is_state() -> None:
    loaded = methods({name: export(Plain(), (torch.ones(size),)) for name, size in {"a": 2, "b": 1}.items()})
    loaded.a(torch.ones(2))
    assert loaded.b(torch.ones(1)).tolist() == [2, 2]


def engine(payload: bytes) -> torch.Tensor:
    built = BuiltEngine(payload, None, "1.0", "anything", {})
    data = pack_engine(built, name="standin_0", backend="standin", signature="(f32[2]) -> (f32[2])")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Hybrid(torch.nn.Module):
    def __init__(self, payload: bytes, as_buffer: bool) -> None:
        super().__init__()
        if as_buffer:
            self.register_buffer("standin_0", engine(payload))
        else:
            self.standin_0 = engine(payload)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.intarsia.run_engine.default([x], self.standin_0, "(f32[2]) -> (f32[2])")[0]


@pytest.mark.parametrize("as_buffer", [False, True])
def test_engines_of_one_name_stay_each_method_s_own(as_buffer: bool) -> None:
    given = {name: export(Hybrid(name.encode(), as_buffer), (torch.ones(2),)) for name in ("first", "second")}
    loaded = methods(given)
    assert len(loaded.state) == 0
    for name, program in given.items():
        (passed,) = getattr(loaded, name).state.face(program).leading
        assert name.encode() in passed.numpy().tobytes()
