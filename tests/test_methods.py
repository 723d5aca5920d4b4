"""Several entry points of one model: compiled, exported, saved and loaded together, compared with the eager model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import intarsia
from intarsia.errors import CaptureError, ConventionError, EngineBuildFailed, IntarsiaError, PartitionError, StateError


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Memory(nn.Module):
    """Adds up the rows that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4), persistent=False)

    def add(self, x: Tensor) -> Tensor:
        self.total.add_(x.sum(0))
        return self.total * 1


class Base(nn.Module):
    def read(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return, operator]


class Decoder(Base):
    """All kinds of methods on shared weights and state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.memory = Memory()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return torch.relu(self.layer(x)) + self.memory.total + self.calls

    def prefill(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        return {"out": self(x) * scale, "total": self.memory.add(x)}

    def decode(self, x: Tensor) -> Tensor:
        self.memory.add(x)
        return self.forward(x)

    def read(self, x: Tensor) -> Tensor:
        return super().read(x) + self.memory.total

    @torch.no_grad()
    def guarded(self, x: Tensor) -> Tensor:
        return self.decode(x)

    @logged
    def wrapped(self, x: Tensor) -> Tensor:
        return self.decode(x)

    def rebind(self, x: Tensor) -> Tensor:
        self.calls = self.calls + x.sum()
        return self.calls * 2

    @classmethod
    def build(cls, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def plain(x: Tensor) -> Tensor:
        return x


BATCH = {0: Dim("batch", min=1, max=8)}


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def compile_decoder(model: Decoder, **settings: Any) -> dict[str, torch.fx.GraphModule]:
    return intarsia.compile(
        {"prefill": model.prefill, "decode": model.decode, "read": model.read},
        {name: (rows(3),) for name in ("prefill", "decode", "read")},
        {"prefill": {"scale": torch.ones(4)}},
        dynamic_shapes={"prefill": {"x": BATCH, "scale": None}, "read": {"x": BATCH}, "decode": {"x": BATCH}},
        **settings,
    )


def assert_answers_like(model: Decoder, found: Any, prefill: Any = None) -> None:
    """Several calls, across the methods."""
    with torch.no_grad():
        for count, seed in ((3, 1), (1, 2), (8, 3)):
            x, scale = rows(count, seed), rows(1, seed)[0]
            expected = model.prefill(x, scale=scale)
            answer = found("prefill")(x, scale=scale)
            assert list(answer) == list(expected)
            for name, value in expected.items():
                torch.testing.assert_close(answer[name], value)
            torch.testing.assert_close(found("read")(x), model.read(x))
            torch.testing.assert_close(found("decode")(x), model.decode(x))
            torch.testing.assert_close(found("read")(x), model.read(x))


def test_methods_that_are_compiled_answer_like_the_model() -> None:
    model = Decoder()
    eager = copy.deepcopy(model)
    hybrids = compile_decoder(model)
    assert_answers_like(eager, hybrids.__getitem__)
    assert torch.equal(model.memory.total, eager.memory.total)


@pytest.mark.parametrize("retrace", [False, True])
def test_methods_that_are_exported_and_saved_answer_like_the_model(retrace: bool, tmp_path: Path) -> None:
    model = Decoder()
    hybrids = compile_decoder(model)
    given: dict[str, Any] = {}
    if retrace:
        given = {"args": dict.fromkeys(hybrids, (rows(3),)), "kwargs": {"prefill": {"scale": torch.ones(4)}}}
    programs = intarsia.export(hybrids, **given, retrace=retrace)
    intarsia.save(programs, tmp_path / "decoder.pt2")
    loaded = intarsia.load(tmp_path / "decoder.pt2")
    assert loaded.methods == ("prefill", "decode", "read")
    assert_answers_like(model, functools.partial(getattr, loaded))
    assert torch.equal(loaded.state["memory.total"], model.memory.total)
    assert list(loaded.state) == ["calls", "memory.total"]


def test_state_of_a_captured_method_is_the_model_s_own() -> None:
    model = Decoder()
    program = intarsia.export(compile_decoder(model)["decode"])
    held = {**program.state_dict, **program.constants}
    assert held["memory.total"] is model.memory.total
    assert held["calls"] is model.calls
    assert "total" not in program.state_dict  # as in the model, it is not persistent


def test_state_that_another_method_writes_stays_out_of_engines() -> None:
    (node,) = compile_decoder(Decoder())["read"].graph.find_nodes(op="get_attr", target="memory.total")
    assert node.users


def test_an_engine_that_holds_what_another_method_writes_is_an_error(tmp_path: Path) -> None:
    model = Decoder()
    apart = {"decode": intarsia.compile(model.decode, X), "read": intarsia.compile(model.read, X)}
    message = r"engine 'openvino_0' of the method 'read': found state 'memory\.total' as a constant in it"
    with pytest.raises(StateError, match=message) as raised:
        intarsia.export(apart)
    assert "Compile the methods together" in raised.value.fix
    exported = {name: intarsia.export(hybrid) for name, hybrid in apart.items()}
    for given in (apart, exported):
        with pytest.raises(StateError, match=message):
            intarsia.save(given, tmp_path / "m.pt2")
    for name, hybrid in apart.items():
        intarsia.save(hybrid, tmp_path / f"{name}.pt2")
    loaded = {name: intarsia.load(tmp_path / f"{name}.pt2") for name in apart}
    with pytest.raises(StateError, match=message):
        intarsia.save(loaded, tmp_path / "m.pt2")
    assert not (tmp_path / "m.pt2").exists()
    reader = intarsia.compile(model.read, X, torch_executed_ops={"aten.add"})
    assert ("openvino_0", "layer.weight") in intarsia.coverage(reader).held
    intarsia.save({**apart, "read": reader}, tmp_path / "m.pt2")


@pytest.mark.parametrize("persistent", [False, True])
def test_an_engine_that_holds_it_by_another_name_is_an_error_too(*, persistent: bool) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.zeros(4), persistent=persistent)
            self.register_buffer("two", self.one, persistent=persistent)

        def write(self, x: Tensor) -> Tensor:
            return x + self.one.add_(1)

        def read(self, x: Tensor) -> Tensor:
            return x * self.two

    model = Tied()
    apart = {"write": intarsia.compile(model.write, X), "read": intarsia.compile(model.read, X)}
    with pytest.raises(StateError, match=r"engine 'openvino_0' of the method 'read': found state 'one' as a constant"):
        intarsia.export(apart)


@pytest.mark.parametrize("name", ["forward", "decode", "guarded", "wrapped", "rebind", "read"])
def test_one_bound_method_is_an_entry_point(name: str) -> None:
    model = Decoder()
    eager = copy.deepcopy(model)
    before = dict(vars(model))
    hybrid = intarsia.compile(getattr(model, name), (rows(2),), dynamic_shapes={"x": BATCH})
    program = intarsia.Program(intarsia.export(hybrid))
    with torch.no_grad():
        for count in (2, 5):
            torch.testing.assert_close(program(rows(count, count)), getattr(eager, name)(rows(count, count)))
    for written in program.state:
        torch.testing.assert_close(program.state[written], eager.get_buffer(written))
    assert vars(model) == before
    assert not model.calls.any()


def test_a_method_runs_no_hook_of_its_model() -> None:
    model = Decoder()
    model.register_forward_hook(lambda *_: torch.full((1, 4), 7.0))
    x = (rows(2),)
    torch.testing.assert_close(intarsia.compile(model.read, x)(*x), Decoder().read(*x).detach())
    assert torch.equal(intarsia.compile(model, x)(*x), torch.full((1, 4), 7.0))


def test_an_attribute_named_forward_does_not_hide_the_method() -> None:
    model = Decoder()
    model.forward = lambda first, second: first
    hybrid = intarsia.compile(model.read, (rows(2),))
    torch.testing.assert_close(hybrid(rows(2)), model.read(rows(2)).detach())


def test_methods_of_parts_have_the_names_of_the_model() -> None:
    model = Decoder()
    eager = copy.deepcopy(model)
    x = (rows(2),)
    hybrids = intarsia.compile(
        {"add": model.memory.add, "layer": model.layer, "decode": model.decode},
        dict.fromkeys(("add", "layer", "decode"), x),
    )
    methods = intarsia.Methods({name: intarsia.Program(one) for name, one in intarsia.export(hybrids).items()})
    assert list(methods.state) == ["memory.total", "calls"]
    with torch.no_grad():
        torch.testing.assert_close(methods.add(*x), eager.memory.add(*x))
        torch.testing.assert_close(methods.decode(*x), eager.decode(*x))
        torch.testing.assert_close(methods.layer(*x), eager.layer(*x))
        torch.testing.assert_close(methods.add(*x), eager.memory.add(*x))


class Prefill(nn.Module):
    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.decode(x)


class Reader(nn.Module):
    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.read(x)


def test_one_model_under_two_names_is_one_state(tmp_path: Path) -> None:
    model = Decoder()
    eager = copy.deepcopy(model)
    x = (rows(2),)
    hybrids = intarsia.compile({"prefill": Prefill(model), "read": Reader(model)}, {"prefill": x, "read": x})
    intarsia.save(hybrids, tmp_path / "decoder.pt2")
    loaded = intarsia.load(tmp_path / "decoder.pt2")
    assert set(loaded.state) == {"model.memory.total", "model.calls", "inner.memory.total"}
    for found in (hybrids, {name: getattr(loaded, name) for name in loaded.methods}):
        model = copy.deepcopy(eager)
        with torch.no_grad():
            torch.testing.assert_close(found["prefill"](*x), model.decode(*x))
            torch.testing.assert_close(found["read"](*x), model.read(*x))
    again = loaded.session()
    assert not again.state["inner.memory.total"].any()
    again.state["model.memory.total"] = torch.ones(4)
    assert torch.equal(again.state["inner.memory.total"], torch.ones(4))


def test_programs_that_were_exported_are_entry_points_too() -> None:
    model = Decoder()
    eager = copy.deepcopy(model)
    x = (rows(2),)
    given = {
        name: torch.export.export(one, x) for name, one in (("prefill", Prefill(model)), ("decode", Prefill(model)))
    }
    hybrids = intarsia.compile(given)
    with torch.no_grad():
        torch.testing.assert_close(hybrids["prefill"](*x), eager.decode(*x))
        torch.testing.assert_close(hybrids["decode"](*x), eager.decode(*x))


def test_progress_counts_the_engines_of_all_methods() -> None:
    told: list[tuple[int, int, str]] = []
    compile_decoder(Decoder(), progress=lambda *step: told.append(step))
    names = [name for _, _, name in told]
    assert [(done, total) for done, total, _ in told] == [(i, len(told) - 1) for i in range(len(told))]
    assert names[-1] == ""
    assert {name.partition(".")[0] for name in names[:-1]} == {"prefill", "decode", "read"}
    assert names[0] == "prefill.openvino_0"


def test_an_operator_of_one_method_may_be_named() -> None:
    hybrids = compile_decoder(Decoder(), torch_executed_ops={"aten.relu"})
    places = {
        name: {p.operator: p.place for p in intarsia.coverage(hybrid).placements} for name, hybrid in hybrids.items()
    }
    assert places["decode"]["aten.relu.default"] == "torch"
    assert "aten.relu.default" not in places["read"]
    with pytest.raises(PartitionError, match=r"found 'aten\.rleu', which no operator"):
        compile_decoder(Decoder(), torch_executed_ops={"aten.rleu"})


# What is refused.


def compile_two(model: Any, args: Any = None, **given: Any) -> Any:
    return intarsia.compile({"prefill": model.decode, "decode": model.read}, args, **given)


X = (rows(2),)
BAD_EXAMPLES = {
    "a tuple": ({"args": X}, r"args: found an object of type 'tuple', expected a mapping with the names"),
    "an unknown name": ({"args": {"decod": X}}, r"args: found the name 'decod', .* Did you mean 'decode'\?"),
    "an unknown keyword": ({"args": {"prefill": X, "decode": X}, "kwargs": {"x": {}}}, r"kwargs: found the name 'x'"),
    "shapes": ({"args": {"prefill": X, "decode": X}, "dynamic_shapes": [BATCH]}, r"dynamic_shapes: found .* 'list'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_EXAMPLES)
def test_examples_that_name_no_method_are_an_error(case: str) -> None:
    given, message = BAD_EXAMPLES[case]
    with pytest.raises(ConventionError, match=message):
        compile_two(Decoder(), **given)
    hybrids = compile_two(Decoder(), {"prefill": X, "decode": X})
    with pytest.raises(ConventionError, match=message):
        intarsia.export(hybrids, **given)


def test_examples_that_are_missing_are_an_error_that_names_the_method() -> None:
    with pytest.raises(CaptureError, match="model 'Decoder', method 'decode': found no example inputs"):
        compile_two(Decoder(), {"prefill": X})
    with pytest.raises(
        CaptureError, match=r"model 'Decoder', method 'decode', example inputs: found a call .* of read"
    ):
        compile_two(Decoder(), {"prefill": X, "decode": ()})
    hybrids = compile_two(Decoder(), {"prefill": X, "decode": X})
    with pytest.raises(ConventionError, match="method 'decode', export with retrace=True: found no example inputs"):
        intarsia.export(hybrids, {"prefill": X}, retrace=True)


@pytest.mark.parametrize(
    ("name", "found"), [("a-b", "no name in Python"), ("state", "taken"), ("methods", "taken"), ("session", "taken")]
)
def test_a_name_that_no_method_can_have_is_an_error(name: str, found: str, tmp_path: Path) -> None:
    model = Decoder()
    hybrid = intarsia.compile(model.read, X)
    for make in (
        lambda: intarsia.compile({name: model.read}, {name: X}),
        lambda: intarsia.export({name: hybrid}),
        lambda: intarsia.save({name: hybrid}, tmp_path / "m.pt2"),
    ):
        with pytest.raises(ConventionError, match=rf"method '{name}': found .*{found}"):
            make()


def test_no_method_is_an_error(tmp_path: Path) -> None:
    for make in (
        lambda: intarsia.compile({}),
        lambda: intarsia.export({}),
        lambda: intarsia.save({}, tmp_path / "m.pt2"),
    ):
        with pytest.raises(ConventionError, match="methods: found none, expected at least one"):
            make()


class Loop:
    """Generates with a model; is none itself."""

    def __init__(self) -> None:
        self.model = Decoder()

    def step(self, x: Tensor) -> Tensor:
        return self.model.decode(x)


NO_ENTRY_POINT = {
    "no module's": (Loop().step, r"'Loop', which is no module, .* Make Loop an nn\.Module that registers the model"),
    "class method": (Decoder.build, "a bound method of the class 'Decoder', which is no module"),
    "static method": (Decoder().plain, "found an object of type 'function', .* Wrap a plain function in an nn.Module"),
    "partial": (functools.partial(Decoder().read), "found an object of type 'partial'"),
    "text": ("decode", "found an object of type 'str'"),
}


@pytest.mark.parametrize("case", NO_ENTRY_POINT)
def test_what_is_no_entry_point_of_a_model_is_an_error(case: str) -> None:
    entry, message = NO_ENTRY_POINT[case]
    with pytest.raises(CaptureError, match=f"model: .*{message}"):
        intarsia.compile(entry, X)
    with pytest.raises(CaptureError, match=f"method 'odd': .*{message}"):
        intarsia.compile({"fine": Decoder().read, "odd": entry}, {"fine": X, "odd": X})


def unrelated(scale: float) -> nn.Module:
    model = Memory()
    model.total.fill_(scale)
    return model


def test_methods_of_unrelated_models_that_share_a_name_are_an_error(tmp_path: Path) -> None:
    one, other = unrelated(0), unrelated(0)
    message = "state 'total' of the methods 'one' and 'two': found two tensors, .* In one file they would be one"
    with pytest.raises(StateError, match=message):
        intarsia.compile({"one": one.add, "two": other.add}, {"one": X, "two": X})
    hybrids = {"one": intarsia.compile(one.add, X), "two": intarsia.compile(other.add, X)}
    with pytest.raises(StateError, match=message):
        intarsia.export(hybrids)
    with pytest.raises(StateError, match=message):
        intarsia.save(hybrids, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_a_program_of_methods_is_not_one_program(tmp_path: Path) -> None:
    model = Decoder()
    intarsia.save(compile_two(model, {"prefill": X, "decode": X}), tmp_path / "m.pt2")
    loaded = intarsia.load(tmp_path / "m.pt2")
    with pytest.raises(ConventionError, match=r"found a call without a method, .* Call program\.prefill\(\.\.\.\)"):
        loaded(*X)
    with pytest.raises(ConventionError, match=r"found no method 'decod', .* Did you mean 'decode'"):
        loaded.decod(*X)
    for refuse in (intarsia.ledger, intarsia.coverage):
        with pytest.raises(IntarsiaError, match=r"of several methods,? one of them"):
            refuse(loaded)
    for refuse in (intarsia.export, intarsia.compile):
        with pytest.raises(IntarsiaError, match=r"found an? .*Methods"):
            refuse(loaded)


def test_state_that_differs_is_an_error_before_an_engine_is_built() -> None:
    told: list[Any] = []
    with pytest.raises(StateError, match="state 'total' of the methods 'one' and 'two': found two initial values"):
        intarsia.compile(
            {"one": unrelated(1).add, "two": unrelated(2).add},
            {"one": X, "two": X},
            progress=lambda *step: told.append(step),
        )
    assert told == []


def test_a_refusal_of_the_backend_names_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.core.registry import find_backend

    def refuse(*_: Any) -> None:
        raise EngineBuildFailed("it", found="nothing", expected="something", fix="Wait.")

    monkeypatch.setattr(find_backend("openvino"), "build", refuse)
    with pytest.raises(
        EngineBuildFailed, match="method 'prefill', partition 'openvino_0': found a refusal by openvino"
    ):
        compile_decoder(Decoder(), fallback=False)
