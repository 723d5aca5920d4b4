"""TensorRT engines at run time, by TensorRT's Python interface: deserialised, and called in the order of a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from intarsia.engines.tensorrt.library import dtypes, import_tensorrt, new_logger
from intarsia.errors import ArgumentError, EngineError, EngineRefused, EngineUnavailable, shorten

_messages: list[str] = []
_lock = threading.Lock()

Range = tuple[tuple[int, ...], tuple[int, ...]]
"""Smallest and largest sizes that an optimization profile allows for an input."""


@dataclass
class _Context:
    """An execution context of TensorRT, and its active optimization profile."""

    context: Any
    profile: int = 0


class TensorRTEngine:
    """A TensorRT engine that maps tensors to tensors; see `intarsia.core.backend.Engine`.

    A call is queued in the order of torch's current stream, as torch's own operators are. Contexts are not shared by
    streams or by threads: an idle one goes to the next call on its stream.

    Args:
        engine: TensorRT's engine.
        options: Names of inputs and outputs in their order, and which output goes into which input.
        device: The GPU on which it was deserialised.
    """

    def __init__(self, engine: Any, options: Mapping[str, Any], device: torch.device) -> None:
        self._engine = engine
        self._device = device
        self._inputs: list[str] = list(options["inputs"])
        self._outputs: list[str] = list(options["outputs"])
        self._into = dict(options["into"])
        self._input_dtypes = [dtypes()[engine.get_tensor_dtype(name)] for name in self._inputs]
        self._output_dtypes = [dtypes()[engine.get_tensor_dtype(name)] for name in self._outputs]
        self._on_host = [bool(engine.is_shape_inference_io(name)) for name in self._inputs]
        self._profiles = [self._ranges(profile) for profile in range(engine.num_optimization_profiles)]
        self._idle: dict[int, list[_Context]] = {}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine.

        Raises:
            ArgumentError: An input is on another device, or of sizes that no optimization profile of the engine allows.
            EngineError: TensorRT fails.
        """
        held = [self._readable(i, tensor) for i, tensor in enumerate(inputs)]
        profile = self._find_profile(held)
        with on_device(self._device), engine_stream(self._device) as stream:
            context = self._take(stream)
            self._select(context, profile, stream)
            for name, tensor, is_on_host in zip(self._inputs, held, self._on_host, strict=True):
                if not is_on_host:
                    self._must(context.context.set_input_shape(name, tuple(tensor.shape)), f"the shape of {name!r}")
                self._bind(context, name, tensor)
            outputs = [self._allocate(context, i, held) for i in range(len(self._outputs))]
            for name, tensor in zip(self._outputs, outputs, strict=True):
                self._bind(context, name, tensor)
            self._must(context.context.execute_async_v3(stream), "the call")
            self._idle.setdefault(stream, []).append(context)
        return outputs

    def _ranges(self, profile: int) -> list[Range | None]:
        """What a profile allows for each input; None for those whose values are sizes."""
        ranges: list[Range | None] = []
        for name, is_on_host in zip(self._inputs, self._on_host, strict=True):
            sizes = None if is_on_host else self._engine.get_tensor_profile_shape(name, profile)
            ranges.append(None if sizes is None else (tuple(sizes[0]), tuple(sizes[2])))
        return ranges

    def _find_profile(self, inputs: Sequence[torch.Tensor]) -> int:
        for profile, ranges in enumerate(self._profiles):
            if all(_fits(tensor, known) for tensor, known in zip(inputs, ranges, strict=True)):
                return profile
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in zip(self._inputs, inputs, strict=True))
        allowed = " or ".join(self._told(ranges) for ranges in self._profiles)
        raise ArgumentError(
            "TensorRT engine",
            found=f"inputs of the shapes {shapes}",
            expected=allowed,
            fix="Pass sizes in these ranges, or compile for others (torch_tensorrt.Input, min_shape and max_shape).",
        )

    def _told(self, ranges: Sequence[Range | None]) -> str:
        pairs = zip(self._inputs, ranges, strict=True)
        return ", ".join(f"{name} {list(known[0])} to {list(known[1])}" for name, known in pairs if known)

    def _readable(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the engine reads it: row by row, in the memory of its GPU, or of the host for sizes."""
        if self._on_host[i]:
            return tensor.to("cpu", self._input_dtypes[i]).contiguous()
        if tensor.device != self._device:
            raise ArgumentError(
                f"engine input {i}",
                found=f"a tensor on {tensor.device}",
                expected=f"{self._device}, where the engine is",
                fix=f"Move it with .to({str(self._device)!r}).",
            )
        return (tensor.resolve_neg() if tensor.is_neg() else tensor).contiguous()

    def _take(self, stream: int) -> _Context:
        try:
            return self._idle[stream].pop()
        except (KeyError, IndexError):
            made = self._engine.create_execution_context()
        self._must(made is not None, "making an execution context")
        return _Context(made)

    def _select(self, context: _Context, profile: int, stream: int) -> None:
        if context.profile != profile:
            try:
                chosen = context.context.set_optimization_profile_async(profile, stream)
            except RuntimeError:  # the only one of these functions that raises
                chosen = False
            self._must(chosen, f"optimization profile {profile}")
            context.profile = profile

    def _allocate(self, context: _Context, i: int, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        if i in self._into:
            return inputs[self._into[i]]
        shape = tuple(context.context.get_tensor_shape(self._outputs[i]))
        self._must(all(size >= 0 for size in shape), f"the size of {self._outputs[i]!r}")
        return torch.empty(shape, dtype=self._output_dtypes[i], device=self._device)

    def _bind(self, context: _Context, name: str, tensor: torch.Tensor) -> None:
        address = tensor.data_ptr() or _nothing(self._device).data_ptr()
        self._must(context.context.set_tensor_address(name, address), f"the memory of {name!r}")

    def _must(self, done: object, what: str) -> None:
        if not done:
            raise EngineError(
                "TensorRT engine",
                found=f"that TensorRT refuses {what}{_told_by_tensorrt()}",
                expected="a result",
                fix="Call it with the shapes that it was built for.",
            )


def load_engine(payload: memoryview, options: Mapping[str, Any]) -> TensorRTEngine:
    """The engine of TensorRT's own bytes; see `TensorRTBackend.load`."""
    trt = import_tensorrt()
    device = find_device()
    with _lock:
        _messages.clear()
        engine = _find_runtime().deserialize_cuda_engine(bytes(payload))
        if engine is None:
            raise EngineRefused(
                "TensorRT engine",
                found=f"that TensorRT {trt.__version__} refuses it on this GPU{_told_by_tensorrt()}",
                expected="an engine that this version built, for this kind of GPU",
                fix="Run it where it was built, or compile the model again here with Torch-TensorRT.",
            )
    _check_names(engine, trt, options)
    _stream_weights(engine)
    return TensorRTEngine(engine, options, device)


def find_device() -> torch.device:
    """The GPU that torch uses now.

    Raises:
        EngineUnavailable: There is none.
    """
    if not torch.cuda.is_available():
        raise EngineUnavailable(
            "backend 'tensorrt'",
            found="no CUDA GPU that torch can use",
            expected="one",
            fix="Run it on a machine with an NVIDIA GPU, with a build of torch for CUDA.",
        )
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def engine_stream(device: torch.device) -> Iterator[int]:
    """The handle of the stream that a call runs on: torch's current one, or one that keeps its order.

    TensorRT synchronises the whole GPU on each call on the default stream. There another stream runs the engine: it
    waits for what was queued, and what is queued later waits for it, so memory can be freed as after a torch operator.
    """
    current = torch.cuda.current_stream(device)
    if current != torch.cuda.default_stream(device):
        yield int(current.cuda_stream)
        return
    own = _own_stream(device)
    own.wait_stream(current)
    try:
        yield int(own.cuda_stream)
    finally:
        current.wait_stream(own)


def on_device(device: torch.device) -> Any:
    """Makes a GPU the current one for a while."""
    return torch.cuda.device(device)


@cache
def _find_runtime() -> Any:
    # TensorRT knows one logger for the whole process, whichever runtime it came with.
    return import_tensorrt().Runtime(new_logger(_messages.append))


@cache
def _own_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    """Memory for tensors without elements, which have no address; TensorRT wants one."""
    return torch.empty(1, dtype=torch.uint8, device=device)


def _check_names(engine: Any, trt: Any, options: Mapping[str, Any]) -> None:
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    is_input = {name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
    inputs, outputs = options["inputs"], options["outputs"]
    into = {outputs[output]: inputs[into] for output, into in options["into"]}
    # Older versions write into no input, and have no function that tells.
    aliased = getattr(engine, "get_aliased_input_tensor", lambda _: None)
    aliases = {name: aliased(name) for name, is_one in is_input.items() if not is_one and aliased(name)}
    if (
        is_input != {**dict.fromkeys(outputs, False), **dict.fromkeys(inputs, True)}
        or not aliases.items() <= into.items()
    ):
        raise EngineError(
            "TensorRT engine",
            found=f"the inputs and outputs {sorted(names)}, of which {aliases or 'none'} share memory",
            expected=f"inputs {inputs} and outputs {outputs}, of which {into or 'none'} do, as its container says",
            fix="Save the hybrid again.",
        )


def _stream_weights(engine: Any) -> None:
    """Keep as many weights on the GPU as TensorRT advises, of an engine that was built to fetch them from the host.

    Without this it keeps all, which is what such an engine was built to avoid; Torch-TensorRT does the same.
    """
    if engine.streamable_weights_size > 0:
        engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()


def _told_by_tensorrt() -> str:
    return f" ({shorten('; '.join(_messages[-3:]), 400)})" if _messages else ""


def _fits(tensor: torch.Tensor, known: Range | None) -> bool:
    if known is None:
        return True
    least, most = known
    return tensor.dim() == len(least) and all(
        a <= size <= b for a, size, b in zip(least, tensor.shape, most, strict=True)
    )
