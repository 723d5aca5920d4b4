"""Programs of files without a graph against their models, with programs in the place of other runtimes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram

import intarsia
from intarsia.core.compiled.model import CompiledModel
from intarsia.errors import ArgumentError, ConventionError, PositionError, StateError
from intarsia.formats.boundary import boundary_of
from intarsia.formats.description import describe
from intarsia.formats.manifest import Manifest
from intarsia.runtime.compiled import CompiledFile, CompiledMethods, CompiledProgram
from intarsia.runtime.executorch import ExecutorchProgram, LoadedFile
from intarsia.runtime.graphless import GraphlessMethods, GraphlessProgram
from intarsia.runtime.methods import Methods
from intarsia.runtime.program import Program
from intarsia.verification import UndrawableInput, leaf_dtypes
from intarsia.verification.answers import NO_GRAPH

Change = Callable[[Any], Any]


class Model(torch.nn.Module):
    """Counts, fills a cache, and writes an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, *, log: torch.Tensor, at: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        y = self.layer(x).relu()
        self.cache.index_copy_(0, at, y)
        log.add_(y.sum())
        return {"y": y + self.calls, "half": y.to(torch.bfloat16).float()}


def example(rows: int = 3) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(rows, 4),), {"at": torch.randperm(8)[:rows], "log": torch.zeros(2)}


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def exported(model: Model) -> ExportedProgram:
    rows = {0: Dim("rows", min=1, max=8)}
    args, kwargs = example()
    return torch.export.export(copy.deepcopy(model), args, kwargs, dynamic_shapes={"x": rows, "log": None, "at": rows})


def manifest_of(program: ExportedProgram) -> Manifest:
    return describe(program, (), {"precision": {"output['half']": "bf16"}})


class Answers(GraphlessProgram):
    """A graph behind a boundary, whose calls and answers can be changed."""

    kind = "a test"

    shared: tuple[str, ...] = ()

    def __init__(self, exported: ExportedProgram, *, program: Any = None, change: Change | None = None) -> None:
        super().__init__("forward", boundary_of(exported), manifest_of(exported))
        self._exported = exported
        self._change = change or (lambda found: found)
        self.program = program or Program(exported)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._boundary.take(args, kwargs)
        return self._change(self.program(*args, **kwargs))

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        own = [name for name, kind in self.writes.items() if kind != "input"]
        return {name: self.program.state[name] for name in (*own, *self.shared)}

    def reset(self) -> None:
        self.program.reset()

    def session(self) -> Answers:
        return type(self)(self._exported, program=self.program.session(), change=self._change)


def test_answers_and_state_are_compared_with_the_model(exported: ExportedProgram, model: Model) -> None:
    subject = Answers(exported)
    result = intarsia.verify(subject, model, example=example(8))
    assert result.ok, str(result)
    assert result.calls == 12
    assert result.sizes[-1] == "x.shape[0] = 8"
    names = {"output['y']", "output['half']", "input 'log'", "state 'calls'", "state 'cache'"}
    assert {leaf.name for leaf in result.leaves} == names
    assert result.check("calls").ok
    others = [check for check in result.parity if check.name != "calls"]
    assert {(check.ok, check.detail) for check in others} == {(None, NO_GRAPH)}
    assert {check.name for check in others} == {
        "outputs", "state", "inputs", "graph", "signature", "structure", "ranges",
    }  # fmt: skip
    assert subject.state["calls"] == model.calls == 0, "neither is changed"


@pytest.mark.parametrize(
    ("leaf", "wrong"),
    [
        ("output['y']", lambda program, kwargs, found: found | {"y": found["y"] * 1.001}),
        ("input 'log'", lambda program, kwargs, found: (kwargs["log"].zero_(), found)[1]),
        ("state 'cache'", lambda program, kwargs, found: (program.state["cache"].add_(1), found)[1]),
        ("output['z']", lambda program, kwargs, found: found | {"z": found["y"]}),
    ],
)
def test_a_wrong_answer_is_named(leaf: str, wrong: Callable[..., Any], exported: ExportedProgram, model: Model) -> None:
    class Wrong(Answers):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return wrong(self.program, kwargs, super().__call__(*args, **kwargs))

    result = intarsia.verify(Wrong(exported), model, example=example(8))
    assert not result.ok
    assert leaf in {found.name for found in result.leaves if not found.ok}


def test_an_f32_output_of_bf16_layers_is_as_exact_as_bf16(exported: ExportedProgram, model: Model) -> None:
    assert leaf_dtypes({"forward": exported})["forward"]["output['half']"] is torch.bfloat16
    near = Answers(exported, change=lambda found: found | {"half": found["half"] * 1.01})
    assert intarsia.verify(near, model, example=example(8)).ok
    far = Answers(exported, change=lambda found: found | {"y": found["y"] * 1.01})
    assert not intarsia.verify(far, model, example=example(8)).ok


def test_a_file_says_how_exact_its_answers_are(exported: ExportedProgram) -> None:
    declared = exported.run_decompositions({})
    told = leaf_dtypes({"one": declared, "two": declared})
    assert told["one"] == told["two"] == leaf_dtypes({"forward": declared})["forward"]
    assert told["one"]["state 'cache'"] is torch.float32


def test_there_has_to_be_something_to_compare_with(exported: ExportedProgram, model: Model) -> None:
    subject = Answers(exported)
    for given in (None, [example()]):
        with pytest.raises(ConventionError, match=r"found no model to compare.*--against TARGET.*test_vectors"):
            intarsia.verify(subject, inputs=given)
    result = intarsia.verify(subject, model, [example(), example(5)])  # keywords in another order than the model's
    assert (result.ok, result.calls) == (True, 6)
    assert "input 'log'" in {leaf.name for leaf in result.leaves}


def test_integers_are_those_of_the_example_and_differ_as_they_do(exported: ExportedProgram, model: Model) -> None:
    with pytest.raises(UndrawableInput, match="input 'at': found integers whose use a file without a graph does not"):
        intarsia.verify(Answers(exported), model)
    seen = []

    class Seeing(Answers):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["at"].tolist())
            return super().__call__(*args, **kwargs)

    result = intarsia.verify(Seeing(exported), model, example=example(8))
    assert result.findings == ("the integers of input 'at' were drawn from 0 to 7, as in the example",)
    assert {len(at) for at in seen} == {1, 2, 4, 8}
    assert all(len(set(at)) == len(at) for at in seen)


def test_a_call_that_raises_is_a_fault(exported: ExportedProgram, model: Model) -> None:
    def fail(found: Any) -> Any:
        message = "no room"
        raise RuntimeError(message)

    result = intarsia.verify(Answers(exported, change=fail), model, example=example())
    assert not result.ok
    assert result.check("calls").detail == "call 1 (x.shape[0] = 1): the program raises RuntimeError: no room"


def test_inputs_that_do_not_fit_are_errors(exported: ExportedProgram, model: Model) -> None:
    (x,), kwargs = example()
    with pytest.raises(ArgumentError, match="input 'x'"):
        intarsia.verify(Answers(exported), model, [((x[:, :3],), kwargs)])
    with pytest.raises(ConventionError, match="found a model that raises TypeError"):
        intarsia.verify(Answers(exported), torch.nn.ReLU(), [example()])


class Filling(torch.nn.Module):
    """Has room for two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("used", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, self.used, x)
        self.used.add_(1)
        return self.rows.sum(0)


def test_a_full_cache_ends_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Filling()
    exported = torch.export.export(copy.deepcopy(model), (torch.ones(1, 4),))
    result = intarsia.verify(Answers(exported), model)
    assert result.ok, str(result)
    assert result.calls == 2
    assert any("not compared after call 2: program and model both raise (PositionError" in it for it in result.findings)

    class Short(Answers):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.state["used"] == 1:
                raise PositionError("state", found="no room", expected="some", fix="Reset it.")
            return super().__call__(*args, **kwargs)

    assert not intarsia.verify(Short(exported), model).ok, "the model has room"


def test_state_that_differs_before_the_first_call_is_told(exported: ExportedProgram, model: Model) -> None:
    model.calls.add_(1)
    result = intarsia.verify(Answers(exported), model, example=example(8))
    assert not result.ok
    assert any(
        "before the first call, state 'calls' of the model was not the program's" in it for it in result.findings
    )


def test_state_that_cannot_be_read_shows_in_later_answers() -> None:
    """As of a `.pte`; a function stands in for ExecuTorch."""
    model = Filling()
    exported = torch.export.export(copy.deepcopy(model), (torch.ones(1, 4),))

    def load(factor: float) -> Any:
        program = Program(exported)
        return {"forward": lambda inputs: [program(*inputs) * factor ** int(program.state["used"] > 1)]}

    for factor, is_right in ((1.0, True), (2.0, False)):
        file = LoadedFile(lambda factor=factor: load(factor))
        subject = ExecutorchProgram("forward", boundary_of(exported), file, manifest_of(exported))
        result = intarsia.verify(subject, model)
        assert result.ok is is_right
        assert "state 'rows', 'used' cannot be read: it is compared by what later calls answer" in result.findings
        assert [leaf.name for leaf in result.leaves] == ["output"]
    with pytest.raises(StateError):
        _ = subject.state


def test_state_of_a_name_that_the_model_has_not_is_told(model: Model, exported: ExportedProgram) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(model)

        def forward(self, x: Any, *, log: Any, at: Any) -> Any:
            return self.inner(x, log=log, at=at)

    result = intarsia.verify(Answers(exported), Wrapped(), example=example(8))
    assert result.ok
    assert "state 'cache', 'calls' is not compared: the model has none of the name" in result.findings


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def put(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.seen + 0

    def peek(self) -> torch.Tensor:
        return self.seen * 2


class Method(Answers):
    shared = ("seen",)


class Several(GraphlessMethods[Any]):
    """Methods on one state, and a method that may answer wrongly."""

    def __init__(self, programs: Mapping[str, ExportedProgram], wrong: Change) -> None:
        self.given = programs, wrong
        methods = Methods({name: Program(program) for name, program in programs.items()})
        changes = {"peek": wrong}
        super().__init__(
            {
                name: Method(program, program=getattr(methods, name), change=changes.get(name))
                for name, program in programs.items()
            }
        )

    def session(self) -> Several:
        return Several(*self.given)


def test_methods_are_compared_alone_and_in_turn() -> None:
    pair = Pair()
    made = copy.deepcopy(pair)
    calls = {"put": (torch.ones(4),), "peek": ()}
    programs = intarsia.export(intarsia.compile({name: getattr(made, name) for name in calls}, calls))
    result = intarsia.verify(Several(programs, lambda found: found), pair)
    assert result.ok, str(result)
    assert [leaf.name for leaf in result.in_turn.leaves] == ["put: output", "state 'seen'", "peek: output"]
    assert result.in_turn.calls == 6
    assert result.methods["put"].calls == 3
    wrong = intarsia.verify(Several(programs, lambda found: found * 0), pair)
    assert wrong.methods["peek"].ok, "alone it sees zeros"
    assert not wrong.in_turn.ok
    assert not wrong.ok
    with pytest.raises(ConventionError, match="found no model to compare"):
        intarsia.verify(Several(programs, lambda found: found))


def test_compiled_code_gets_what_its_methods_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an AOTInductor package says, with a function in the place of its code."""
    model = Pair()
    exported = torch.export.export(PutOnly(copy.deepcopy(model)), (torch.ones(4),))
    program = Program(exported)

    def run(inputs: Any) -> list[Any]:
        with torch.no_grad():
            return [program(*inputs)]

    code: Any = SimpleNamespace(
        device=torch.device("cpu"),
        run=run,
        state=lambda: {"model.seen": program.state["model.seen"]},
        place=lambda tensors: None,
    )
    models: Mapping[str, CompiledModel] = {"forward": code}
    file = CompiledFile(lambda: models, {"model.seen"})
    one = CompiledProgram("forward", boundary_of(exported), file, describe(exported, (), {}))
    assert one.writes == {"model.seen": "buffer"}
    assert repr(one).splitlines()[-1] == "  writes  model.seen"
    assert CompiledMethods({"forward": one}, file).test_vectors is None


class PutOnly(torch.nn.Module):
    def __init__(self, model: Pair) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.put(x)
