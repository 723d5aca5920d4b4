"""ONNX Runtime passes the suite that every backend passes."""

from __future__ import annotations

from tests.engines.conformance import BackendConformance


class TestONNXRuntime(BackendConformance):
    name = "onnxruntime"
    library = "onnxruntime"
    extra = "onnxruntime"
