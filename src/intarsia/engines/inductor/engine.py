"""Inductor engines at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from intarsia.core.compiled.model import CompiledModel, read_package, readable
from intarsia.core.compiled.positions import OUTSIDE
from intarsia.errors import EngineError, EngineRefused, PositionError, first_line

GUARDED = "guarded_positions"
"""Under which of the options an engine has the texts of its guards. One output more than the graph's tells of them."""


class InductorEngine:
    """A compiled partition that maps tensors to tensors; see `intarsia.core.backend.Engine`.

    Args:
        package: Bytes of an AOTInductor package.
        options: What `build_engine` stored beside it.
    """

    def __init__(self, package: bytes | memoryview, options: Mapping[str, Any]) -> None:
        self._model = CompiledModel(read_package(package))
        self._guarded = tuple(options.get(GUARDED, ()))

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine.

        Raises:
            ArgumentError: An input is on another device.
            PositionError: A position is outside of the tensor that it counts in.
            EngineError: The compiled code fails.
        """
        given = [readable(value, self._model.device, f"engine input {i}") for i, value in enumerate(inputs)]
        try:
            outputs = self._model.run(given)
        except RuntimeError as error:
            raise EngineError(
                "inductor engine",
                found=f"a failed call ({first_line(error)})",
                expected="a result",
                fix="Keep the operator concerned in torch with torch_executed_ops.",
            ) from error
        if self._guarded:
            outside = outputs.pop()
            if outside.any():
                raise self._misplaced(outside.tolist())
        return outputs

    def _misplaced(self, outside: Sequence[bool]) -> PositionError:
        text = next(text for text, is_outside in zip(self._guarded, outside, strict=True) if is_outside)
        return PositionError(
            "engine", found=f"{OUTSIDE} {text}", expected="one inside", fix="Pass positions inside of it."
        )


def load_engine(payload: memoryview, options: Mapping[str, Any]) -> InductorEngine:
    """The engine of a package; see `InductorBackend.load`."""
    try:
        return InductorEngine(payload, options)
    except (RuntimeError, ValueError, OSError) as error:
        raise EngineRefused(
            "inductor package",
            found=f"that torch {torch.__version__} on this machine refuses it ({first_line(error)})",
            expected="a package that this version made on a machine like this one",
            fix="Compile the model here, or keep the portable source in the engine.",
        ) from error
