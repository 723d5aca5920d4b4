"""OpenVINO passes the suite that every backend passes."""

from __future__ import annotations

from tests.engines.conformance import BackendConformance


class TestOpenVINO(BackendConformance):
    name = "openvino"
    library = "openvino"
    extra = "openvino"
