"""The OpenVINO backend: which operators it takes, and how engines are built and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intarsia.core.backend import BuiltEngine, Engine
from intarsia.engines.openvino.installation import find_processor, find_version
from intarsia.engines.openvino.library import DEVICE, import_openvino

if TYPE_CHECKING:
    import torch


class OpenVINOBackend:
    """Builds engines with OpenVINO and runs them on the CPU.

    The options are OpenVINO's own properties of the CPU device (`{"PERFORMANCE_HINT": "THROUGHPUT"}`). Without
    `INFERENCE_PRECISION_HINT`, engines compute in f32, f16 and bf16 operators included: those round where they leave
    the engine. OpenVINO does not carry NaN as torch does (its ReLU of NaN is 0). It is imported when it is
    first needed.
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

    def available(self) -> str | None:
        """None when OpenVINO is installed, else that it is not."""
        return None if find_version() else "OpenVINO is not installed (install the extra intarsia[openvino])"

    def accepts(self, version: str, target: str) -> str | None:
        """None when a blob is of this version of OpenVINO and this kind of processor, else how they differ.

        These two decide whether OpenVINO takes a blob out of its own cache. A blob says neither, and what it makes of
        one that does not fit is not promised.
        """
        built, here = version.partition("-")[0], find_version()
        if built != here:
            return f"OpenVINO {built} built it, and {here or 'none'} is installed here"
        processor = find_processor()
        meant = " ".join(target.removeprefix(f"{DEVICE}:").split())
        if processor and meant != processor:
            return f"it was built for {meant}, and this is {processor}"
        return None
