"""TensorRT engines: those of Torch-TensorRT's hybrids, as graphs and as containers, and how TensorRT runs them."""

from intarsia.engines.tensorrt.backend import TensorRTBackend

__all__ = ["TensorRTBackend"]
