"""OpenVINO engines, on the CPU."""

from intarsia.engines.openvino.backend import OpenVINOBackend

__all__ = ["OpenVINOBackend"]
