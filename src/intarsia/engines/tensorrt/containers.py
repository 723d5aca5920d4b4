"""TensorRT engines as containers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.core.signature import EngineSignature
from intarsia.engines.tensorrt.layout import EngineInfo
from intarsia.engines.tensorrt.target import describe_target
from intarsia.errors import EngineBuildFailed, HybridError

BACKEND = "tensorrt"
UNKNOWN_VERSION = "unknown"
"""Stands for the version of TensorRT where none was imported when the container was made."""


def make_signature(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], into: Mapping[int, int], subject: str
) -> str:
    """Text of an engine's signature.

    Args:
        inputs: What describes its inputs; only dtypes and sizes count.
        outputs: Likewise.
        into: For each output that it writes into the memory of an input: its position, and the input's.
        subject: What errors name.

    Raises:
        HybridError: A signature cannot say it.
    """
    try:
        plain = EngineSignature.from_values(inputs, outputs)
        return str(EngineSignature.parse(str(EngineSignature(plain.inputs, plain.outputs, into))))
    except EngineBuildFailed as error:
        raise HybridError(
            subject,
            found=f"{error.subject} with {error.found}",
            expected=error.expected,
            consequence="No container can hold the engine.",
            fix='Keep the engine as it is (engines="objects"), or its operator in torch (torch_executed_ops).',
        ) from error


def pack(info: EngineInfo, signature: str, subject: str) -> torch.Tensor:
    """uint8[n]: the container of an engine, with TensorRT's own bytes as the payload.

    Raises:
        HybridError: TensorRT's Python runtime cannot run it by itself.
    """
    for refused, what in (
        (info.unknown_sizes, "whose outputs have sizes that are known only when it has run"),
        (info.several_devices, "that exchanges data with engines on other GPUs"),
        (_is_of_rtx(), "of TensorRT-RTX"),
    ):
        if refused:
            raise HybridError(
                subject,
                found=f"an engine {what}",
                expected="one of TensorRT that takes and gives tensors of known sizes on one GPU",
                consequence="No container can hold the engine.",
                fix='Keep the engine as it is (engines="objects"), or its operator in torch (torch_executed_ops).',
            )
    built = BuiltEngine(
        payload=info.plan,
        source=None,
        backend_version=_loaded_version(),
        target=describe_target(info),
        options={
            "inputs": list(info.inputs),
            "outputs": list(info.outputs),
            "into": [list(pair) for pair in info.into.items()],
        },
    )
    data = pack_engine(built, name=info.name, backend=BACKEND, signature=signature)
    container = torch.empty(len(data), dtype=torch.uint8)
    container.numpy()[:] = np.frombuffer(data, np.uint8)
    return container


def _is_of_rtx() -> bool:
    """Whether Torch-TensorRT put TensorRT-RTX, whose engines are others, in the place of TensorRT."""
    return getattr(sys.modules.get("tensorrt"), "_package_name", "") == "tensorrt_rtx"


def _loaded_version() -> str:
    """The TensorRT of this process, which has the engine loaded; nothing is imported to find out."""
    library: Any = sys.modules.get("tensorrt")
    return str(getattr(library, "__version__", UNKNOWN_VERSION))
