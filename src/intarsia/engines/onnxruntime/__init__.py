"""ONNX Runtime engines, on the providers that the caller names."""

from intarsia.engines.onnxruntime.backend import ONNXRuntimeBackend

__all__ = ["ONNXRuntimeBackend"]
