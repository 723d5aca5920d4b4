"""Stand-ins for Torch-TensorRT and for TensorRT, with the shape that both publish; neither can run here.

The engine and the operator of the C++ runtime are compiled (`tensorrt_runtime.cpp`). The module, the engine of the
Python runtime and the module `tensorrt` are written in Python. A plan is "ftrt:" and the name of a function of CPU
tensors. What is written here was compared with the wheels of Torch-TensorRT 2.13.0 and 2.14.0, and of TensorRT's Python
bindings 10.13 to 11.4.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest
import sympy
import torch
from torch.fx import GraphModule

from builders.hybrids import describe
from intarsia.core import instance, registry
from intarsia.engines.tensorrt import engine as tensorrt_engine
from intarsia.engines.tensorrt import library

SOURCE = Path(__file__).with_name("tensorrt_runtime.cpp")
GPU = "0%8%9%0%NVIDIA L4"


def _write_row(x: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    x[0].narrow(2, 3, 1).copy_(x[1])
    return [x[0].sum(), x[0]]


PLANS: Mapping[str, Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]] = {
    "ftrt:relu": lambda x: [x[0].relu()],
    "ftrt:scale": lambda x: [x[0] * 3],
    "ftrt:affine": lambda x: [x[0] * 2 + x[1], x[0] - x[1]],
    "ftrt:repeat": lambda x: [torch.cat([x[0], x[0]])],
    "ftrt:add number": lambda x: [x[0] + x[1], x[1] * 2],
    "ftrt:write row": _write_row,
    "ftrt:positive": lambda x: [x[0][x[0] > 0]],
}


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The C++ runtime's stand-in, compiled once."""
    from torch.utils import cpp_extension

    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where ninja is installed
    cpp_extension.load(
        "intarsia_tensorrt_runtime",
        [str(SOURCE)],
        build_directory=str(tmp_path_factory.mktemp("tensorrt_runtime")),
        is_python_module=False,
        extra_cflags=["-O0"],
    )
    torch.library.register_fake("tensorrt::execute_engine", _describe_engine)
    torch._library.register_fake_class("tensorrt::Engine")(_FakeEngine)


class _FakeEngine:
    """Stands for the engine while torch traces."""

    @classmethod
    def __obj_unflatten__(cls, flat: Any) -> _FakeEngine:
        return cls()


def _describe_engine(inputs: Sequence[torch.Tensor], engine: Any) -> list[torch.Tensor]:
    """What an engine returns, told from the metadata in its list; outputs in the memory of inputs are left out."""
    text = getattr(engine, "real_obj", engine).get_serialized_metadata()
    plan, _, hidden = text.partition("|")
    found = [value.clone() for value in PLANS[plan](inputs)]
    return found[: len(found) - int(hidden)]


def fields(plan: str, inputs: Sequence[str], outputs: Sequence[str], **changed: str) -> list[Any]:
    """The list that layout 10 has of an engine, or with `version` another."""
    values: dict[str, Any] = {
        "version": "10",
        "name": "engine",
        "device": GPU,
        "plan": plan.encode(),
        "inputs": "%".join(inputs),
        "outputs": "%".join(outputs),
        "hardware_compatible": "0",
        "metadata": f"{plan}|{changed.get('aliases', '').count('@') // 2}",  # really a pickle, which nobody here reads
        "platform": "linux_x86_64",
        "needs_allocator": "0",
        "strategy": "0",
        "several_devices": "0",
        "aliases": "",
    }
    texts = [*(values | changed).values()]
    return texts[:-1] if texts[0] == "9" else texts


class TRTEngine:
    """The engine of the Python runtime."""

    def __init__(self, serialized_info: list[Any]) -> None:
        self.serialized_info = serialized_info


class EngineSerializer(TRTEngine):
    """What `torch_tensorrt.save` puts in the place of the engines of a program, of whichever runtime they are."""


class TorchTensorRTModule(torch.nn.Module):
    """The module of layouts 9 and 10, on the CPU, with an engine of either runtime."""

    def __init__(self, plan: str, inputs: Sequence[str], outputs: Sequence[str], **options: Any) -> None:
        super().__init__()
        self.input_binding_names = list(inputs)
        self.output_binding_names = list(outputs)
        changed = options.get("changed", {})
        self._aliases: Mapping[str, tuple[str, str]] = options.get("aliased_io", {})
        if changed.get("version") != "9":
            self.aliased_io = self._aliases
        self.symbolic_shape_expressions = options.get("shapes")
        self.target_device = torch.device("cpu")
        self.serialized_engine = plan.encode()
        aliases = "%".join(f"{output}@{name}@{kind}" for output, (name, kind) in self._aliases.items())
        info = fields(plan, inputs, outputs, aliases=aliases, **changed)
        self.engine: Any = TRTEngine(info) if options.get("python") else torch.classes.tensorrt.Engine(info)

    def forward(self, *inputs: Any) -> Any:
        assert len(inputs) == len(self.input_binding_names)
        tensors = [x if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=torch.int64) for x in inputs]
        if isinstance(self.engine, TRTEngine):
            outputs = PLANS[self.serialized_engine.decode()](tensors)
        else:
            outputs = torch.ops.tensorrt.execute_engine(tensors, self.engine)
        own = [i for i, name in enumerate(self.output_binding_names) if name not in self._aliases]
        visible = outputs[: own[-1] + 1] if own else outputs  # the module takes those behind for writes into inputs
        return visible[0] if len(visible) == 1 else tuple(visible)


for _kind, _file in (
    (TorchTensorRTModule, "TorchTensorRTModule"),
    (TRTEngine, "TRTEngine"),
    (EngineSerializer, "TRTEngine"),
):
    _kind.__module__ = f"torch_tensorrt.dynamo.runtime._{_file}"


def compiled(module: GraphModule, args: Any, kwargs: Any = None, *, dynamic: Any = None) -> GraphModule:
    """A hybrid with the metadata that `torch_tensorrt.compile` leaves: of inputs, and a list for each engine's call."""
    describe(module, args, kwargs, dynamic=dynamic)
    for node in module.graph.nodes:
        if node.op == "call_module" and not isinstance(module.get_submodule(str(node.target)), GraphModule):
            value = node.meta["val"]
            node.meta["val"] = list(value) if isinstance(value, (tuple, list)) else [value]
        elif node.op != "placeholder":
            node.meta.clear()
    return module


def sizes(inputs: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """`symbolic_shape_expressions` of float tensors; a text is a sympy expression."""

    def entry(shape: Sequence[Any]) -> dict[str, Any]:
        exprs = [size if isinstance(size, int) else sympy.sympify(size) for size in shape]
        return {"shape_exprs": exprs, "dtype": torch.float32, "name": ""}

    return {"inputs": [entry(shape) for shape in inputs], "outputs": [entry(shape) for shape in outputs]}


class _Context:
    def __init__(self, engine: _CudaEngine) -> None:
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self.profile = 0

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        if self._engine.fails:
            raise RuntimeError("Error in set optimization profile async.")
        self._engine.log.append(f"profile {profile}")
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self._engine.get_tensor_profile_shape(name, self.profile)
        self._shapes[name] = shape
        return all(a <= size <= b for a, size, b in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return address != 0

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        inputs = [torch.empty(self._shapes[one], device="meta") for one in self._engine.inputs]
        return tuple(PLANS[self._engine.plan](inputs)[self._engine.outputs.index(name)].shape)

    def execute_async_v3(self, stream: int) -> bool:
        self._engine.log.append(f"stream {stream}")
        if self._engine.fails:
            return False
        inputs = [self._tensor(name, self._shapes[name]) for name in self._engine.inputs]
        for name, result in zip(self._engine.outputs, PLANS[self._engine.plan](inputs), strict=True):
            if self._addresses[name] not in (self._addresses[one] for one in self._engine.inputs):
                self._tensor(name, tuple(result.shape)).copy_(result)
        return True

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        count = max(torch.Size(shape).numel(), 1)
        memory = (ctypes.c_float * count).from_address(self._addresses[name])
        whole: torch.Tensor = torch.frombuffer(memory, dtype=torch.float32)
        return whole[: torch.Size(shape).numel()].view(shape)


class _CudaEngine:
    """`ICudaEngine` of one kind of engine: float tensors, in CPU memory."""

    def __init__(self, plan: str, facts: TensorRT) -> None:
        self.plan, self.log, self.fails = plan, facts.log, facts.fails
        self.inputs, self.outputs, self._ranges = facts.inputs, facts.outputs, facts.ranges
        self._aliases = facts.aliases
        self.streamable_weights_size = facts.streamable_weights_size
        self.weight_streaming_budget_v2 = facts.streamable_weights_size
        self.num_io_tensors = len(self.inputs) + len(self.outputs)
        self.num_optimization_profiles = len(self._ranges)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> str:
        return "input" if name in self.inputs else "output"

    def get_tensor_dtype(self, name: str) -> str:
        return "float"

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        least, most = self._ranges[profile][name]
        return least, least, most

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._aliases.get(name)

    def get_weight_streaming_automatic_budget(self) -> int:
        assert self.streamable_weights_size > 0
        return self.streamable_weights_size // 4

    def create_execution_context(self) -> _Context:
        self.log.append("context")
        return _Context(self)


class TensorRT:
    """What the stand-in for the module `tensorrt` shall be like.

    Attributes:
        log: What engines were told to do.
        ranges: For each optimization profile the smallest and largest shape of each input.
        aliases: Outputs in the memory of inputs.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.inputs, self.outputs = ["x"], ["output0"]
        self.ranges: list[dict[str, Any]] = [{"x": ((1, 4), (8, 4))}]
        self.aliases: dict[str, str] = {}
        self.streamable_weights_size = 0
        self.fails = self.refuses = False


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[TensorRT]:
    """A module `tensorrt` whose engines compute on the CPU."""
    facts = TensorRT()
    module: Any = ModuleType("tensorrt")

    class ILogger:
        Severity = SimpleNamespace(ERROR="error", INTERNAL_ERROR="internal", WARNING="warning")

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, plan: bytes) -> _CudaEngine | None:
            facts.log.append("deserialize")
            if plan.decode() in PLANS and not facts.refuses:
                return _CudaEngine(plan.decode(), facts)
            self._logger.log("warning", "not told")
            self._logger.log("error", "the engine was built on another device")
            return None

    module.__version__ = "10.13.3.9"
    module.ILogger, module.Runtime = ILogger, Runtime
    module.DataType = SimpleNamespace(FLOAT="float", INT64="int64")
    module.TensorIOMode = SimpleNamespace(INPUT="input")
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(tensorrt_engine, "find_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(tensorrt_engine, "engine_stream", lambda device: nullcontext(7))
    monkeypatch.setattr(tensorrt_engine, "on_device", lambda device: torch.no_grad())
    for cached in (library.dtypes, tensorrt_engine._find_runtime):
        cached.cache_clear()
    yield facts
    for cached in (library.dtypes, tensorrt_engine._find_runtime):
        cached.cache_clear()


@pytest.fixture
def tensorrt_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend as it is found when the installation knows it; engines are forgotten afterwards."""
    entry = EntryPoint("tensorrt", "intarsia.engines.tensorrt:TensorRTBackend", "intarsia.backends")
    monkeypatch.setattr(registry, "entry_points", EntryPoints([entry]).select)
    monkeypatch.setattr(instance, "_entries", {})
    monkeypatch.setattr(instance, "_by_identity", WeakValueDictionary())
    registry.find_backend.cache_clear()
    yield
    registry.find_backend.cache_clear()
