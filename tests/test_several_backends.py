"""One program with engines of several backends and torch operators goes the whole way, by whatever each one builds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch

import intarsia
from intarsia.core import instance, registry
from intarsia.core.backend import Backend, BuiltEngine
from intarsia.core.plan import PartitionPlan, PlannedOperator
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError, EngineUnavailable, PartitionError
from intarsia.report.program import describe_program


class Model(torch.nn.Module):
    """State that is written, a tied weight, an operator for torch, and work for each backend."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
        self.middle = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 8)
        self.head.weight = self.middle.weight
        self.idle = torch.nn.Identity()
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.middle(self.encoder(x)).relu().sort(-1)[0]
        self.calls.add_(y.mean(0))
        return {"y": (self.head(y) * scale).softmax(-1), "calls": self.calls + 0}


X, SCALE = torch.randn(3, 8), torch.ones(8)
SHAPES = {"x": {0: torch.export.Dim("rows", min=1, max=9)}, "scale": None}


PLAN = str(
    PartitionPlan(
        {
            "forward": (
                PlannedOperator("torch", "exp", "aten.exp.default", "", ("x",)),
                PlannedOperator("one_7", "sin", "aten.sin.default", "", ("exp",)),
            )
        }
    )
)


def make_model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def compile_model(model: Model | None = None, **settings: Any) -> torch.fx.GraphModule:
    return intarsia.compile(model or make_model(), (X,), {"scale": SCALE}, dynamic_shapes=SHAPES, **settings)


class Eager:
    """Engines that are torch graphs. `refused` is an operator that building refuses, `told` whether it says which."""

    def __init__(self, name: str, refused: str = "", *, told: bool = False) -> None:
        self.name = name
        self.refused = refused
        self.told = told
        self.programs: dict[bytes, torch.export.ExportedProgram] = {}
        self.options: list[Mapping[str, Any]] = []

    def check_options(self, options: Mapping[str, Any]) -> None:
        if "missing" in options:
            raise EngineUnavailable("library", found="nothing", expected="it", fix="Install it.")

    def supports(self, node: torch.fx.Node) -> str | None:
        return "no table" if "sort" in str(node.target) else None

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        found = [str(node.target) for node in program.graph.nodes if f"aten.{self.refused}." in str(node.target)]
        if found:
            raise EngineBuildFailed("it", found="no room", expected="y", fix="z", operators=found if self.told else ())
        self.options.append(options)
        key = f"{self.name} {len(self.programs)}".encode()
        self.programs[key] = program
        return BuiltEngine(key, None, "1", "any", {})

    def accepts(self, version: str, target: str) -> str | None:
        return None

    def available(self) -> str | None:
        return None

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> Any:
        module = self.programs[bytes(payload)].module(check_guards=False)
        return lambda inputs: [value.contiguous().clone() for value in module(*inputs)]


@pytest.fixture
def add_backends(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make backends known beside the installed ones."""
    known: dict[str, Backend] = {}
    find = registry.find_backend

    def find_any(name: str) -> Backend:
        return known.get(name) or find(name)

    for module in (registry, instance):
        monkeypatch.setattr(module, "find_backend", find_any)
    monkeypatch.setattr("intarsia.api.wanted.find_backend", find_any)
    return lambda *backends: known.update({backend.name: backend for backend in backends})


def assert_right(hybrid: torch.fx.GraphModule, model: Model, tolerance: float = 0.0) -> None:
    """The hybrid of a model computes what another copy of the model does."""
    expected = make_model()
    model.calls.zero_()
    with torch.no_grad():
        for rows in (1, 3, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(
                hybrid(x, scale=SCALE), expected(x, scale=SCALE), rtol=tolerance, atol=tolerance, check_stride=False
            )


def test_what_one_backend_cannot_build_goes_to_the_next(add_backends: Any) -> None:
    add_backends(Eager("one", "gelu"), Eager("two"))
    model = make_model()
    hybrid = compile_model(model, backend=["one", "two"])
    found = intarsia.coverage(hybrid)
    advice = "; leave the one to blame of its 5 operators in torch with torch_executed_ops"
    assert found.failed == (("one_0", f"a refusal by one: no room{advice}"),)
    assert found.backends == (("two_0", "two"), ("one_1", "one"))
    reasons = {p.node: p.reason for p in found.placements}
    assert reasons["gelu"] == "supported; one: one_0 could not be built"
    assert reasons["sort"] == "no table"
    assert_right(hybrid, model)


def test_an_operator_that_one_backend_names_goes_to_the_next_alone(add_backends: Any) -> None:
    add_backends(Eager("one", "gelu", told=True), Eager("two"))
    model = make_model()
    hybrid = compile_model(model, backend=["one", "two"])
    found = intarsia.coverage(hybrid)
    assert found.failed == (("aten.gelu.default", "a refusal by one: no room"),)
    assert {p.operator for p in found.placements if p.place == "two_0"} == {"aten.gelu.default"}
    assert Counter(backend for _, backend in found.backends) == {"one": 3, "two": 1}
    assert_right(hybrid, model)


def test_what_no_backend_can_build_stays_in_torch(add_backends: Any) -> None:
    add_backends(Eager("one", "gelu"), Eager("two", "gelu", told=True))
    model = make_model()
    hybrid = compile_model(model, backend=["one", "two"])
    (reason,) = [p.reason for p in intarsia.coverage(hybrid).placements if p.operator == "aten.gelu.default"]
    assert reason == "one: one_0 could not be built; two: could not be built: no room"
    assert_right(hybrid, model)
    with pytest.raises(EngineBuildFailed, match="partition 'one_0': found a refusal by one: no room"):
        compile_model(backend=["one", "two"], fallback=False)


def test_a_plan_is_kept_though_a_partition_cannot_be_built(add_backends: Any) -> None:
    one = Eager("one")
    add_backends(one, Eager("two"))
    kept = intarsia.plan(compile_model(backend=["one", "two"]))
    one.refused = "gelu"
    with pytest.raises(EngineBuildFailed, match=r"partition 'one_0': found a refusal by one: no room.* in the plan"):
        compile_model(plan=kept)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"backend": ["one", "tow"]}, EngineUnavailable, "backend 'tow': found no backend of that name"),
        ({"backend": ["one", "two"], "options": {"two": {"missing": 1}}}, EngineUnavailable, "backend 'two', library"),
        (
            {"backend": ["one", "two"], "options": {"THREADS": 1}},
            ArgumentError,
            "options: found 'THREADS', which is none",
        ),
        ({"backend": ["one", "two"], "options": {"tow": {}}}, ArgumentError, "Did you mean 'two'"),
        ({"backend": ["one", "two"], "options": {"two": 3}}, ArgumentError, "options, backend 'two': found an object"),
        ({"backend": "one", "options": 3}, ArgumentError, "options: found an object of type 'int'"),
        ({"backend": {"": "one", "encodr": "two"}}, PartitionError, "Did you mean 'encoder'"),
        ({"backend": {"openvino": "aten.linear"}}, ArgumentError, r"Write backend=\{'aten.linear': 'openvino'\}"),
        ({"backend": {"": "one", "idle": "two"}}, PartitionError, "found 'idle', a module that calls no operator"),
        ({"plan": "{}", "backend": "one"}, ArgumentError, "plan: found backend beside it"),
        (
            {"plan": "{}", "torch_executed_ops": ["x"], "min_block_size": 2},
            ArgumentError,
            "ops, min_block_size beside it",
        ),
        ({"plan": "no.json"}, ArgumentError, "plan 'no.json': found no file of that name"),
        ({"plan": "{}", "backend": "openvino"}, ArgumentError, "plan: found backend beside it"),
        ({"plan": PLAN, "options": {"missing": 1}}, EngineUnavailable, r"entry 1 \(sin\), place 'one_7', library"),
        (
            {"plan": PLAN.replace("torch", "two_0"), "options": {"one": {"missing": 1}}},
            EngineUnavailable,
            r"^plan, method 'forward', entry 1 \(sin\), place 'one_7', backend 'one', library",
        ),
        ({"plan": PLAN.replace("one", "onw")}, EngineUnavailable, r"plan, method 'forward', entry 1 .* 'onw_7', back"),
        ({"backend": "one", "options": {"one": {"A": 1}}}, ArgumentError, r"Write options=\{'A': 1\}\."),
    ],
)
def test_what_cannot_be_wanted_is_told_before_anything_is_built(
    settings: Any, error: type[Exception], message: str, add_backends: Any
) -> None:
    one = Eager("one")
    add_backends(one, Eager("two"))
    with pytest.raises(error, match=message):
        compile_model(**settings)
    assert one.programs == {}


def test_each_backend_gets_its_own_options(add_backends: Any) -> None:
    one, two = Eager("one"), Eager("two")
    add_backends(one, two)
    compile_model(backend={"": "one", "encoder": "two"}, options={"two": {"a": 1}})
    assert (one.options[0], two.options[0]) == ({}, {"a": 1})
    compile_model(backend={"": "one", "encoder": "one"}, options={"b": 2})
    assert one.options[-1] == {"b": 2}


def installed(*names: str) -> list[str]:
    """Those of some backends with which engines can be built here."""
    known = [name for name in names if name in registry.available_backends()]
    return [name for name in known if registry.find_backend(name).available() is None]


@pytest.mark.skipif(which("c++") is None, reason="inductor needs a C++ compiler")
def test_engines_of_all_backends_in_one_program(tmp_path: Path) -> None:
    """Exported without a retrace, equal to the bit to the retraced export, saved, run by a new process, verified."""
    names = installed("openvino", "inductor", "onnxruntime")
    if not {"openvino", "inductor"} <= set(names):
        pytest.skip("needs OpenVINO and inductor")
    model, path = make_model(), tmp_path / "model.pt2"
    parts = dict(zip(["", "encoder", "middle"], names, strict=False))
    hybrid = compile_model(model, backend={**parts, "aten.softmax": "torch"}, fallback=False)
    assert set(dict(intarsia.coverage(hybrid).backends).values()) == set(names)
    assert {p.operator for p in intarsia.coverage(hybrid).placements if p.place == "torch"} >= {"aten.softmax.int"}
    assert_right(hybrid, model, 1e-4)
    model.calls.zero_()
    intarsia.save(intarsia.export(hybrid), path, test_vectors=[((X,), {"scale": SCALE})])
    facts = describe_program(intarsia.export(hybrid))
    assert {engine.backend for engine in facts.engines} == set(names)
    code = (
        "import intarsia\n"
        f"result = intarsia.verify({str(path)!r}, allow={{'native'}})\n"
        "assert result.ok and result.replay.calls == 1, str(result)"
    )
    for command in (["-c", code], ["-m", "intarsia", "inspect", str(path)]):
        run = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    assert {name for name in names if name in run.stdout} == set(names)


class Odd(Eager):
    """A backend that breaks its contract in one way."""

    def __init__(self, **broken: Any) -> None:
        super().__init__("odd")
        self.__dict__.update(broken)


def fail(*_: Any) -> None:
    message = "out of luck\nsecond line"
    raise KeyError(message)


def build_any(**changes: Any) -> Any:
    facts: dict[str, Any] = {"payload": b"x", "source": None, "backend_version": "1", "target": "t", "options": {}}
    return lambda *_: BuiltEngine(**{**facts, **changes})


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"supports": fail}, r"found the answer KeyError: .* to whether it takes aten\.linear\.default"),
        ({"supports": lambda _: True}, "found the answer True to whether"),
        ({"supports": lambda _: ""}, "found the answer '' to whether"),
        ({"check_options": fail}, "found that the backend 'odd' fails on them"),
        ({"build": lambda *_: None}, "found that it builds a NoneType, expected a BuiltEngine"),
        ({"build": build_any(payload="x")}, "a str for its payload"),
        ({"build": build_any(payload=None)}, "neither a payload nor a source"),
        ({"build": build_any(target=3)}, "an int for its target"),
        ({"build": build_any(options={"a": {1}})}, "options that JSON cannot hold"),
        ({"build": build_any(options={"a": float("nan")})}, "options that JSON cannot hold"),
        ({"build": build_any(options={3: 4})}, "which JSON would change"),
        ({"build": build_any(source=b"abc", constants=[(0, 2), (1, 2)])}, "constants of 2 bytes at 1"),
        ({"build": build_any(source=b"abc", constants=[(2, 2)])}, "in a source of 3"),
    ],
)
def test_a_backend_that_breaks_its_contract_is_named(add_backends: Any, broken: dict[str, Any], told: str) -> None:
    add_backends(Odd(**broken), Eager("two"))
    with pytest.raises(EngineError, match=f"^backend 'odd'.*{told}"):
        compile_model(backend=["odd", "two"])


def test_an_interruption_ends_the_compilation_and_leaves_the_model(add_backends: Any) -> None:
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    add_backends(Odd(build=interrupt), Eager("two"))
    with pytest.raises(KeyboardInterrupt):
        compile_model(model, backend={"": "two", "head": "odd"})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    hybrid = compile_model(model, backend="two")
    assert_right(hybrid, model)


def test_no_options_of_one_of_several_backends_are_none(add_backends: Any) -> None:
    one, two = Eager("one", "gelu"), Eager("two")
    add_backends(one, two)
    compile_model(backend=["one", "two"], options={"one": None, "two": {"x": 1}})
    assert {str(options) for options in (*one.options, *two.options)} == {"{}", "{'x': 1}"}
