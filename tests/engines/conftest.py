"""Fixtures that several files of tests here share; the C++ part of them is compiled once."""

from builders.tensorrt import runtime, tensorrt, tensorrt_backend

__all__ = ["runtime", "tensorrt", "tensorrt_backend"]
