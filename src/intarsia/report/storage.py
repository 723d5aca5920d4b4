"""Describe what the programs of a file store: each thing once, and what compiled engines repeat."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from intarsia.core.container import EngineContainer
from intarsia.core.engine_calls import engine_names, read_containers

KINDS: Mapping[InputKind, str] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


@dataclass(frozen=True)
class StorageFacts:
    """What some programs store together.

    Attributes:
        size_bytes: Part of the programs -> bytes. What entries, engines or programs share is counted once; constants
            of engines that are tensors of torch too are counted with both.
        repeated_bytes: Weights that compiled engines hold in a form of their own, though their portable forms have
            them. Saving without payloads leaves them out.
        unbuilt: Names of engines without a compiled form, which are built when they are first called.
    """

    size_bytes: Mapping[str, int]
    repeated_bytes: int
    unbuilt: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return asdict(self)


def describe_storage(programs: Collection[ExportedProgram]) -> StorageFacts:
    """Gather what some programs store together: the methods of a file, or one program.

    Args:
        programs: Programs of either dialect. Nothing is executed, and no engine is instantiated.

    Raises:
        EngineError: An engine's container is damaged.

    Example:
        >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),))
        >>> describe_storage([program, program]).size_bytes["parameters"]
        40
    """
    engines = {container.identity: container for program in programs for container in read_containers(program).values()}
    outside = {constant.sha256: constant.size for engine in engines.values() for constant in engine.outside}
    sizes = _tensor_sizes(programs)
    sizes["engines, compiled"] = sum(engine.payload_bytes for engine in engines.values())
    portable = (section for engine in engines.values() for section in engine.sections if section.name != "payload")
    sizes["engines, portable"] = sum(section.size for section in portable)
    sizes["constants shared by engines"] = sum(outside.values())
    return StorageFacts(
        size_bytes=sizes,
        repeated_bytes=sum(map(_repeated_bytes, engines.values())),
        unbuilt=tuple(engine.name for engine in engines.values() if engine.payload is None),
    )


def state_entries(program: ExportedProgram, engines: Collection[str]) -> Iterator[tuple[InputSpec, str, Any]]:
    """Parameters, buffers, constants and objects of a program, engines left out: specification, name and value."""
    for spec in program.graph_signature.input_specs:
        if spec.target is not None and spec.target not in engines:
            yield spec, spec.target, program.state_dict.get(spec.target, program.constants.get(spec.target))


def _tensor_sizes(programs: Collection[ExportedProgram]) -> dict[str, int]:
    sizes = dict.fromkeys(("parameters", "buffers", "constants"), 0)
    seen: set[int] = set()
    for program in programs:
        for spec, _, value in state_entries(program, engine_names(program)):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in seen:
                seen.add(value.untyped_storage().data_ptr())
                sizes[f"{KINDS[spec.kind]}s"] += value.untyped_storage().nbytes()
    return sizes


def _repeated_bytes(engine: EngineContainer) -> int:
    """A compiled form has its weights packed anew; no library tells how large they are in it."""
    distinct = {constant.sha256: constant.size for constant in engine.constants}
    return min(engine.payload_bytes, sum(distinct.values()))
