"""Building, loading and rebuilding OpenVINO engines; the suite that all backends pass is in conformance/."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.engines.conformance.programs import RUN, Calls, export
from torch.export import Dim

import intarsia
from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.engines.openvino import OpenVINOBackend, engine
from intarsia.engines.openvino.engine import load_engine
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError, EngineRefused

BACKEND = OpenVINOBackend()


@pytest.fixture(scope="module")
def wide_layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(512, 8).eval()


@pytest.fixture(scope="module")
def built(wide_layer: torch.nn.Module) -> BuiltEngine:
    return BACKEND.build(export(wide_layer, (torch.randn(4, 512),)), {})


def _error(engine: Any, module: torch.nn.Module) -> float:
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float((engine([x])[0] - module(x)).abs().max())


def test_computes_in_f32_unless_asked(wide_layer: torch.nn.Module, built: BuiltEngine) -> None:
    assert built.source is not None
    assert _error(BACKEND.load(memoryview(built.payload), built.options), wide_layer) < 1e-5
    assert _error(BACKEND.rebuild(memoryview(built.source), built.options), wide_layer) < 1e-5
    engine = load_engine(memoryview(built.payload), {})
    assert engine._compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"


def test_options_pass_through(wide_layer: torch.nn.Module) -> None:
    options = {"INFERENCE_PRECISION_HINT": "bf16", "PERFORMANCE_HINT": "THROUGHPUT"}
    built = BACKEND.build(export(wide_layer, (torch.randn(4, 512),)), options)
    assert dict(built.options) == options
    engine = load_engine(memoryview(built.payload), built.options)
    assert str(engine._compiled.get_property("PERFORMANCE_HINT")).endswith("THROUGHPUT")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"PERFORMANCE_HNT": "LATENCY"}, "OpenVINO option 'PERFORMANCE_HNT': found no property of that name"),
        ({"PERFORMANCE_HINT": "SLOW"}, "OpenVINO option 'PERFORMANCE_HINT': found the value 'SLOW'"),
        ({"PERFORMANCE_HINT": object()}, "OpenVINO option 'PERFORMANCE_HINT': found a value of type object"),
    ],
)
def test_an_unsuitable_option_is_named(options: dict[str, Any], message: str) -> None:
    program = export(Calls(torch.relu), (torch.randn(2),))
    with pytest.raises(ArgumentError, match=message):
        BACKEND.build(program, options)
    with pytest.raises(ArgumentError, match=message):
        BACKEND.check_options(options)


def test_weights_are_constants_in_f32(built: BuiltEngine) -> None:
    assert built.source is not None
    assert len(built.payload) > 4 * 512 * 8
    assert len(built.source) > 4 * 512 * 8


def test_says_what_it_was_built_for(built: BuiltEngine) -> None:
    assert built.backend_version.startswith("202")
    assert built.target.startswith("CPU")


def test_a_foreign_payload_is_refused() -> None:
    with pytest.raises(EngineRefused, match=r"OpenVINO blob: .* refuses it"):
        BACKEND.load(memoryview(b"not a blob" * 100), {})


def test_a_foreign_source_is_refused() -> None:
    with pytest.raises(EngineBuildFailed, match="OpenVINO IR"):
        BACKEND.rebuild(memoryview((8).to_bytes(8, "little") + b"<no xml>"), {})


@pytest.mark.parametrize(
    "case",
    [
        ({}, "rebuilding it for this machine, because OpenVINO blob: found that OpenVINO "),
        ({"backend_version": "2019.1"}, "because OpenVINO 2019.1 built it, and "),
        ({"target": "CPU: Pentium"}, "because it was built for Pentium, and this is "),
    ],
    ids=["refused", "another version", "another processor"],
)
def test_a_payload_that_does_not_fit_is_rebuilt_from_the_source(
    wide_layer: torch.nn.Module,
    built: BuiltEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[dict[str, str], str],
) -> None:
    facts, told = case
    monkeypatch.setattr("intarsia.engines.openvino.backend.find_processor", lambda: built.target.partition(": ")[2])
    foreign = dataclasses.replace(built, payload=b"another version's blob" * 9, **facts)
    signature = "(f32[4, 512]) -> (f32[4, 8])"
    data = pack_engine(foreign, name="openvino_4", backend="openvino", signature=signature)
    engine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    with caplog.at_level(logging.INFO, logger="intarsia"):
        errors = [_error(lambda inputs: RUN(inputs, engine, signature), wide_layer) for _ in range(2)]
    assert max(errors) < 1e-5
    messages = [record.getMessage() for record in caplog.records]
    assert [message.startswith("engine 'openvino_4': ") and told in message for message in messages] == [True]


def test_a_program_that_cannot_be_converted_is_one_error() -> None:
    program = export(Calls(lambda x: torch.fft.fft(x).real), (torch.randn(8),))
    with pytest.raises(EngineBuildFailed, match="OpenVINO: found that it refuses the program") as caught:
        BACKEND.build(program, {})
    assert "/src/" not in str(caught.value)


def test_a_program_that_writes_is_refused() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    with pytest.raises(EngineBuildFailed, match="writes state or inputs"):
        BACKEND.build(export(Counter(), (torch.randn(3),)), {})


def test_a_failed_call_is_one_error_and_the_engine_goes_on(built: BuiltEngine) -> None:
    engine = BACKEND.load(memoryview(built.payload), {})
    with pytest.raises(EngineError, match=r"OpenVINO engine: found a failed call \((?!Exception from)"):
        engine([torch.randn(4, 511)])
    assert engine([torch.randn(4, 512)])[0].shape == (4, 8)


def test_state_of_every_kind_is_built_in() -> None:
    class Stateful(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4).t())
            self.register_buffer("scale", torch.randn(3).bfloat16())
            self.register_buffer("hidden", torch.tensor([True, False, True]), persistent=False)
            self.plain = torch.randn(())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.where(self.hidden, x @ self.weight, self.plain)
            return y * self.scale.float() + torch.tensor([1.0, 2.0, 3.0])

    module = Stateful()
    built = BACKEND.build(export(module, (torch.randn(2, 4),)), {})
    x = torch.randn(2, 4)
    (result,) = BACKEND.load(memoryview(built.payload), {})([x])
    torch.testing.assert_close(result, module(x).detach())


def test_a_large_input_is_read_where_it_lies(built: BuiltEngine) -> None:
    engine = load_engine(memoryview(built.payload), {})
    x = torch.randn(4, 512)
    wrapped = engine._wrap(0, x)
    assert wrapped.data.__array_interface__["data"][0] == x.data_ptr()


def test_constructing_a_backend_imports_no_library() -> None:
    code = """
import sys
from intarsia.engines.openvino import OpenVINOBackend, engine
OpenVINOBackend()
sys.exit(any(name.split('.')[0] == 'openvino' for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_telemetry_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = pytest.importorskip("openvino_telemetry")
    sent: list[str] = []
    for method in ("start_session", "send_event"):
        monkeypatch.setattr(telemetry.Telemetry, method, lambda *args, method=method: sent.append(method))
    BACKEND.build(export(Calls(torch.relu), (torch.randn(2),)), {})
    assert sent == []


SIZES: dict[str, Any] = {
    "product": lambda x: torch.relu(x.reshape(x.shape[0] * x.shape[1], 8)) + 1,
    "difference": lambda x: torch.relu(x[:, : x.shape[1] - 1] * 2).reshape(x.shape[0] * (x.shape[1] - 1), 8) + 1,
    "quotient": lambda x: torch.relu(x.view(x.shape[0], x.shape[1] // 2, 2, 8)) * 2,
    "sum": lambda x: torch.relu(x).tile(x.shape[0] + x.shape[1], 1, 1) + 1,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_worked_out_are_worked_out_in_the_engine(name: str) -> None:
    model = Calls(SIZES[name])
    sizes = (({0: Dim("b", min=1, max=7), 1: 2 * Dim("t", min=3, max=5)},),)
    hybrid = intarsia.compile(model, (torch.randn(3, 8, 8),), dynamic_shapes=sizes, fallback=False)
    assert [placement.reason for placement in intarsia.coverage(hybrid).placements if placement.place == "torch"] == []
    for b, t in ((1, 6), (3, 10), (7, 8)):
        x = torch.randn(b, t, 8)
        torch.testing.assert_close(hybrid(x), model(x), rtol=1e-5, atol=1e-5)


def test_an_operator_that_is_not_converted_is_named() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return torch.index_put(x, (rows,), x.new_zeros(()))

    program = torch.export.export(Rows(), (torch.ones(3, 4), torch.tensor([True, False, True])))
    with pytest.raises(
        EngineBuildFailed, match=r"OpConversionFailure: No conversion rule .*: aten\.index_put\.default"
    ) as caught:
        OpenVINOBackend().build(program.run_decompositions({}), {})
    assert caught.value.operators == ("aten.index_put.default",)


UNBINDS: dict[str, Any] = {
    "the last axis": lambda x: x.unbind(-1)[0].relu(),
    "an inner axis": lambda x: x.unbind(1)[2].relu() - x.unbind(1)[0],
    "the first axis": lambda x: x.permute(1, 0, 2).unbind()[2].relu(),
    "truth values": lambda x: (x > 0).unbind(1)[1].logical_not().float(),
}


@pytest.mark.parametrize("name", UNBINDS)
def test_unbind_is_built_beside_symbolic_sizes(name: str) -> None:
    model = Calls(UNBINDS[name])
    batch = (({0: Dim("b", min=1, max=7)},),)
    hybrid = intarsia.compile(model, (torch.randn(4, 3, 5),), dynamic_shapes=batch, fallback=False)
    assert {one.place for one in intarsia.coverage(hybrid).placements if "unbind" in one.operator} == {"openvino_0"}
    for b in (1, 4, 7):
        x = torch.randn(b, 3, 5)
        torch.testing.assert_close(hybrid(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("axis", [1, -1])
def test_an_operator_whose_result_openvino_fails_to_take_is_named(axis: int, monkeypatch) -> None:
    monkeypatch.setattr("intarsia.engines.openvino.build.split_unbinds", lambda module: None)
    model, x = Calls(lambda x: torch.tanh(x.relu().unbind(axis)[1])), torch.randn(4, 3, 5)
    hybrid = intarsia.compile(model, (x,), dynamic_shapes=(({0: Dim("b", min=1, max=7)},),))
    reasons = {one.operator: (one.place, one.reason) for one in intarsia.coverage(hybrid).placements}
    assert reasons["aten.relu.default"][0] == "openvino_0"
    assert reasons["aten.tanh.default"][0] == "openvino_1"
    assert reasons["aten.unbind.int"][0] == "torch"
    assert reasons["aten.unbind.int"][1].startswith("could not be built: OpConversionFailure: ")


@pytest.mark.parametrize("function", [torch.frac, lambda x: torch.heaviside(x, x)])
def test_an_operator_that_is_decomposed_into_what_is_not_converted_is_named(function) -> None:
    program = export(Calls(function), (torch.randn(3),))
    (expected,) = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    with pytest.raises(EngineBuildFailed) as caught:
        BACKEND.build(program, {})
    assert caught.value.operators == (expected,)


def test_a_file_chooses_no_place_on_the_disk() -> None:
    properties = engine._read_properties({"WEIGHTS_PATH": "/somewhere/else", "NUM_STREAMS": "1"})
    assert "WEIGHTS_PATH" not in properties
    assert properties["NUM_STREAMS"] == "1"
