"""The build loop: engines take the places of partitions, and failures are told or fall back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intarsia.capture import capture
from intarsia.core.backend import BuiltEngine
from intarsia.core.coverage import coverage
from intarsia.engines.build import EngineBuilder
from intarsia.engines.methods import build_methods
from intarsia.engines.options import options_by_backend
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineUnavailable, HybridError
from intarsia.partition import Wishes, partition_methods
from intarsia.surgery import export


class EagerBackend:
    """A stand-in whose engines run the partition's graph in torch. `failures`: operator -> what building it raises."""

    name = "eager"

    def __init__(self, failures=None):
        self.failures = failures or {}
        self.programs = {}
        self.options = []

    def check_options(self, options):
        if "wrong" in options:
            raise ArgumentError("option 'wrong'", found="it", expected="none", fix="Leave it out.")

    def supports(self, node):
        return "not in the table" if "sort" in str(node.target) else None

    def build(self, program, options):
        for operator, error in self.failures.items():
            if operator in program.graph_module.code:
                raise error
        key = f"{id(self)}-{len(self.programs)}".encode()
        self.programs[key] = program
        self.options.append(dict(options))
        return BuiltEngine(key, None, "1", "any", {})

    def accepts(self, version, target):
        return None

    def load(self, payload, options):
        module = self.programs[bytes(payload)].module(check_guards=False)
        return lambda inputs: [value.contiguous().clone() for value in module(*inputs)]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.project(x).view(b, s, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b * s, 8)
        return {"tokens": self.norm(self.last(y)).view(b, s, 8) + x, "x": x}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        y = self.first(x).sort(1)[0]
        return {"y": (y.transpose(0, 1) * 2).tanh(), "z": self.last(y) + self.calls}


def make(backend, monkeypatch, **settings):
    monkeypatch.setattr("intarsia.core.instance.find_backend", lambda name: backend)
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("b", min=1, max=9)}}
    program = capture(Model(), (torch.randn(3, 4),), dynamic_shapes=shapes)
    return build(program, backend, **settings)


def build(program, backend, options=None, **settings):
    backends = {backend.name: backend}
    builder = EngineBuilder(backends, export, options_by_backend(backends, options))
    kept = settings.pop("torch_executed_ops", ())
    wishes = Wishes({backend.name: backend.supports}, torch_executed_ops=kept)
    hybrid = build_methods(lambda failed: partition_methods({"": program}, wishes, failed), builder, **settings)[""]
    return hybrid, coverage(hybrid)


def reference():
    torch.manual_seed(0)
    return Model()


def check(hybrid):
    model = reference()
    for b in (1, 3, 9):
        x = torch.randn(b, 4)
        with torch.no_grad():
            found, expected = hybrid(x), model(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def targets(module):
    return [str(node.target) for node in module.graph.nodes]


def test_engines_take_the_places_of_partitions(monkeypatch):
    backend, seen = EagerBackend(), []
    hybrid, found = make(backend, monkeypatch, options={"a": 1}, progress=lambda *event: seen.append(event))
    check(hybrid)
    assert len(backend.programs) == 2
    assert backend.options == [{"a": 1}] * 2
    assert seen == [(0, 2, "eager_0"), (1, 2, "eager_1"), (2, 2, "")]
    assert coverage(hybrid) == found
    assert sorted(found.engines) == ["eager_0", "eager_1"]
    assert found.failed == ()


def test_engine_body_is_a_graph_that_calls_the_operator(monkeypatch):
    hybrid, _ = make(EagerBackend(), monkeypatch)
    body = hybrid.eager_1
    inputs = len(body.graph.find_nodes(op="placeholder"))
    assert targets(body)[inputs:-1] == ["eager_1", "intarsia.run_engine.default", *["<built-in function getitem>"] * 3]
    assert body.eager_1.dtype is torch.uint8
    assert not isinstance(body.eager_1, nn.Parameter)
    assert not list(body.buffers())
    assert all("val" in node.meta for node in body.graph.nodes)
    (call,) = body.graph.find_nodes(op="call_function", target=torch.ops.intarsia.run_engine.default)
    assert call.args[2].startswith("(f32[], f32[s")
    assert isinstance(body.graph.find_nodes(op="get_attr")[0].meta["val"], torch.Tensor)


def test_hybrid_is_traced_without_running_an_engine(monkeypatch):
    hybrid, _ = make(EagerBackend(), monkeypatch)
    monkeypatch.setattr("intarsia.core.instance.find_backend", None)
    x = torch.randn(3, 4)
    program = torch.export.export(hybrid, (x,), dynamic_shapes={"x": {0: torch.export.Dim("b", min=1, max=9)}})
    assert targets(program.graph_module).count("intarsia.run_engine.default") == 2


@pytest.mark.parametrize(
    "error", [EngineBuildFailed("p", found="no", expected="yes", fix="Do."), ValueError("no\nmore")]
)
def test_failed_partition_stays_in_torch(error, monkeypatch):
    hybrid, found = make(EagerBackend({"tanh": error}), monkeypatch)
    check(hybrid)
    assert found.engines == ("eager_0",)
    (failure,) = found.failed
    assert failure[0] == "eager_1"
    assert failure[1].startswith("a refusal by eager: ")
    assert "no; leave the one to blame of its 6 operators in torch" in failure[1]
    reasons = {item.reason for item in found.placements if item.operator == "aten.tanh.default"}
    assert reasons == {"eager_1 could not be built"}
    assert "aten.tanh.default" in targets(hybrid)


def test_refused_operators_of_a_partition_are_an_error_that_names_them(monkeypatch):
    error = EngineBuildFailed("p", found="n", expected="y", fix="Do.", operators=("aten.tanh.default", "aten.no.more"))
    with pytest.raises(EngineBuildFailed) as caught:
        make(EagerBackend({"tanh": error}), monkeypatch, fallback=False)
    assert caught.value.operators == ("aten.tanh.default",)


def test_refused_operators_of_a_partition_alone_stay_in_torch(monkeypatch):
    error = EngineBuildFailed("p", found="n", expected="y", fix="Do.", operators=("aten.tanh.default", "aten.no.more"))
    hybrid, found = make(EagerBackend({"tanh": error}), monkeypatch)
    check(hybrid)
    reasons = {item.operator: item.reason for item in found.placements if "could not" in item.reason}
    assert reasons == {"aten.tanh.default": "could not be built: n"}
    assert found.failed == (("aten.tanh.default", "a refusal by eager: n"),)
    assert len(found.engines) == 2


def test_operators_that_the_partition_does_not_show_leave_it_in_torch(monkeypatch):
    error = EngineBuildFailed("p", found="n", expected="y", fix="Do.", operators=("aten.no.more",))
    _, found = make(EagerBackend({"tanh": error}), monkeypatch)
    assert [name for name, _ in found.failed] == ["eager_1"]


def test_failed_partition_is_an_error_without_fallback(monkeypatch):
    with pytest.raises(
        EngineBuildFailed, match="partition 'eager_1': found a refusal by eager: ValueError: no,"
    ) as caught:
        make(EagerBackend({"tanh": ValueError("no\nmore")}), monkeypatch, fallback=False)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineUnavailable("b", found="f", expected="e", fix="x")])
def test_what_is_no_refusal_is_never_swallowed(error, monkeypatch):
    with pytest.raises(type(error)):
        make(EagerBackend({"tanh": error}), monkeypatch)


def test_options_that_are_no_mapping_are_refused(monkeypatch):
    with pytest.raises(ArgumentError, match="options: found an object of type 'list', expected a mapping"):
        make(EagerBackend(), monkeypatch, options=["THREADS"])


def test_options_that_the_backend_refuses_are_told_before_anything_is_built(monkeypatch):
    backend = EagerBackend()
    with pytest.raises(ArgumentError, match="option 'wrong'"):
        make(backend, monkeypatch, options={"wrong": 1})
    assert backend.programs == {}


def test_hybrid_without_coverage_is_refused():
    with pytest.raises(HybridError, match="without coverage"):
        coverage(torch.fx.symbolic_trace(nn.ReLU()))


def test_openvino_builds_the_engines_of_a_transformer_block():
    pytest.importorskip("openvino")
    from intarsia.core.registry import find_backend

    backend, model = find_backend("openvino"), Attention()
    shapes = {"x": {0: torch.export.Dim("b", min=1, max=9), 1: torch.export.Dim("s", min=2, max=9)}}
    program = capture(model, (torch.randn(3, 5, 8),), dynamic_shapes=shapes)
    hybrid, found = build(program, backend, torch_executed_ops={"aten.scaled_dot_product_attention"}, fallback=False)
    assert len(found.engines) >= 2
    exported = export(hybrid).module(check_guards=False)
    for b, s in ((1, 2), (3, 5), (9, 9)):
        x = torch.randn(b, s, 8)
        with torch.no_grad():
            torch.testing.assert_close(hybrid(x), model(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(exported(x), hybrid(x), rtol=0, atol=0)
