"""OpenVINO engines at run time: compiled, imported from a blob, or rebuilt from portable IR; and their calls."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from intarsia.core.backend import POSITIONS, WIDENED
from intarsia.core.positions import InputPositions
from intarsia.engines.openvino.library import (
    DEVICE,
    complete_options,
    copy_bytes,
    element_types,
    find_core,
    import_openvino,
)
from intarsia.engines.openvino.source import unpack_model
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError, EngineRefused, shorten

# The one property that leads to the disk. A file brings the options of its engines, and must not choose a place here.
_PLACE = "WEIGHTS_PATH"


class OpenVINOEngine:
    """A compiled model that maps tensors to tensors; see `intarsia.core.backend.Engine`.

    Each call has an inference request of its own, taken from those that are idle. Inputs are read where they lie;
    outputs are copied out of the request's memory.

    Args:
        compiled: OpenVINO's compiled model.
        options: What `build_engine` stored beside it: inputs that OpenVINO takes positions from, which it does not
            check, and tensors without axes, which it takes and gives with one.
    """

    def __init__(self, compiled: Any, options: Mapping[str, Any]) -> None:
        self._positions = [InputPositions(**fields) for fields in options.get(POSITIONS, ())]
        widened = options.get(WIDENED, {})
        self._wide_inputs = frozenset(widened.get("inputs", ()))
        self._wide_outputs = tuple(widened.get("outputs", ()))
        dtypes = {element: dtype for dtype, element in element_types().items()}
        self._compiled = compiled
        self._tensor = import_openvino().Tensor
        self._input_types = [port.element_type for port in compiled.inputs]
        self._output_dtypes = [dtypes[port.element_type] for port in compiled.outputs]
        self._idle: list[Any] = []

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine.

        Raises:
            ArgumentError: An input is not in the CPU's memory.
            PositionError: An input holds a position outside of what it is a position in.
            EngineError: OpenVINO fails.
        """
        for positions in self._positions:
            positions.check(inputs, "engine input")
        # OpenVINO keeps no reference to memory that it is handed: these lists do until the call has ended.
        held = [_readable(i, tensor) for i, tensor in enumerate(inputs)]
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        try:
            for i, tensor in enumerate(held):
                request.set_input_tensor(i, self._wrap(i, tensor))
            request.infer(share_outputs=True)
        except RuntimeError as error:
            raise EngineError(
                "OpenVINO engine",
                found=f"a failed call ({_told(error)})",
                expected="a result",
                fix="Call it with the shapes that it was built for; if it was, keep the operator in torch with "
                "torch_executed_ops.",
            ) from error
        results = [_copy(request.get_output_tensor(i), dtype) for i, dtype in enumerate(self._output_dtypes)]
        self._idle.append(request)
        for i in self._wide_outputs:
            results[i] = results[i].reshape(())
        return results

    def _wrap(self, i: int, tensor: torch.Tensor) -> Any:
        """The memory of a tensor as one of OpenVINO's."""
        if tensor.numel() == 0:
            return self._tensor(self._input_types[i], list(tensor.shape))
        # OpenVINO wraps no array without axes.
        array = _array(tensor) if tensor.dim() > 0 else _array(tensor.reshape(1))
        return self._tensor(array, (1,) if i in self._wide_inputs else tensor.shape, self._input_types[i])


def load_engine(payload: memoryview, options: Mapping[str, Any]) -> OpenVINOEngine:
    """The engine of a blob; see `OpenVINOBackend.load`."""
    properties = _read_properties(options)
    try:
        return OpenVINOEngine(find_core().import_model(copy_bytes(payload), DEVICE, properties), options)
    except RuntimeError as error:
        raise EngineRefused(
            "OpenVINO blob",
            found=f"that OpenVINO {import_openvino().get_version()} on this machine refuses it ({_told(error)})",
            expected="a blob that this version made on this kind of processor",
            fix="Compile the model here, or keep the portable source in the engine.",
        ) from error


def rebuild_engine(source: memoryview, options: Mapping[str, Any]) -> OpenVINOEngine:
    """The engine of portable IR; see `OpenVINOBackend.rebuild`."""
    properties = _read_properties(options)
    try:
        model = unpack_model(source)
    except (RuntimeError, struct.error) as error:
        raise EngineBuildFailed(
            "OpenVINO IR",
            found=f"that OpenVINO cannot read it ({_told(error)})",
            expected="IR of this version or an earlier one",
            fix="Compile the model again with this version.",
        ) from error
    return OpenVINOEngine(compile_model(model, properties), options)


def _read_properties(options: Mapping[str, Any]) -> dict[str, Any]:
    """The properties to compile with, of what `build_engine` stored."""
    return complete_options(
        {name: value for name, value in options.items() if name not in (POSITIONS, WIDENED, _PLACE)}
    )


def compile_model(model: Any, properties: Mapping[str, Any]) -> Any:
    """Compile an OpenVINO model for the CPU.

    Raises:
        ArgumentError: OpenVINO does not take the value of a property.
        EngineBuildFailed: OpenVINO refuses the model.
    """
    try:
        return find_core().compile_model(model, DEVICE, dict(properties))
    except RuntimeError as error:
        check_values(properties)
        raise EngineBuildFailed(
            "OpenVINO",
            found=f"that it cannot compile the model ({_told(error)})",
            expected="a model that it compiles",
            fix="Keep the operator concerned in torch with torch_executed_ops.",
        ) from error


def check_values(properties: Mapping[str, Any]) -> None:
    """Name the property whose value a model that does nothing cannot be compiled with.

    Raises:
        ArgumentError: OpenVINO does not take the value.
    """
    openvino = import_openvino()
    parameter = openvino.opset13.parameter([1], openvino.Type.f32)
    nothing = openvino.Model([openvino.opset13.result(parameter)], [parameter], "nothing")
    for name, value in properties.items():
        _check_value(nothing, name, value)


def _check_value(nothing: Any, name: str, value: Any) -> None:
    try:
        find_core().compile_model(nothing, DEVICE, {name: value})
    except RuntimeError as error:
        raise ArgumentError(
            f"OpenVINO option {name!r}",
            found=f"the value {value!r} ({_told(error)})",
            expected="a value that OpenVINO takes",
            fix="Look the property up in OpenVINO's documentation.",
        ) from error


def _readable(i: int, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where its memory cannot be read as one row-major array."""
    if not tensor.is_cpu:
        raise ArgumentError(
            f"engine input {i}", found=f"a tensor on {tensor.device}", expected="the CPU", fix="Move it with .cpu()."
        )
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous()


def _array(tensor: torch.Tensor) -> Any:
    # NumPy has no bfloat16; whoever reads the array is told the type, so only the bytes matter.
    return tensor.detach().view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.detach().numpy()


def _copy(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    # NumPy copies in this thread. A parallel copy by torch would leave its workers spinning on the engine's cores.
    source = tensor.data
    copy = torch.empty(source.shape, dtype=dtype, device="cpu")
    np.copyto(_array(copy), source.view(np.int16) if dtype is torch.bfloat16 else source)
    return copy


def _told(error: Exception) -> str:
    """OpenVINO's message without its source positions."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = " ".join(line for line in lines if line and not re.match(r"(Exception from|Check) .*:\d+", line))
    return shorten(told, 400)
