"""A called program against the eager model: outputs, structures, state and aliases, in both dialects."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

from intarsia.core.ledger import Ledger
from intarsia.errors import ConventionError, StateError
from intarsia.runtime.program import Program

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Boxes:
    corners: torch.Tensor
    scores: torch.Tensor


torch.export.register_dataclass(Boxes, serialized_type_name="intarsia.tests.Boxes")
pytree._register_namedtuple(Pair, serialized_type_name="intarsia.tests.Pair")


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Nested(torch.nn.Module):
    def forward(self, tokens: Any, *, extra: Any, flag: bool, scale: torch.Tensor) -> Any:
        result = tokens["ids"][0] * scale + extra["a"]
        return {"sum": result, "list": [result, (tokens["mask"], 3)], "none": None, "flag": flag, "same": scale}


class Containers(torch.nn.Module):
    def forward(self, pair: Any, boxes: Any, ordered: Any) -> Any:
        total = pair.first + pair.second
        return Boxes(total, boxes.scores), Pair(ordered["a"], total), OrderedDict(z=total, y=boxes.corners)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.weight = torch.nn.Parameter(torch.randn(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.count.add_(1)
        self.hidden.mul_(2)
        return x * self.weight + self.count, self.hidden.sum()


class Returned(Counter):
    def forward(self, x: torch.Tensor) -> Any:
        self.count.add_(x)
        return self.count, x, self.count * 1, self.weight


class Ties(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(6.0)
        self.register_buffer("base", base)
        self.register_buffer("tail", base[3:])
        self.register_buffer("again", base)

    def forward(self, x: torch.Tensor) -> Any:
        self.base.add_(x)
        return self.tail * 2, self.again.sum()


class Swap(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("newest", torch.zeros(2))
        self.register_buffer("older", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.older.copy_(self.newest)
        self.newest.copy_(x)
        return self.older + self.newest


class WritesInput(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(y)
        return x, x.sum()


class WritesView(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 2))

    def forward(self, x: torch.Tensor) -> Any:
        self.cache.view(2, 4)[1].copy_(x)
        return self.cache.sum(0)


class Constants(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)

    def forward(self, x: torch.Tensor, n: int, unused: torch.Tensor, text: str, nothing: None) -> Any:
        result = x + self.table * n
        return result, result, n, nothing, []


class NoInputs(torch.nn.Module):
    def forward(self) -> Any:
        return torch.ones(2)


class NoOutputs(Counter):
    def forward(self, x: torch.Tensor) -> None:
        self.count.add_(x)


def ones() -> torch.Tensor:
    return torch.ones(2)


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], tuple[Any, ...]], Callable[[], dict[str, Any]]]] = {
    "linear": (Linear, lambda: (torch.randn(3, 4),), dict),
    "nested": (
        Nested,
        lambda: ({"mask": torch.ones(2, dtype=torch.bool), "ids": [torch.randn(2)]},),
        lambda: {"extra": {"a": ones()}, "flag": True, "scale": torch.randn(2)},
    ),
    "containers": (
        Containers,
        lambda: (Pair(ones(), ones()), Boxes(ones(), torch.zeros(2)), OrderedDict(a=torch.randn(2))),
        dict,
    ),
    "counter": (Counter, lambda: (torch.randn(2),), dict),
    "returned": (Returned, lambda: (torch.randn(2),), dict),
    "swap": (Swap, lambda: (torch.randn(2),), dict),
    "writes input": (WritesInput, lambda: (torch.randn(2), torch.randn(2)), dict),
    "writes view": (WritesView, lambda: (torch.randn(4),), dict),
    "constants": (Constants, lambda: (torch.randn(4), 3, ones(), "mean", None), dict),
    "no inputs": (NoInputs, tuple, dict),
    "no outputs": (NoOutputs, lambda: (torch.randn(2),), dict),
}


def reload(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    stripped = copy.copy(program)
    stripped.example_inputs = None
    torch.export.save(stripped, file)
    file.seek(0)
    return torch.export.load(file)


def in_dialect(program: ExportedProgram, dialect: str) -> ExportedProgram:
    return program.run_decompositions({}) if dialect == "ATEN" else program


def assert_same(found: Any, expected: Any) -> None:
    """Equal to the bit, with containers of the very same types."""
    assert type(found) is type(expected) or isinstance(expected, torch.Tensor)
    found_leaves, found_spec = pytree.tree_flatten(found)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert found_spec == expected_spec
    for one, other in zip(found_leaves, expected_leaves, strict=True):
        if isinstance(other, torch.Tensor):
            assert torch.equal(one, other)
            assert one.dtype is other.dtype
        else:
            assert one == other


def snapshot(program: ExportedProgram) -> dict[str, Any]:
    entries = {**program.state_dict, **program.constants}
    return {name: (value, value.detach().clone()) for name, value in entries.items()}


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
@pytest.mark.parametrize("from_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_eager_model_call_after_call(case: str, dialect: str, from_file: bool) -> None:
    make_model, make_args, make_kwargs = CASES[case]
    model = make_model()
    exported = in_dialect(export(copy.deepcopy(model), make_args(), make_kwargs()), dialect)
    if from_file:
        exported = reload(exported)
    before = snapshot(exported)
    program = Program(exported)
    with torch.no_grad():
        for _ in range(3):
            args, kwargs = make_args(), make_kwargs()
            eager_args, eager_kwargs = copy.deepcopy((args, kwargs))
            expected = model(*eager_args, **eager_kwargs)
            assert_same(program(*args, **kwargs), expected)
            assert_same((args, kwargs), (eager_args, eager_kwargs))
    for name, value in model.named_buffers():
        assert torch.equal(program.state[name], value)
    for value, original in before.values():
        assert torch.equal(value, original)


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
def test_returns_the_live_buffer_as_the_model_does(dialect: str) -> None:
    program = Program(in_dialect(export(Returned(), (ones(),)), dialect))
    x = ones()
    count, returned_x, _, weight = program(x)
    program(x)
    assert count is program.state["count"]
    assert count.tolist() == [2.0, 2.0]
    assert returned_x is x
    assert weight is program.state["weight"]


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
def test_a_written_input_that_is_returned_is_the_callers_tensor(dialect: str) -> None:
    program = Program(in_dialect(export(WritesInput(), (ones(), ones())), dialect))
    x = ones()
    returned, _ = program(x, ones())
    assert returned is x
    assert x.tolist() == [2.0, 2.0]


def test_shares_what_is_not_written_and_copies_what_is() -> None:
    exported = export(Counter(), (ones(),))
    program = Program(exported)
    assert program.state["weight"] is exported.state_dict["weight"]
    assert program.state["count"] is not exported.state_dict["count"]
    assert program.state["hidden"].data_ptr() != exported.constants["hidden"].data_ptr()


def test_two_programs_of_one_exported_program_do_not_disturb_each_other() -> None:
    exported = export(Counter(), (ones(),))
    first, second = Program(exported), Program(exported)
    first(ones())
    assert second.state["count"].tolist() == [0.0, 0.0]


def test_state_entries_that_share_memory_still_share_it() -> None:
    model = Ties()
    exported = export(copy.deepcopy(model), (torch.ones(6),))
    program = Program(exported)
    for _ in range(3):
        assert_same(program(torch.ones(6)), model(torch.ones(6)))
    assert program.state["tail"].data_ptr() == program.state["base"][3:].data_ptr()
    assert program.state["again"].data_ptr() == program.state["base"].data_ptr()
    assert exported.state_dict["base"].tolist() == list(range(6))


def test_a_weight_upstream_of_an_in_place_operator_stays_shared() -> None:
    class Model(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu_()

    exported = export(Model(), (torch.ones(1, 4),))
    program = Program(exported)
    program(torch.ones(1, 4))
    assert program.state["linear.weight"] is exported.state_dict["linear.weight"]


def test_a_failed_call_of_a_functional_program_leaves_state_as_it_was() -> None:
    class Model(Counter):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x[i]

    exported = export(Model(), (ones(), torch.tensor([0]))).run_decompositions({})
    program = Program(exported)
    with pytest.raises(IndexError):
        program(ones(), torch.tensor([7]))
    assert program.state["count"].tolist() == [0.0, 0.0]


def test_outputs_carry_no_grad_and_the_callers_grad_mode_is_kept() -> None:
    program = Program(export(Linear(), (torch.ones(1, 4),)))
    x = torch.ones(1, 4, requires_grad=True)
    assert not program(x).requires_grad
    assert torch.is_grad_enabled()


def test_a_program_made_in_inference_mode_can_write_its_state_outside() -> None:
    exported = export(Counter(), (ones(),))
    with torch.inference_mode():
        program = Program(exported)
    program(ones())
    assert program.state["count"].tolist() == [1.0, 1.0]


def test_inputs_and_state_may_be_mixed_in_graph_order() -> None:
    exported = export(Linear(), (torch.ones(1, 4),))
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    nodes[0].prepend(nodes[2])
    specs = exported.graph_signature.input_specs
    specs.insert(0, specs.pop(2))
    exported.graph_module.recompile()
    x = torch.randn(2, 4)[:1]
    expected = torch.nn.functional.linear(x, exported.state_dict["linear.weight"], exported.state_dict["linear.bias"])
    assert torch.equal(Program(exported)(x), expected)


def test_containers_that_fx_made_immutable_come_back_plain() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return [x + 1, {"a": x}]

    traced = torch.fx.symbolic_trace(Model())
    exported = export(traced, (ones(),))
    result = Program(exported)(ones())
    assert type(result) is list
    assert type(result[1]) is dict


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
def test_sizes_are_dynamic(dialect: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.cat([x, y]), x.shape[0]

    batch = Dim("batch", min=1, max=8)
    exported = export(Model(), (torch.ones(3, 2), torch.ones(6, 2)), dynamic_shapes=({0: batch}, {0: 2 * batch}))
    program = Program(in_dialect(exported, dialect))
    for size in (1, 2, 8):
        x, y = torch.randn(size, 2), torch.randn(2 * size, 2)
        assert_same(program(x, y), (torch.cat([x, y]), size))


def test_a_text_can_be_an_output() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, mode: str) -> Any:
            return x, mode

    program = Program(export(Model(), (ones(), "mean")))
    assert_same(program(ones(), mode="mean"), (ones(), "mean"))


def test_the_repr_shows_inputs_outputs_and_ranges() -> None:
    exported = export(Linear(), (torch.ones(2, 4),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    name = next(iter(exported.range_constraints)).name
    assert repr(Program(exported)).splitlines() == [
        "Program of 0 engines and 2 state entries",
        f"  input   x: f32[{name}, 4]",
        f"  output  output: f32[{name}, 4]",
        f"  size    {name}: 1 to 8",
    ]


def test_the_repr_leaves_out_numbers_that_the_graph_reads() -> None:
    class Chooses(torch.nn.Module):
        def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return x[row]

    program = Program(export(Chooses(), (torch.ones(2, 4), torch.tensor(1))))
    assert "size" not in repr(program)
    assert_same(program(torch.eye(4)[:2], torch.tensor(0)), torch.eye(4)[0])


def test_the_repr_counts_an_engine_apart_from_state() -> None:
    class Engine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.engine = torch.zeros(8, dtype=torch.uint8)
            self.register_buffer("offset", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (
                torch.ops.intarsia.run_engine.default([x], self.engine, "(f32[2, 4]) -> (f32[2, 4])")[0] + self.offset
            )

    program = Program(export(Engine(), (torch.ones(2, 4),)))
    assert repr(program).splitlines()[0] == "Program of 1 engine and 1 state entry"


def test_a_missing_state_entry_is_an_error() -> None:
    exported = export(Linear(), (torch.ones(1, 4),))
    del exported.state_dict["linear.bias"]
    with pytest.raises(StateError, match=r"state 'linear\.bias': found no value"):
        Program(exported)


def test_a_program_without_a_calling_convention_is_an_error() -> None:
    exported = export(Linear(), (torch.ones(1, 4),))
    exported.module_call_graph[0].signature.in_spec = pytree.tree_flatten(0)[1]
    with pytest.raises(ConventionError, match="expected a pair of positional arguments and keywords"):
        Program(exported)


def test_the_ledger_is_that_of_the_manifest() -> None:
    @dataclass
    class Manifest:
        ledger: Ledger | None

    exported = export(Linear(), (torch.ones(1, 4),))
    ledger = Ledger(())
    assert Program(exported, Manifest(ledger)).ledger is ledger
    assert Program(exported, Manifest(None)).ledger is None
    assert Program(exported).ledger is None


@pytest.mark.parametrize("dialect", ["TRAINING", "ATEN"])
def test_effects_and_regions_without_grad_run(dialect: str) -> None:
    class Model(Counter):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.aten._print("")
            with torch.no_grad():
                self.count.add_(1)
                result = x * 2
            return result.add_(self.count)

    model = Model()
    exported = in_dialect(export(copy.deepcopy(model), (ones(),)), dialect)
    program = Program(exported)
    for _ in range(2):
        assert_same(program(ones()), model(ones()))
    assert exported.state_dict["count"].tolist() == [0.0, 0.0]
