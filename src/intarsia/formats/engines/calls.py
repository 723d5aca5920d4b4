"""The engines of an exported program: found by the operator that runs them, and compared with their hashes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from intarsia.core.container import EngineContainer
from intarsia.core.engine_calls import engine_calls
from intarsia.errors import EngineError


class EngineReader:
    """Finds the engines of programs. Each is compared with its hashes once, however many programs hold its tensor."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], EngineContainer] = {}

    def read(self, program: torch.export.ExportedProgram) -> dict[str, EngineContainer]:
        """The engines of a program and of its operators' bodies, in graph order, by the constants that hold them.

        Raises:
            EngineError: An engine is damaged, or its bytes are not in the program; names the engine.
        """
        return {constant: self._read(program, constant) for constant in _engine_constants(program)}

    def _read(self, program: torch.export.ExportedProgram, constant: str) -> EngineContainer:
        data = engine_tensor(program, constant)
        key = (data.data_ptr(), data.nbytes)
        if key not in self._known:
            try:
                container = EngineContainer.unpack(data.detach().contiguous().numpy().data)
                container.verify()
            except EngineError as error:
                raise _damaged(error, constant) from error
            self._known[key] = container
        return self._known[key]


def engine_tensor(program: torch.export.ExportedProgram, constant: str) -> torch.Tensor:
    """The tensor that holds an engine's container.

    Raises:
        EngineError: There is none.
    """
    data = program.constants.get(constant, program.state_dict.get(constant))
    if not isinstance(data, torch.Tensor) or data.dtype is not torch.uint8 or data.device.type != "cpu":
        raise _misplaced(constant, f"{type(data).__name__} for its bytes")
    return data


def _engine_constants(program: torch.export.ExportedProgram) -> Iterator[str]:
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    for node, engine in engine_calls(program.graph_module):
        constant = targets.get(engine.name) if isinstance(engine, torch.fx.Node) else None
        if constant is None:
            raise _misplaced(node, f"an engine that is computed ({engine})")
        yield constant


def _misplaced(name: str, found: str) -> EngineError:
    return EngineError(
        f"engine {name!r}",
        found=found,
        expected="a uint8 tensor constant on the CPU",
        fix="Compile and export the model again.",
    )


def _damaged(error: EngineError, constant: str) -> EngineError:
    return EngineError(
        f"{error.subject} (constant {constant!r})",
        found=error.found,
        expected=error.expected,
        consequence=error.consequence,
        fix=error.fix,
    )
