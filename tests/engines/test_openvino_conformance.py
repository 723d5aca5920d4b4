"""OpenVINO passes the suite that every backend passes."""

from __future__ import annotations

from tests.engines.conformance import BackendConformance


class TestOpenVINO(BackendConformance):
    name = "openvino"
    library = "openvino"
    extra = "openvino"
    # README's limits: `exp(NaN)` is infinite, `relu(NaN)` is 0, and `1 / -0.0` can be either infinity.
    computes_odd_floats = False
