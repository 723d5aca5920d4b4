"""The precision that ExecuTorch computes engines in: OpenVINO's own choice for the processor, for it passes none on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intarsia.core.container import EngineContainer
from intarsia.errors import EngineRefused

SWITCH = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI"
"""What keeps OpenVINO from bf16, set in the environment before Python starts."""

_PROPERTY = "INFERENCE_PRECISION_HINT"


class EngineFacts(NamedTuple):
    """What a `.pte` tells of an engine.

    Attributes:
        name: Its name.
        version: Backend and version that it was built with.
        precision: What it is to be computed in: "f32", "bf16", ...
    """

    name: str
    version: str
    precision: str

    def texts(self) -> dict[str, str]:
        """What is known of the backend, by what it concerns."""
        backend, _, version = self.version.partition(" ")
        return {"backend": backend, "version": version}


def wanted_precision(container: EngineContainer) -> str:
    """The precision that an engine was compiled for."""
    return str(container.options.get(_PROPERTY, "f32"))


def chosen_precision() -> str:
    """The precision that OpenVINO chooses on this processor."""
    from openvino import Core

    return str(Core().get_property("CPU", _PROPERTY).get_type_name())


def check_precision(subject: str, engines: Sequence[EngineFacts]) -> None:
    """Refuse engines that ExecuTorch would compute in another precision on this processor.

    Raises:
        EngineRefused: It would; `subject` says what the engines are of.
    """
    if not engines:
        return
    chosen = chosen_precision()
    for engine in engines:
        if engine.precision not in (chosen, "dynamic"):
            raise EngineRefused(
                subject,
                found=f"that ExecuTorch would compute engine {engine.name!r} in {chosen} on this processor",
                expected=f"{engine.precision}, for which it was compiled",
                consequence="The results would be less exact, or slower.",
                fix=f"Start Python with {SWITCH} in its environment, which keeps OpenVINO "
                f'from bf16, or compile with options={{"{_PROPERTY}": "{chosen}"}}.',
            )
