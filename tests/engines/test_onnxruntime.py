"""Building and loading ONNX Runtime engines, and their files; the suite that all backends pass is in conformance/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.conformance import Calls, export, load_built
from torch import nn
from torch.export import Dim

import intarsia
from intarsia.core.container import EngineContainer
from intarsia.engines.onnxruntime import ONNXRuntimeBackend
from intarsia.engines.onnxruntime.source import unpack_model
from intarsia.errors import (
    ArgumentError,
    EngineBuildFailed,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    PositionError,
)

onnx = pytest.importorskip("onnx")
BACKEND = ONNXRuntimeBackend()


@pytest.fixture(scope="module")
def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(512, 8).eval()


@pytest.fixture(scope="module")
def source(layer: nn.Module) -> bytes:
    built = BACKEND.build(export(layer, (torch.randn(4, 512),)), {})
    assert built.payload is None
    assert built.source is not None
    return built.source


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"provider": []}, ArgumentError, r"option 'provider': found no option .* Did you mean 'providers'"),
        ({"providers": "CPU"}, ArgumentError, "option 'providers': found the value 'CPU'"),
        ({"providers": ["CPUExecutionProvidr"]}, ArgumentError, "no provider of that name.*CPUExecutionProvider"),
        ({"providers": ["CPU"]}, ArgumentError, "no provider of that name.*Did you mean 'CPUExecutionProvider'"),
        ({"providers": ["quantum"]}, ArgumentError, "no provider of that name.*ONNX Runtime's documentation"),
        ({"providers": []}, ArgumentError, r"found the value \[\], expected a list of names"),
        (
            {"providers": [("CPUExecutionProvider", {"device_id": 1})]},
            ArgumentError,
            "expected a list of names of exec",
        ),
        ({"provider_options": [{"device_id": 1}]}, ArgumentError, "no option of that name"),
        ({"providers": ["CUDAExecutionProvider"]}, EngineUnavailable, "as it is installed here lacks it.*CPUExecution"),
        ({"intra_op_num_threads": -1}, ArgumentError, "option 'intra_op_num_threads': found the value -1"),
    ],
)
def test_an_unsuitable_option_is_one_error_before_the_capture(
    options: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr("torch.export.export", lambda *args, **kwargs: pytest.fail("the model was captured"))
    with pytest.raises(error, match=message):
        intarsia.compile(nn.ReLU(), (torch.ones(3),), backend="onnxruntime", options=options)


def test_a_provider_that_is_missing_where_a_file_is_loaded_is_one_error(
    source: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    with pytest.raises(EngineUnavailable, match=r"provider 'CUDAExecutionProvider': found that .* lacks it"):
        BACKEND.rebuild(memoryview(source), {"providers": ["CUDAExecutionProvider"]})
    other = "AzureExecutionProvider"
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [other, "CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: ["CPUExecutionProvider"])
    with pytest.raises(EngineUnavailable, match=f"provider '{other}': found that it does not start .* leave it out"):
        BACKEND.rebuild(memoryview(source), {"providers": [other, "CPUExecutionProvider"]})


def test_options_reach_the_engine(layer: nn.Module) -> None:
    options = {"providers": ["CPUExecutionProvider"], "intra_op_num_threads": 1}
    built = BACKEND.build(export(layer, (torch.randn(4, 512),)), options)
    assert dict(built.options) == options
    engine: Any = load_built(BACKEND, built)
    assert engine._session.get_session_options().intra_op_num_threads == 1


def test_weights_lie_beside_the_model(layer: nn.Module, source: bytes) -> None:
    unpacked = unpack_model(memoryview(source))
    (weight,) = unpacked.weights
    assert bytes(weight.data) == layer.weight.detach().numpy().tobytes()
    assert len(unpacked.model) < 4096
    assert unpacked.signature == "(f32[4, 512]) -> (f32[4, 8])"


def test_tied_weights_lie_there_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.randn(64, 64))
            self.second = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(nn.functional.linear(x, self.first).relu(), self.second)

    built = BACKEND.build(export(Tied(), (torch.randn(4, 64),)), {})
    assert built.source is not None
    assert len(built.source) < 1.5 * 64 * 64 * 4


def test_building_twice_gives_equal_bytes_wherever_a_partition_stands(source: bytes, layer: nn.Module) -> None:
    again = BACKEND.build(export(layer, (torch.randn(4, 512),)), {})
    assert again.source == source

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.silu(nn.functional.gelu(nn.functional.silu(x) * 3)) * 3

    hybrid = intarsia.compile(Twice(), (torch.randn(2, 8),), torch_executed_ops={"aten.gelu"}, backend="onnxruntime")
    program = intarsia.export(hybrid)
    first, second = (EngineContainer.unpack(data.numpy().data) for data in program.constants.values())
    assert first.identity == second.identity


def _hostile(source: bytes, change: Any) -> bytes:
    size = int.from_bytes(source[:8], "little")
    model = onnx.ModelProto.FromString(source[8 : 8 + size])
    change(model)
    text = model.SerializeToString()
    return (len(text).to_bytes(8, "little") + text).ljust(-(-(8 + len(text)) // 64) * 64, b"\0") + source[
        -512 * 8 * 4 :
    ]


def _place(model: Any, location: str, offset: str = "0") -> None:
    entries = {entry.key: entry for entry in model.graph.initializer[0].external_data}
    entries["location"].value, entries["offset"].value = location, offset


def _constant_in_a_file(model: Any) -> None:
    tensor = onnx.TensorProto(name="c", data_type=1, dims=[8], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], value=tensor))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: _place(model, "/etc/passwd"), "weights that lie in files"),
        (lambda model: _place(model, "weights", "-64"), "weights outside of it"),
        (lambda model: _place(model, "weights", "64"), "weights outside"),
        (lambda model: _place(model, "weights", "x"), "weights in no place"),
        (_constant_in_a_file, "constants that lie in files"),
        (lambda model: model.metadata_props.clear(), "no signature"),
        (lambda model: setattr(model.graph.node[0], "domain", "com.example"), r"operators of com\.example"),
        (lambda model: setattr(model.graph.node[0], "op_type", "Nothing"), "ONNX Runtime: .* refuses the model"),
    ],
)
def test_a_model_that_reads_files_is_refused(source: bytes, change: Any, message: str) -> None:
    with pytest.raises(EngineBuildFailed, match=message):
        BACKEND.rebuild(memoryview(_hostile(source, change)), {})


@pytest.mark.parametrize("data", [b"", b"no model at all", bytes(100), (1 << 40).to_bytes(8, "little") + b"x" * 50])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EngineBuildFailed, match="ONNX model: found"):
        BACKEND.rebuild(memoryview(data), {})
    with pytest.raises(EngineRefused, match="the portable one alone"):
        BACKEND.load(memoryview(data), {})
    assert BACKEND.accepts("1.0", "CPU") is not None


def test_a_failed_call_is_one_error_and_the_engine_goes_on(source: bytes) -> None:
    engine = BACKEND.rebuild(memoryview(source), {})
    for _ in range(2):
        with pytest.raises(EngineError, match=r"ONNX Runtime engine: found a failed call \("):
            engine([torch.randn(4, 511)])
        assert engine([torch.randn(4, 512)])[0].shape == (4, 8)


def test_memory_is_bound_and_not_copied(source: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    bound: list[int] = []
    for name in ("bind_input", "bind_output"):
        original = getattr(onnxruntime.IOBinding, name)

        def bind(self: Any, *args: Any, original: Any = original) -> None:
            bound.append(args[-1])
            original(self, *args)

        monkeypatch.setattr(onnxruntime.IOBinding, name, bind)
    x = torch.randn(4, 512)
    (y,) = BACKEND.rebuild(memoryview(source), {})([x])
    assert bound == [x.data_ptr(), y.data_ptr()]


def test_state_of_every_kind_is_built_in() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(300, 4).t())
            self.register_buffer("scale", torch.randn(600).bfloat16())
            self.register_buffer("hidden", torch.arange(2000) % 3 == 0, persistent=False)
            self.register_buffer("count", torch.arange(600) * 2**33)
            self.plain = torch.randn(600).half()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x @ self.weight.t(), self.scale.float(), ~self.hidden, self.count + 1, self.plain.float()

    module = Stateful()
    x = torch.randn(2, 300)
    built = BACKEND.build(export(module, (x,)), {})
    assert built.source is not None
    unpacked = unpack_model(memoryview(built.source))
    # A message of protobuf ends at 2 GB, so none may hold what grows with a model.
    inside = [tensor.ByteSize() for tensor in onnx.ModelProto.FromString(unpacked.model).graph.initializer]
    assert max(inside) < 200
    assert len(unpacked.weights) == 5
    results = load_built(BACKEND, built)([x])
    for result, expected in zip(results, module(x), strict=True):
        torch.testing.assert_close(result, expected.detach())


def test_a_file_stores_weights_once_and_runs_in_a_new_process(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4)).eval()
    x = torch.randn(3, 256)
    rows = {0: Dim("rows", min=1, max=9)}
    hybrid = intarsia.compile(model, (x,), dynamic_shapes=(rows,), backend="onnxruntime")
    path = tmp_path / "model.pt2"
    intarsia.save(intarsia.export(hybrid), path)
    assert path.stat().st_size < 1.3 * 256 * 260 * 4 + 40_000
    torch.save((x, model(x).detach()), tmp_path / "call.pt")
    script = (
        "import sys, torch, intarsia\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "program = intarsia.load(sys.argv[1])\n"
        "torch.testing.assert_close(program(x), expected)\n"
        "torch.testing.assert_close(program(x[:1]), expected[:1])\n"
        "torch.testing.assert_close(torch.export.load(sys.argv[1]).module()(x), expected)\n"
        "assert 'onnxscript' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, str(path), str(tmp_path / "call.pt")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr, run.stdout) == (0, "", "")
    assert intarsia.verify(path, model, inputs=[((x,), {})]).ok
    for engines in ("verify", "rebuild"):
        torch.testing.assert_close(intarsia.load(path, engines=engines)(x), model(x).detach())


class Encoder(nn.Module):
    """Token numbers and a mask, as a sentence encoder takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 8), nn.Embedding(9, 8)
        self.register_buffer("order", torch.arange(9)[None])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = (self.tokens(ids) + self.places(self.order[:, : ids.shape[1]]))[:, None]
        seen = mask[:, None, None].to(torch.bool).expand(-1, 1, ids.shape[1], -1)
        x = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)[:, 0]
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def test_inputs_of_a_sentence_encoder_are_drawn(tmp_path: Path) -> None:
    model, sizes = Encoder().eval(), {0: Dim("batch", min=1, max=5), 1: Dim("length", min=2, max=9)}
    ids, mask = torch.randint(0, 50, (3, 6)), torch.ones(3, 6, dtype=torch.int64)
    hybrid = intarsia.compile(model, (ids, mask), dynamic_shapes=(sizes, sizes), backend="onnxruntime")
    assert len(intarsia.coverage(hybrid).engines) == 1
    intarsia.save(hybrid, tmp_path / "model.pt2")
    assert intarsia.verify(tmp_path / "model.pt2", model).ok
    ids[1, 2] = -3
    with (
        torch.no_grad(),
        pytest.raises(PositionError, match=r"found index -3, which .* with size 50, expected 0 to 49"),
    ):
        intarsia.load(tmp_path / "model.pt2")(ids, mask)


def test_methods_share_the_weights_of_their_engines(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 256)

        def one(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu()

        def two(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).tanh()

    model = Model().eval()
    x = torch.randn(2, 256)
    hybrids = intarsia.compile({"one": model.one, "two": model.two}, {"one": (x,), "two": (x,)}, backend="onnxruntime")
    path = tmp_path / "model.pt2"
    intarsia.save(intarsia.export(hybrids), path)
    assert path.stat().st_size < 1.3 * 256 * 257 * 4 + 60_000
    loaded = intarsia.load(path)
    torch.testing.assert_close(loaded.one(x), model.one(x).detach())
    torch.testing.assert_close(loaded.two(x), model.two(x).detach())


def test_nothing_is_printed_and_nothing_heavy_imported() -> None:
    script = (
        "import sys, torch, intarsia\n"
        "from intarsia.core.registry import find_backend\n"
        "backend = find_backend('onnxruntime')\n"
        "backend.available(), backend.accepts('1', 'CPU')\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "backend.check_options({})\n"
        "assert not {'onnx', 'onnxscript', 'torch.onnx'} & set(sys.modules)\n"
        "hybrid = intarsia.compile(torch.nn.Linear(4, 4), (torch.ones(2, 4),), backend='onnxruntime')\n"
        "hybrid(torch.ones(2, 4))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_program_that_cannot_be_exported_is_one_error_that_names_the_operator() -> None:
    program = export(Calls(lambda x: torch.median(x, 0)[0].relu()), (torch.randn(8, 2),))
    with pytest.raises(EngineBuildFailed, match="ONNX: found that torch does not export the program") as caught:
        BACKEND.build(program, {})
    assert caught.value.operators == ("aten.median.dim",)


def test_an_operator_that_onnx_runtime_lacks_is_named() -> None:
    program = export(Calls(lambda x: torch.tanh(x.t())), (torch.randn(8, 2).bfloat16(),))
    with pytest.raises(EngineBuildFailed, match="Could not find an implementation for Tanh") as caught:
        BACKEND.build(program, {})
    assert caught.value.operators == ("aten.tanh.default",)


def test_a_program_that_writes_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    with pytest.raises(EngineBuildFailed, match="writes state or inputs"):
        BACKEND.build(export(Counter(), (torch.randn(3),)), {})


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_slice_that_is_shorter_than_captured_stays_in_torch(rows: int) -> None:
    class First(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x[:2].exp() * 3, x.relu()

    dims = ({0: torch.export.Dim("rows", max=9)},)
    hybrid = intarsia.compile(First(), (torch.ones(3, 4),), dynamic_shapes=dims, backend="onnxruntime")
    x = torch.randn(rows, 4)
    torch.testing.assert_close(hybrid(x), First()(x))
    reasons = {one.operator: one.reason for one in intarsia.coverage(hybrid).placements}
    assert "x.shape[0] = 0, it meets f32[0, 4], which torch captured as f32[2, 4]" in reasons["aten.exp.default"]
    assert reasons["aten.relu.default"] == "supported"
