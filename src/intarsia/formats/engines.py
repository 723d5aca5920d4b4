"""The engines of an exported program: found by the operator that runs them, and compared with their hashes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from intarsia.core.container import EngineContainer
from intarsia.core.engine_calls import engine_calls
from intarsia.errors import EngineError
from intarsia.formats.manifest import EngineEntry


def read_engines(program: torch.export.ExportedProgram) -> tuple[EngineEntry, ...]:
    """The engines of a program and of its operators' bodies, in graph order. Each is compared with its hashes.

    Raises:
        EngineError: An engine is damaged, or its bytes are not in the program; names the engine.
    """
    return tuple(_read_engine(program, constant) for constant in dict.fromkeys(_engine_constants(program)))


def _engine_constants(program: torch.export.ExportedProgram) -> Iterator[str]:
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    for node, engine in engine_calls(program.graph_module):
        constant = targets.get(engine.name) if isinstance(engine, torch.fx.Node) else None
        if constant is None:
            raise _misplaced(node, f"an engine that is computed ({engine})")
        yield constant


def _read_engine(program: torch.export.ExportedProgram, constant: str) -> EngineEntry:
    data = program.constants.get(constant, program.state_dict.get(constant))
    if not isinstance(data, torch.Tensor) or data.dtype is not torch.uint8 or data.device.type != "cpu":
        raise _misplaced(constant, f"{type(data).__name__} for its bytes")
    try:
        container = EngineContainer.unpack(data.detach().contiguous().numpy().data)
        container.verify()
    except EngineError as error:
        raise _damaged(error, constant) from error
    return EngineEntry(
        constant,
        container.name,
        container.backend,
        container.backend_version,
        container.target,
        container.signature,
        data.nbytes,
        len(container.payload),
        len(container.source or b""),
        container.digest.hex(),
    )


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
