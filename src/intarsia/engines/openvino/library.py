"""OpenVINO itself, imported when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from intarsia.errors import ArgumentError, EngineUnavailable, near_match

if TYPE_CHECKING:
    import torch

DEVICE = "CPU"


def import_openvino() -> ModuleType:
    """The `openvino` module.

    Raises:
        EngineUnavailable: It is not installed, or cannot be imported.
    """
    try:
        import openvino
        import openvino.frontend.pytorch.fx_decoder
    except ImportError as error:
        raise EngineUnavailable(
            "backend 'openvino'",
            found=f"that the module 'openvino' cannot be imported ({error})",
            expected="OpenVINO 2025.4",
            fix="Install the extra intarsia[openvino], or: pip install 'openvino>=2025.4,<2026'",
        ) from error
    module: ModuleType = openvino
    return module


@cache
def find_core() -> Any:
    """OpenVINO's entry point, made once: it loads the plugins, and shares their threads between engines."""
    return import_openvino().Core()


@cache
def element_types() -> Mapping[torch.dtype, Any]:
    """OpenVINO's element type for each torch dtype that may cross into an engine."""
    import torch

    types = import_openvino().Type
    return {
        torch.float32: types.f32,
        torch.float16: types.f16,
        torch.bfloat16: types.bf16,
        torch.int64: types.i64,
        torch.int32: types.i32,
        torch.int16: types.i16,
        torch.int8: types.i8,
        torch.uint8: types.u8,
        torch.bool: types.boolean,
    }


def copy_bytes(data: memoryview) -> Any:
    """A u8 tensor of OpenVINO that owns a copy of `data`: what is made of it may refer to its memory later."""
    openvino = import_openvino()
    tensor = openvino.Tensor(openvino.Type.u8, [len(data)])
    if len(data) > 0:
        tensor.data[:] = data
    return tensor


def complete_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The properties to compile with: those given, and f32 as the precision unless they say otherwise.

    Raises:
        ArgumentError: A name is not a property of the CPU device, or a value cannot be stored with the engine.
    """
    properties = set(find_core().get_property(DEVICE, "SUPPORTED_PROPERTIES"))
    for name, value in options.items():
        if name not in properties:
            raise ArgumentError(
                f"OpenVINO option {name!r}",
                found="no property of that name",
                expected="a property of OpenVINO's CPU device",
                fix=near_match(name, properties) or f"It has {', '.join(sorted(properties))}.",
            )
        if not isinstance(value, str | int | float):
            raise ArgumentError(
                f"OpenVINO option {name!r}",
                found=f"a value of type {type(value).__name__}",
                expected="text, a number or a truth value",
                fix="Write the value as text.",
            )
    return {"INFERENCE_PRECISION_HINT": "f32", **options}
