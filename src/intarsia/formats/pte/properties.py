"""What engines are compiled with, carried in their delegates: ExecuTorch passes OpenVINO no properties.

OpenVINO would then choose them anew, and compute in bf16 where the processor has it. Its device HETERO, which spreads a
model over devices, reads properties from the head of a blob and hands them on. So a head stands before each engine,
which names one device, the CPU, and the properties; the engine's own bytes follow untouched.
"""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from intarsia.core.backend import POSITIONS, WIDENED
from intarsia.core.container import EngineContainer
from intarsia.core.signature import EngineSignature

DEVICE = "HETERO:CPU"
"""The device that ExecuTorch is to import the bytes on."""

_DEFAULTS = {"INFERENCE_PRECISION_HINT": "f32"}
_NO_PROPERTIES = (POSITIONS, WIDENED, "WEIGHTS_PATH")


def with_properties(container: EngineContainer) -> bytes:
    """The payload of an OpenVINO engine, behind a head that tells what it is compiled with.

    Args:
        container: Of the engine. Its payload is copied once.
    """
    return b"".join([_head(container).encode(), b"\n", container.payload or b""])


def _head(container: EngineContainer) -> str:
    signature = EngineSignature.parse(container.signature)
    properties = {name: value for name, value in container.options.items() if name not in _NO_PROPERTIES}
    settings = "".join(
        f"<config key={quoteattr(name)} value={quoteattr(_text(value))}/>"
        for name, value in {**_DEFAULTS, **properties}.items()
    )
    return (
        '<hetero name="engine">'
        f"<inputs_to_submodels_inputs>{_ports(len(signature.inputs))}</inputs_to_submodels_inputs>"
        f"<outputs_to_submodels_outputs>{_ports(len(signature.outputs))}</outputs_to_submodels_outputs>"
        "<submodels_input_to_prev_output/>"
        '<compiled_submodels><compiled_submodel device="CPU"/></compiled_submodels>'
        f"<hetero_config>{settings}</hetero_config></hetero>"
    )


def _ports(count: int) -> str:
    """Each input or output of the whole is that of the one part."""
    return "".join(f'<pair submodel_idx="0" node_idx="{i}"/>' for i in range(count))


def _text(value: object) -> str:
    return ("NO", "YES")[value] if isinstance(value, bool) else str(value)
