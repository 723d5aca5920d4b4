"""The TensorRT backend, with a stand-in for the module `tensorrt` whose engines compute on the CPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch

import intarsia
from builders.hybrids import tensor
from builders.tensorrt import TensorRT, fields
from intarsia.core.backend import Engine
from intarsia.core.container import EngineContainer
from intarsia.core.registry import find_backend
from intarsia.engines.tensorrt import engine as tensorrt_engine
from intarsia.engines.tensorrt import installation
from intarsia.engines.tensorrt.containers import pack
from intarsia.engines.tensorrt.engine import find_device
from intarsia.engines.tensorrt.layout import EngineInfo
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError, EngineRefused, EngineUnavailable

pytestmark = pytest.mark.usefixtures("tensorrt_backend")
OPTIONS: dict[str, Any] = {"inputs": ["x"], "outputs": ["output0"], "into": []}


def load(plan: str, options: dict[str, Any] = OPTIONS) -> Engine:
    return find_backend("tensorrt").load(memoryview(plan.encode()), options)


def test_a_call_computes(tensorrt: TensorRT) -> None:
    engine = load("ftrt:relu")
    x = tensor(1, 4, 8).T[:3, :]
    assert not x.is_contiguous()
    assert torch.equal(engine([x])[0], x.relu())
    assert tensorrt.log == ["deserialize", "context", "stream 7"]


def test_an_idle_context_is_used_again(tensorrt: TensorRT) -> None:
    engine = load("ftrt:relu")
    for _ in range(3):
        engine([tensor(1, 2, 4)])
    assert tensorrt.log.count("context") == 1


@pytest.mark.parametrize(("streamable", "budget"), [(0, 0), (400, 100)])
def test_weights_that_an_engine_fetches_from_the_host(streamable: int, budget: int, tensorrt: TensorRT) -> None:
    tensorrt.streamable_weights_size = streamable
    engine: Any = load("ftrt:relu")
    assert engine._engine.weight_streaming_budget_v2 == budget


class Stream:
    """A stream of CUDA, by its handle."""

    def __init__(self, handle: Any) -> None:
        self.cuda_stream = handle if isinstance(handle, int) else 9
        self.waits: list[int] = []

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other.cuda_stream)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("current", [0, 5])
def test_a_call_keeps_the_order_of_the_current_stream_and_leaves_the_default_one(
    current: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {handle: Stream(handle) for handle in (0, 5)}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[current])
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: streams[0])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(tensorrt_engine, "_own_stream", cache(Stream))
    with suppress(EngineError), tensorrt_engine.engine_stream(torch.device("cuda", 0)) as handle:
        assert handle == (current or 9)
        assert streams[current].waits == []
        if fails:  # what was queued before still reads the inputs
            raise EngineError("engine", found="a failed call", expected="a result", fix="")
    own: Any = tensorrt_engine._own_stream(torch.device("cuda", 0))
    assert (own.waits, streams[current].waits) == (([0], [9]) if current == 0 else ([], []))


def test_calls_from_several_threads_share_no_context(tensorrt: TensorRT) -> None:
    engine = load("ftrt:relu")
    inputs = [tensor(seed, 1 + seed % 8, 4) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: engine([x])[0], inputs))
    assert all(torch.equal(found, x.relu()) for found, x in zip(results, inputs, strict=True))


def test_the_first_optimization_profile_that_fits(tensorrt: TensorRT) -> None:
    tensorrt.ranges = [{"x": ((1, 4), (2, 4))}, {"x": ((3, 4), (8, 4))}]
    engine = load("ftrt:repeat")
    for rows in (5, 6, 1):
        x = tensor(rows, rows, 4)
        assert torch.equal(engine([x])[0], torch.cat([x, x]))
    assert [entry for entry in tensorrt.log if entry.startswith("profile")] == ["profile 1", "profile 0"]


def test_an_optimization_profile_that_is_refused(tensorrt: TensorRT) -> None:
    tensorrt.ranges = [{"x": ((1, 4), (2, 4))}, {"x": ((3, 4), (8, 4))}]
    tensorrt.fails = True
    with pytest.raises(EngineError, match="found that TensorRT refuses optimization profile 1"):
        load("ftrt:repeat")([tensor(1, 5, 4)])


@pytest.mark.parametrize("shape", [(9, 4), (2, 5), (4,)])
def test_sizes_that_no_profile_allows(shape: tuple[int, ...], tensorrt: TensorRT) -> None:
    tensorrt.ranges = [{"x": ((1, 4), (2, 4))}, {"x": ((3, 4), (8, 4))}]
    wanted = f"inputs of the shapes x {list(shape)}, expected x [1, 4] to [2, 4] or x [3, 4] to [8, 4]"
    with pytest.raises(ArgumentError, match=re.escape(wanted)):
        load("ftrt:relu")([torch.ones(shape)])


def test_no_elements(tensorrt: TensorRT) -> None:
    tensorrt.ranges = [{"x": ((0, 4), (8, 4))}]
    assert load("ftrt:relu")([torch.ones(0, 4)])[0].shape == (0, 4)


def test_an_input_on_another_device(tensorrt: TensorRT) -> None:
    with pytest.raises(ArgumentError, match="engine input 0: found a tensor on meta, expected cpu"):
        load("ftrt:relu")([torch.ones(2, 4, device="meta")])


def test_an_engine_of_another_gpu_or_version(tensorrt: TensorRT) -> None:
    told = r"TensorRT 10.13.3.9 refuses it on this GPU \(the engine was built on another device\)"
    with pytest.raises(EngineRefused, match=told):
        load("ftrt:of another GPU")


def test_a_call_that_fails(tensorrt: TensorRT) -> None:
    tensorrt.fails = True
    with pytest.raises(EngineError, match="found that TensorRT refuses the call"):
        load("ftrt:relu")([tensor(1, 2, 4)])


@pytest.mark.parametrize(
    ("options", "aliases"),
    [({"outputs": ["y"]}, {}), ({"inputs": ["x", "y"]}, {}), ({}, {"output0": "x"})],
)
def test_a_container_that_says_something_else_than_its_engine(
    options: dict[str, Any], aliases: dict[str, str], tensorrt: TensorRT
) -> None:
    tensorrt.aliases = aliases
    with pytest.raises(EngineError, match=r"expected inputs \[.*as its container says"):
        load("ftrt:relu", OPTIONS | options)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Says which TensorRT and which GPU are here."""

    def be(version: str, capability: tuple[int, int] | None) -> None:
        monkeypatch.setattr(installation, "find_version", lambda: version)
        monkeypatch.setattr(installation, "find_capability", lambda: capability)

    return be


def container(**changed: str) -> EngineContainer:
    info = EngineInfo.read(fields("ftrt:relu", ["x"], ["output0"], **changed), "it")
    return EngineContainer.unpack(pack(info, "(f32[2]) -> (f32[2])", "it").numpy().data)


@pytest.mark.usefixtures("tensorrt")
@pytest.mark.parametrize(
    ("hardware_compatible", "version", "capability", "reason"),
    [
        ("0", "10.13.3.9", (8, 9), None),
        ("0", "10.13.3.7", (8, 9), None),
        ("0", "10.13.2.6", (8, 9), "TensorRT 10.13.3.9 built it, and 10.13.2.6 is installed here"),
        ("0", "", (8, 9), "TensorRT 10.13.3.9 built it, and none is installed here"),
        ("0", "10.13.3.9", (9, 0), "it was built for compute capability 8.9, and this GPU has 9.0"),
        ("0", "10.13.3.9", None, None),
        ("1", "10.13.3.9", (9, 0), None),
        ("1", "10.13.3.9", (8, 0), None),
        ("1", "10.13.3.9", (7, 5), "it was built for compute capability 8.0 or newer, and this GPU has 7.5"),
    ],
)
def test_whether_an_engine_fits_is_told_without_the_library(
    hardware_compatible: str, version: str, capability: Any, reason: str | None, machine: Any
) -> None:
    found = container(hardware_compatible=hardware_compatible)
    machine(version, capability)
    assert find_backend("tensorrt").accepts(found.backend_version, found.target) == reason


def test_an_engine_whose_version_is_not_known(machine: Any) -> None:
    machine("10.13.3.9", (8, 9))
    found = container()
    assert (found.backend_version, found.target) == (
        "unknown",
        "compute capability 8.9 (built on NVIDIA L4), linux_x86_64",
    )
    assert find_backend("tensorrt").accepts(found.backend_version, found.target) is None


def test_what_is_missing(machine: Any) -> None:
    tensorrt = find_backend("tensorrt")
    machine("", None)
    assert tensorrt.available() == "TensorRT is not installed (install the extra intarsia[tensorrt])"
    machine("10.13.3.9", None)
    assert tensorrt.available() == "torch finds no CUDA GPU"
    machine("10.13.3.9", (8, 9))
    assert tensorrt.available() is None


@pytest.mark.usefixtures("tensorrt")
def test_an_old_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tensorrt"], "__version__", "8.6.1")
    with pytest.raises(EngineUnavailable, match=r"found TensorRT 8\.6\.1, expected TensorRT 10 or newer"):
        load("ftrt:relu")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineUnavailable, match="no CUDA GPU that torch can use"):
        find_device()


def test_it_builds_nothing() -> None:
    with pytest.raises(EngineUnavailable, match=r"runs engines and builds none.*torch_tensorrt\.compile"):
        intarsia.compile(torch.nn.ReLU(), (torch.ones(2),), backend="tensorrt")
    with pytest.raises(EngineBuildFailed, match="Torch-TensorRT keeps none"):
        find_backend("tensorrt").rebuild(memoryview(b""), {})
