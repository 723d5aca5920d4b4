"""ONNX Runtime and torch's exporter to ONNX, imported when they are first needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from intarsia.errors import ArgumentError, EngineUnavailable, near_match

if TYPE_CHECKING:
    import torch

OPSET = 20
"""Version of the ONNX operators: torch's own default, and old enough for every ONNX Runtime since 1.18."""

NOWHERE = 2**62
"""A position outside of every tensor, for those that torch refuses: ONNX Runtime takes -1 for the last one."""

CPU = "CPUExecutionProvider"
_OPTIONS = ("intra_op_num_threads", "providers")


def import_onnxruntime() -> ModuleType:
    """The `onnxruntime` module.

    Raises:
        EngineUnavailable: It is not installed, or cannot be imported.
    """
    # ONNX Runtime sends facts about models and machines to its makers unless this is set before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise _unavailable("onnxruntime", error) from error
    module: ModuleType = onnxruntime
    return module


def import_onnx() -> ModuleType:
    """The `onnx` module, which reads models.

    Raises:
        EngineUnavailable: It is not installed, or cannot be imported.
    """
    import_onnxruntime()
    try:
        import onnx
    except ImportError as error:
        raise _unavailable("onnx", error) from error
    module: ModuleType = onnx
    return module


def import_exporter() -> None:
    """See that torch can export to ONNX.

    Raises:
        EngineUnavailable: A module that it needs is not installed, or cannot be imported.
    """
    import_onnx()
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise _unavailable("onnxscript", error) from error


def _unavailable(module: str, error: ImportError) -> EngineUnavailable:
    return EngineUnavailable(
        "backend 'onnxruntime'",
        found=f"that the module {module!r} cannot be imported ({error})",
        expected="ONNX Runtime, onnx and onnxscript",
        fix="Install the extra intarsia[onnxruntime], or: pip install onnxruntime onnx onnxscript",
    )


@cache
def element_types() -> Mapping[torch.dtype, int]:
    """ONNX's number for each torch dtype that may cross into an engine."""
    import torch

    return {
        torch.float32: 1,
        torch.uint8: 2,
        torch.int8: 3,
        torch.int16: 5,
        torch.int32: 6,
        torch.int64: 7,
        torch.bool: 9,
        torch.float16: 10,
        torch.float64: 11,
        torch.bfloat16: 16,
    }


@dataclass(frozen=True)
class SessionOptions:
    """What an engine's session is made with.

    Attributes:
        providers: Names of the execution providers, in the order in which they are asked; the CPU's is the last.
        threads: How many threads share an operator's work; 0 lets ONNX Runtime choose.
    """

    providers: tuple[str, ...]
    threads: int


def read_options(options: Mapping[str, Any]) -> SessionOptions:
    """The options of `compile`, or those that a file brings.

    They name providers and nothing else of them: options of providers can lead to places on the disk.

    Raises:
        EngineUnavailable: ONNX Runtime is not installed, or what is installed lacks a provider.
        ArgumentError: An option or a provider is not known, or has an unsuitable value.
    """
    import_onnxruntime()
    for name in options:
        if name not in _OPTIONS:
            raise ArgumentError(
                f"ONNX Runtime option {name!r}",
                found="no option of that name",
                expected=f"one of {', '.join(_OPTIONS)}",
                fix=near_match(name, _OPTIONS) or "Leave it out.",
            )
    providers = options.get("providers", (CPU,))
    if not isinstance(providers, list | tuple) or not providers or not all(isinstance(one, str) for one in providers):
        raise _unsuitable("providers", providers, "a list of names of execution providers", f'["{CPU}"]')
    for name in providers:
        _check_provider(name)
    threads = options.get("intra_op_num_threads", 0)
    if type(threads) is not int or threads < 0:
        raise _unsuitable("intra_op_num_threads", threads, "a number of threads, or 0", "4")
    return SessionOptions(tuple(dict.fromkeys((*providers, CPU))), threads)


def _unsuitable(name: str, value: Any, expected: str, example: str) -> ArgumentError:
    return ArgumentError(
        f"ONNX Runtime option {name!r}",
        found=f"the value {value!r}",
        expected=expected,
        fix=f'Write options={{"{name}": {example}}}.',
    )


def _check_provider(name: str) -> None:
    onnxruntime = import_onnxruntime()
    available, known = onnxruntime.get_available_providers(), onnxruntime.get_all_providers()
    if name in available:
        return
    if name not in known:
        in_full = {one.removesuffix("ExecutionProvider").lower(): one for one in known}
        raise ArgumentError(
            f"ONNX Runtime provider {name!r}",
            found="no provider of that name",
            expected=f"one of {', '.join(available)}, which are there",
            fix=near_match(in_full.get(name.lower(), name), known)
            or "Look its name up in ONNX Runtime's documentation.",
        )
    raise EngineUnavailable(
        f"ONNX Runtime provider {name!r}",
        found=f"that ONNX Runtime {onnxruntime.__version__} as it is installed here lacks it",
        expected=f"one of {', '.join(available)}, which are there",
        fix="Install the package of ONNX Runtime that has the provider (onnxruntime-gpu for CUDA and TensorRT).",
    )
