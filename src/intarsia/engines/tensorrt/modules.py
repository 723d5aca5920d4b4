"""Torch-TensorRT's modules, read without importing Torch-TensorRT: their classes are known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from intarsia.engines.tensorrt.layout import LENGTHS, EngineInfo, check_version, find_aliases
from intarsia.errors import HybridError

_PACKAGE = "torch_tensorrt"
_MODULE = "TorchTensorRTModule"


@dataclass(frozen=True)
class ForeignEngine:
    """What a module of Torch-TensorRT tells of its engine.

    Attributes:
        module: The module.
        subject: What errors name.
        script: The engine as a script object, as the C++ runtime has it; None with the Python runtime.
        inputs: Names of the engine's inputs, in the order in which the module is called with them.
        outputs: Names of its outputs; those of the module come first.
        into: For each output that the engine writes into the memory of an input: its position, and the input's.
        shapes: Sizes and dtypes of `inputs` and `outputs`, as sympy expressions, or None where it does not tell.
        device: Where it runs, or None where it does not tell.
    """

    module: torch.nn.Module
    subject: str
    script: torch.ScriptObject | None
    inputs: Sequence[str]
    outputs: Sequence[str]
    into: Mapping[int, int]
    shapes: Mapping[str, Sequence[Mapping[str, Any]]] | None
    device: torch.device | None

    def read(self) -> EngineInfo:
        """All that is known of the engine, with the engine itself.

        Raises:
            HybridError: Its layout is not known.
        """
        return read_engine(self.module.engine, self.subject)


def find_engine(module: Any, place: str) -> ForeignEngine | None:
    """The engine of a module that Torch-TensorRT made, or None for any other module.

    Args:
        module: What a hybrid calls.
        place: How the user knows the call.

    Raises:
        HybridError: It is a module of Torch-TensorRT that is not known, or has no engine yet.
    """
    kind = None if isinstance(module, torch.fx.GraphModule) else _class_name(module)
    if kind is None:
        return None
    subject = f"partition '{place}'"
    if kind != _MODULE:
        raise _unknown(subject, f"a {kind} of Torch-TensorRT")
    names = ("input_binding_names", "output_binding_names")
    inputs, outputs = (getattr(module, name, None) for name in names)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not hasattr(module, "engine"):
        raise _unknown(subject, f"a {kind} without {names[0]}, {names[1]} or engine")
    if module.engine is None and getattr(module, "serialized_engine", None) is None:
        raise HybridError(
            subject,
            found=f"a {kind} without an engine",
            expected="one whose engine was built",
            fix="Compile the model again.",
        )
    if module.engine is None:
        raise HybridError(
            subject,
            found="an engine that was not set up (lazy_engine_init, or compiled for Windows)",
            expected="one that is ready to run",
            fix=f"Call hybrid.{place}.setup_engine() on a machine that it was built for.",
        )
    script = module.engine if isinstance(module.engine, torch.ScriptObject) else None
    if script is not None:
        check_version(_library_version(subject), subject)
    aliased = getattr(module, "aliased_io", None) or {}
    try:
        into = find_aliases(aliased, inputs, outputs)
    except (ValueError, TypeError, IndexError) as error:
        raise _unknown(subject, f"outputs that are written into inputs, as {aliased!r}") from error
    shapes = getattr(module, "symbolic_shape_expressions", None)
    device = getattr(module, "target_device", None)
    return ForeignEngine(module, subject, script, inputs, outputs, into, shapes, device)


def is_engine(value: Any) -> bool:
    """Whether a value is an engine of either runtime: a script object, or an object of a class of Torch-TensorRT."""
    return isinstance(value, torch.ScriptObject) or _class_name(value) is not None


def read_engine(engine: Any, subject: str) -> EngineInfo:
    """What an engine of either runtime tells of itself.

    Raises:
        HybridError: Its layout is not known.
    """
    if isinstance(engine, torch.ScriptObject):
        state: Any = engine.__getstate__()  # the list, and the name of the class
        return EngineInfo.read(state[0] if isinstance(state, tuple) else state, subject)
    fields = getattr(engine, "serialized_info", None)
    if not isinstance(fields, list):
        raise _unknown(subject, f"an engine of type {type(engine).__name__} without serialized_info")
    return EngineInfo.read(fields, subject)


def _class_name(module: Any) -> str | None:
    classes = (kind for kind in type(module).__mro__ if kind.__module__.partition(".")[0] == _PACKAGE)
    return next((kind.__name__ for kind in classes), None)


def _library_version(subject: str) -> str:
    """The layout that the loaded C++ runtime writes."""
    try:
        return str(torch.ops.tensorrt.ABI_VERSION())
    except (AttributeError, RuntimeError) as error:
        raise _unknown(subject, "a runtime that does not tell the version of its layout") from error


def _unknown(subject: str, found: str) -> HybridError:
    return HybridError(
        subject,
        found=found,
        expected=f"a {_MODULE} as Torch-TensorRT has it with layout {' or '.join(LENGTHS)}",
        consequence="What it holds is not known.",
        fix="Use such a version of Torch-TensorRT, or a newer intarsia.",
    )
