"""Torch-TensorRT's modules, read without importing Torch-TensorRT: their classes are known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from intarsia.engines.tensorrt.layout import EngineInfo, check_version, find_aliases
from intarsia.errors import HybridError

_PACKAGE = "torch_tensorrt"
_MODULE, _PYTHON_MODULE = "TorchTensorRTModule", "PythonTorchTensorRTModule"


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
        if self.script is not None:
            return read_script(self.script, self.subject)
        fields = getattr(self.module.engine, "serialized_info", None)
        return _read_python_module(self) if fields is None else EngineInfo.read(fields, self.subject)


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
    if kind not in (_MODULE, _PYTHON_MODULE):
        raise _unknown(subject, f"a {kind} of Torch-TensorRT")
    names = (
        ("input_names", "output_names") if kind == _PYTHON_MODULE else ("input_binding_names", "output_binding_names")
    )
    inputs, outputs = (getattr(module, name, None) for name in names)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not hasattr(module, "engine"):
        raise _unknown(subject, f"a {kind} without {names[0]}, {names[1]} or engine")
    if module.engine is None and getattr(module, "serialized_engine", None) is None:
        raise HybridError(
            subject,
            found=f"a {kind} without an engine",
            expected="one whose engine was built",
            fix="Compile the model again, without dryrun.",
        )
    if module.engine is None and kind == _MODULE:
        raise HybridError(
            subject,
            found="an engine that was not set up (lazy_engine_init)",
            expected="one that is ready to run",
            fix=f"Call setup_engine() of the module first: hybrid.{place}.setup_engine().",
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
    return ForeignEngine(module, subject, script, inputs, outputs, into, shapes, _device(module))


def read_script(script: torch.ScriptObject, subject: str) -> EngineInfo:
    """What an engine of the C++ runtime tells of itself.

    Raises:
        HybridError: Its layout is not known.
    """
    state: Any = script.__getstate__()  # the list, and the name of the class
    return EngineInfo.read(state[0] if isinstance(state, tuple) else state, subject)


def _class_name(module: Any) -> str | None:
    classes = (kind for kind in type(module).__mro__ if kind.__module__.partition(".")[0] == _PACKAGE)
    return next((kind.__name__ for kind in classes), None)


def _library_version(subject: str) -> str:
    """The layout that the loaded C++ runtime writes."""
    try:
        return str(torch.ops.tensorrt.ABI_VERSION())
    except (AttributeError, RuntimeError) as error:
        raise _unknown(subject, "a runtime that does not tell the version of its layout") from error


def _device(module: Any) -> torch.device | None:
    device = getattr(module, "target_device", None)
    number = getattr(module, "target_device_id", None)
    if isinstance(device, torch.device) or number is None:
        return device
    return torch.device("cuda", number)


def _read_python_module(engine: ForeignEngine) -> EngineInfo:
    """An engine of `PythonTorchTensorRTModule`, which writes no list."""
    module: Any = engine.module
    try:
        gpu = module.target_device_properties
        return EngineInfo(
            name=f"{module.name or 'tensorrt'}_engine",
            plan=bytes(module.serialized_engine),
            inputs=tuple(engine.inputs),
            outputs=tuple(engine.outputs),
            capability=f"{gpu.major}.{gpu.minor}",
            device=str(gpu.name),
            platform=str(module.target_platform),
            hardware_compatible=bool(module.settings.hardware_compatible),
            unknown_sizes=bool(module.requires_output_allocator),
            several_devices=False,
            into={},
        )
    except (AttributeError, TypeError) as error:
        raise _unknown(engine.subject, f"a {_PYTHON_MODULE} that cannot be read ({error})") from error


def _unknown(subject: str, found: str) -> HybridError:
    return HybridError(
        subject,
        found=found,
        expected=f"a {_MODULE} or {_PYTHON_MODULE} as Torch-TensorRT has them with layout 8, 9 or 10",
        consequence="What it holds is not known.",
        fix="Use such a version of Torch-TensorRT, or a newer intarsia.",
    )
