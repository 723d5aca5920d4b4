"""What is known of this machine without importing ONNX Runtime."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from intarsia.engines import installation

# The packages that bring the module `onnxruntime`, each with other providers.
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")


@cache
def find_version() -> str:
    """Version of the installed ONNX Runtime ("1.32.0"), or "" when there is none."""
    return installation.find_version(*_PACKAGES)


def missing_modules() -> list[str]:
    """The modules that loading an engine needs and that are not installed."""
    return [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]
