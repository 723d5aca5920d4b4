"""TensorRT itself, imported when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch

from intarsia.errors import EngineUnavailable

_OLDEST = 10


def import_tensorrt() -> ModuleType:
    """The `tensorrt` module.

    Raises:
        EngineUnavailable: It is not installed, cannot be imported, or is older than 10.
    """
    try:
        import tensorrt
    except (ImportError, OSError) as error:
        raise EngineUnavailable(
            "backend 'tensorrt'",
            found=f"that the module 'tensorrt' cannot be imported ({error})",
            expected=f"TensorRT {_OLDEST} or newer",
            fix="Install the extra intarsia[tensorrt], in the version of TensorRT that built the engine.",
        ) from error
    module: ModuleType = tensorrt
    if int(module.__version__.partition(".")[0]) < _OLDEST:
        raise EngineUnavailable(
            "backend 'tensorrt'",
            found=f"TensorRT {module.__version__}",
            expected=f"TensorRT {_OLDEST} or newer",
            fix="Install the version of TensorRT that built the engine.",
        )
    return module


@cache
def dtypes() -> Mapping[Any, torch.dtype]:
    """The torch dtype of each of TensorRT's that has one."""
    names = {
        "FLOAT": torch.float32,
        "HALF": torch.float16,
        "BF16": torch.bfloat16,
        "INT64": torch.int64,
        "INT32": torch.int32,
        "INT8": torch.int8,
        "UINT8": torch.uint8,
        "BOOL": torch.bool,
        "FP8": torch.float8_e4m3fn,
    }
    types = import_tensorrt().DataType
    return {getattr(types, name): dtype for name, dtype in names.items() if hasattr(types, name)}


def new_logger(keep: Callable[[str], None]) -> Any:
    """A logger of TensorRT that hands warnings and errors on, and prints nothing."""
    trt = import_tensorrt()

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                keep(message)

    return Logger()
