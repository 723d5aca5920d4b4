"""How Torch-TensorRT writes an engine down: a list of texts whose meaning their positions tell.

The list begins with a version, which it calls the ABI. Nothing else says where what stands, so an unknown version is
refused. One of the texts is a pickle, of compiler settings: it is not read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from intarsia.errors import HybridError

LENGTHS: Mapping[str, int] = {"9": 12, "10": 13}
"""The known versions of the layout, and how many texts each has. Torch-TensorRT 2.13 writes 9, and 2.14 writes 10,
which adds one text; versions with older layouts need an older torch than intarsia does."""

_VERSION, _NAME, _DEVICE, _PLAN, _INPUTS, _OUTPUTS, _HARDWARE_COMPATIBLE = range(7)
_PLATFORM, _NEEDS_ALLOCATOR, _, _SEVERAL_DEVICES, _ALIASES = range(8, 13)

_SEPARATOR, _FIELD_SEPARATOR = "%", "@"


@dataclass(frozen=True)
class EngineInfo:
    """A TensorRT engine, and what Torch-TensorRT says of it.

    Attributes:
        name: Name of the engine ("_run_on_acc_0_engine").
        plan: The engine, in TensorRT's own serialisation.
        inputs: Names of its inputs, in the order in which they are passed.
        outputs: Names of its outputs, in the order in which they are returned.
        capability: Compute capability of the GPU that it was built for ("8.9").
        device: Name of that GPU.
        platform: Operating system and processor that it was built for.
        hardware_compatible: Whether it also runs on other GPUs, from compute capability 8.0 on.
        unknown_sizes: Whether the sizes of its outputs follow from the contents of its inputs.
        several_devices: Whether it exchanges data with engines on other GPUs.
        into: For each output that it writes into the memory of an input: its position, and the input's.
    """

    name: str
    plan: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    capability: str
    device: str
    platform: str
    hardware_compatible: bool
    unknown_sizes: bool
    several_devices: bool
    into: Mapping[int, int]

    @classmethod
    def read(cls, fields: Sequence[str | bytes], subject: str) -> EngineInfo:
        """Read the list of an engine.

        Args:
            fields: The list; the plan is bytes, or text in base64.
            subject: What errors name.

        Raises:
            HybridError: The layout is of an unknown version, or the list is not as its version says.
        """
        check_version(fields[0] if fields else "none", subject, len(fields))
        texts = ["" if i == _PLAN else _text(field) for i, field in enumerate(fields)]
        try:
            device = texts[_DEVICE].split(_SEPARATOR)
            inputs, outputs = _names(texts[_INPUTS]), _names(texts[_OUTPUTS])
            return cls(
                name=texts[_NAME],
                plan=_bytes(fields[_PLAN]),
                inputs=inputs,
                outputs=outputs,
                capability=f"{int(device[1])}.{int(device[2])}",
                device=device[4],
                platform=texts[_PLATFORM],
                hardware_compatible=bool(int(texts[_HARDWARE_COMPATIBLE])),
                unknown_sizes=bool(int(texts[_NEEDS_ALLOCATOR])),
                several_devices=bool(int(texts[_SEVERAL_DEVICES])),
                into=_aliases(texts[_ALIASES], inputs, outputs) if len(texts) > _ALIASES else {},
            )
        except (ValueError, IndexError, binascii.Error) as error:
            raise HybridError(
                subject,
                found=f"an engine whose list cannot be read ({error})",
                expected=f"the list of layout {texts[_VERSION]} of Torch-TensorRT",
                fix="Compile the model again, and please report it with the version of Torch-TensorRT.",
            ) from error


def check_version(version: str | bytes, subject: str, length: int | None = None) -> None:
    """Refuse a layout that is not known.

    Args:
        version: Its version.
        subject: What errors name.
        length: How many texts the list has, where there is a list.

    Raises:
        HybridError: It is not known.
    """
    known = LENGTHS.get(_text(version))
    if known is None or length not in (None, known):
        of_length = "" if length is None else f" with {length} texts"
        raise HybridError(
            subject,
            found=f"an engine of layout (ABI) {_text(version)!r}{of_length}",
            expected=" or ".join(f"{name} ({count} texts)" for name, count in LENGTHS.items()),
            consequence="What its parts mean is not known.",
            fix="Use a version of Torch-TensorRT with such a layout, or a newer intarsia.",
        )


def find_aliases(aliased: Mapping[str, Sequence[str]], inputs: Sequence[str], outputs: Sequence[str]) -> dict[int, int]:
    """Positions of the outputs that are written into inputs, and of these, of their names.

    Raises:
        ValueError: A name is none of the engine's.
    """
    return {outputs.index(output): inputs.index(aliased[output][0]) for output in aliased}


def _aliases(text: str, inputs: Sequence[str], outputs: Sequence[str]) -> dict[int, int]:
    """The field is `output@input@kind`, once for each such output."""
    records = [record.split(_FIELD_SEPARATOR) for record in _names(text)]
    return find_aliases({record[0]: record[1:] for record in records}, inputs, outputs)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(_SEPARATOR)) if text else ()


def _text(field: str | bytes) -> str:
    return field.decode("utf-8", "replace") if isinstance(field, bytes) else str(field)


def _bytes(plan: str | bytes) -> bytes:
    return bytes(plan) if isinstance(plan, bytes | bytearray) else base64.b64decode(plan, validate=True)
