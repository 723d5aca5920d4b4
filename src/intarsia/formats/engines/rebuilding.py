"""Programs without the compiled forms of their engines: these are then built here, from the portable ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from intarsia.core.container import EngineContainer
from intarsia.errors import EngineError


class PortableEngines:
    """Containers without payloads, one for each container with one."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[EngineContainer, torch.Tensor]] = {}

    def put(self, program: torch.export.ExportedProgram, engines: Mapping[str, EngineContainer]) -> None:
        """Put them in the place of a program's engines.

        Args:
            program: Changed: its constants, and the sizes of their placeholders.
            engines: Its engines, by the constants that hold them.

        Raises:
            EngineError: An engine has no portable form; names it.
        """
        placeholders = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
        nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
        for constant, container in engines.items():
            if id(container) not in self._made:
                self._made[id(container)] = container, _without_payload(container)
            tensor = self._made[id(container)][1]
            holder = program.constants if constant in program.constants else program.state_dict
            holder[constant] = tensor
            meta = nodes[placeholders[constant]].meta
            meta["val"] = meta["val"].new_empty(tensor.shape)


def _without_payload(container: EngineContainer) -> torch.Tensor:
    if not container.has_source:
        raise EngineError(
            container.subject,
            found=f"no portable form of it, for {container.backend} gives none",
            expected="one, to build the engine from",
            fix='Where you trust the file, load it with engines="verify", which takes the compiled form.',
        )
    packed = container.repack(payload=False, outside={constant.sha256 for constant in container.outside})
    return torch.frombuffer(bytearray().join(packed.chunks), dtype=torch.uint8)
