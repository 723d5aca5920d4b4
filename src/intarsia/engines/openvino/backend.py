"""The OpenVINO backend: which operators it takes, and how engines are built and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from intarsia.core.backend import BuiltEngine, Engine
from intarsia.engines.openvino.library import import_openvino


class OpenVINOBackend:
    """Builds engines with OpenVINO and runs them on the CPU.

    The options are OpenVINO's own properties of the CPU device (`{"PERFORMANCE_HINT": "THROUGHPUT"}`). Without
    `INFERENCE_PRECISION_HINT`, engines compute in f32, f16 and bf16 operators included: those round where they leave
    the engine. OpenVINO does not carry NaN as torch does (its ReLU of NaN is 0). It is imported by the first call of
    any method.
    """

    name = "openvino"

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options that OpenVINO does not take.

        Raises:
            EngineUnavailable: OpenVINO is not installed.
            ArgumentError: An option is not a property of OpenVINO's CPU device, or has an unsuitable value.
        """
        import_openvino()
        from intarsia.engines.openvino.engine import check_values
        from intarsia.engines.openvino.library import complete_options

        complete_options(options)
        check_values(options)

    def supports(self, node: torch.fx.Node) -> str | None:
        """None when OpenVINO computes this node as torch does, else why not.

        Raises:
            EngineUnavailable: OpenVINO is not installed.
        """
        import_openvino()
        from intarsia.engines.openvino.support import reason_against

        return reason_against(node)

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        """Compile a partition: the payload is OpenVINO's blob, the source its portable IR.

        Raises:
            EngineUnavailable: OpenVINO is not installed.
            EngineBuildFailed: OpenVINO refuses the program.
            ArgumentError: An option is not a property of OpenVINO's CPU device, or has an unsuitable value.
        """
        import_openvino()
        from intarsia.engines.openvino.build import build_engine

        return build_engine(program, options)

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of a blob.

        Raises:
            EngineUnavailable: OpenVINO is not installed.
            EngineRefused: Another version of OpenVINO, or another kind of processor, made the blob.
        """
        import_openvino()
        from intarsia.engines.openvino.engine import load_engine

        return load_engine(payload, options)

    def rebuild(self, source: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of portable IR.

        Raises:
            EngineUnavailable: OpenVINO is not installed.
            EngineBuildFailed: OpenVINO refuses the IR.
        """
        import_openvino()
        from intarsia.engines.openvino.engine import rebuild_engine

        return rebuild_engine(source, options)
