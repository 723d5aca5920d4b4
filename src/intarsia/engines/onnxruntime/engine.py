"""ONNX Runtime engines at run time: sessions made of portable forms, and their calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from intarsia.core.backend import MASKS, POSITIONS
from intarsia.core.positions import InputPositions
from intarsia.core.signature import EngineSignature
from intarsia.engines.onnxruntime.library import (
    CPU,
    NOWHERE,
    SessionOptions,
    element_types,
    import_onnxruntime,
    read_options,
)
from intarsia.engines.onnxruntime.source import SeparateModel, Weight, unpack_model
from intarsia.errors import (
    ArgumentError,
    EngineBuildFailed,
    EngineError,
    EngineUnavailable,
    PositionError,
    first_line,
    shorten,
)

Shapes = tuple[tuple[int, ...], ...]

_FATAL = 4  # of ONNX Runtime's severities of a log: what goes wrong is an exception here
_REMEMBERED_SHAPES = 256


class ONNXRuntimeEngine:
    """A session that maps tensors to tensors; see `intarsia.core.backend.Engine`.

    Inputs are read where they lie, and outputs are written where they are returned: a call binds the addresses of
    torch's memory. Each call has bindings of its own, taken from those that are idle.

    Args:
        session: ONNX Runtime's session.
        signature: What it takes and gives.
        options: What `build_engine` stored beside it: inputs that hold positions, for messages.
    """

    def __init__(self, session: Any, signature: EngineSignature, options: Mapping[str, Any]) -> None:
        self._positions = [InputPositions(name=str(one["input"]), **one) for one in options.get(POSITIONS, ())]
        self._session = session
        self._signature = signature
        types = element_types()
        self._inputs = [
            (port.name, types[tensor.dtype])
            for port, tensor in zip(session.get_inputs(), signature.inputs, strict=True)
        ]
        self._outputs = [
            (port.name, types[tensor.dtype], tensor.dtype)
            for port, tensor in zip(session.get_outputs(), signature.outputs, strict=True)
        ]
        self._shapes: dict[Shapes, list[tuple[int, ...]]] = {}
        self._idle: list[Any] = []
        # ONNX Runtime takes no null for the address of a tensor without elements, which torch gives.
        self._nothing = torch.empty(1, dtype=torch.int64)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine.

        Raises:
            ArgumentError: An input is not in the CPU's memory.
            PositionError: A position is outside of the tensor that it counts in.
            EngineError: ONNX Runtime fails.
        """
        # A binding keeps addresses alone: these lists keep the memory until the call has ended.
        held = [_readable(i, tensor) for i, tensor in enumerate(inputs)]
        results = [
            torch.empty(shape, dtype=dtype, device="cpu")
            for shape, (_, _, dtype) in zip(self._output_shapes(held), self._outputs, strict=True)
        ]
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = self._session.io_binding()
        for (name, element_type), tensor in zip(self._inputs, held, strict=True):
            binding.bind_input(name, "cpu", 0, element_type, tuple(tensor.shape), self._address(tensor))
        for (name, element_type, _), tensor in zip(self._outputs, results, strict=True):
            binding.bind_output(name, "cpu", 0, element_type, tuple(tensor.shape), self._address(tensor))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            failed = _failed(error)
            if isinstance(failed, PositionError):
                for positions in self._positions:  # these know the size
                    positions.check(held, "engine input")
            raise failed from error
        self._idle.append(binding)
        return results

    def _address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() or self._nothing.data_ptr()

    def _output_shapes(self, inputs: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
        given = tuple(tuple(tensor.shape) for tensor in inputs)
        shapes = self._shapes.get(given)
        if shapes is None:
            shapes = [tuple(map(int, shape)) for shape in self._signature.output_shapes(given)]
            if len(self._shapes) < _REMEMBERED_SHAPES:
                self._shapes[given] = shapes
        return shapes


def load_engine(source: memoryview, options: Mapping[str, Any]) -> ONNXRuntimeEngine:
    """The engine of a portable form; see `ONNXRuntimeBackend.rebuild`."""
    chosen = read_options({name: value for name, value in options.items() if name not in {POSITIONS, MASKS}})
    separate = unpack_model(source)
    return ONNXRuntimeEngine(make_session(separate, chosen), EngineSignature.parse(separate.signature), options)


def make_session(separate: SeparateModel, options: SessionOptions) -> Any:
    """ONNX Runtime's session of a model; it has copies of the weights.

    Raises:
        EngineBuildFailed: ONNX Runtime refuses the model.
        EngineUnavailable: A provider does not start.
    """
    onnxruntime = import_onnxruntime()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _FATAL
    settings.intra_op_num_threads = options.threads
    try:
        values = [_value(onnxruntime, weight) for weight in separate.weights]
        settings.add_external_initializers([weight.name for weight in separate.weights], values)
        # Without `enable_fallback`, ONNX Runtime would print that a provider failed, and go on with others.
        session = onnxruntime.InferenceSession(
            separate.model,
            settings,
            providers=list(options.providers),
            enable_fallback=0,
            # ONNX Runtime 1.23 makes an operator of it that is there for f32 alone.
            disabled_optimizers=["MatmulTransposeFusion"] if separate.has_doubles else None,
        )
    except Exception as error:
        raise EngineBuildFailed(
            "ONNX Runtime",
            found=f"that it refuses the model ({told(error)})",
            expected="a model that it takes",
            fix="Keep the operator concerned in torch with torch_executed_ops.",
        ) from error
    missing = [name for name in options.providers if name not in session.get_providers()]
    if missing:
        raise EngineUnavailable(
            f"ONNX Runtime provider {missing[0]!r}",
            found="that it does not start on this machine",
            expected="the libraries and the device that it needs",
            fix=f'Install them, or leave it out: options={{"providers": ["{CPU}"]}}.',
        )
    return session


def _value(onnxruntime: Any, weight: Weight) -> Any:
    """A weight's bytes as one of ONNX Runtime's values; not copied."""
    # NumPy has no bfloat16; the number tells the type, so only the width of the elements matters.
    (width,) = (dtype.itemsize for dtype, number in element_types().items() if number == weight.element_type)
    array = np.frombuffer(weight.data, f"u{width}").reshape(weight.shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, weight.element_type)


def _readable(i: int, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where its memory cannot be read as one row-major array."""
    if not tensor.is_cpu:
        raise ArgumentError(
            f"engine input {i}", found=f"a tensor on {tensor.device}", expected="the CPU", fix="Move it with .cpu()."
        )
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous()


# What its operators say of a position outside of a tensor, and which, where they tell.
_POSITION = re.compile(
    r"idx=(-?\d+) must be within the inclusive range|invalid index found, index = (-?\d+)|Out of range value in index"
)


def _failed(error: Exception) -> EngineError | PositionError:
    """The error of a failed call: that of a position which no tensor has, or another."""
    found = _POSITION.search(str(error))
    if found:
        position = int(found[1] or found[2] or NOWHERE)
        return PositionError(
            "ONNX Runtime engine",
            found="a position outside of a tensor" if position == NOWHERE else f"position {position}",
            expected="positions inside of the tensor that is read",
            fix="Pass such positions.",
        )
    return EngineError(
        "ONNX Runtime engine",
        found=f"a failed call ({told(error)})",
        expected="a result",
        fix="Call it with the shapes that it was built for; if it was, keep the operator in torch with "
        "torch_executed_ops.",
    )


def told(error: Exception) -> str:
    """ONNX Runtime's message without its codes and source positions."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", first_line(error))
    return shorten(re.sub(r"\S*/\S+\.(?:cc|h):\d+ ", "", text), 400)
