"""The ONNX Runtime backend: which operators it takes, and how engines are built and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from intarsia.core.backend import BuiltEngine, Engine
from intarsia.engines.onnxruntime.installation import missing_modules
from intarsia.errors import EngineRefused

if TYPE_CHECKING:
    import torch


class ONNXRuntimeBackend:
    """Builds engines with ONNX Runtime, and runs them on the providers that the caller names.

    The options are `providers`, names of ONNX Runtime's execution providers in the order in which they are asked
    (`["CPUExecutionProvider"]` without it), and `intra_op_num_threads`, how many threads share an operator's work (0,
    the default, lets ONNX Runtime choose). What no named provider takes runs on the CPU.

    An engine is an ONNX model, which any ONNX Runtime reads: there is no compiled form beside it.
    """

    name = "onnxruntime"

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options that are not known, and providers that are not there.

        Raises:
            EngineUnavailable: ONNX Runtime is not installed, or what is installed lacks a provider.
            ArgumentError: An option or a provider is not known, or has an unsuitable value.
        """
        from intarsia.engines.onnxruntime.library import read_options

        read_options(options)

    def supports(self, node: torch.fx.Node) -> str | None:
        """None when ONNX Runtime computes this node as torch does, else why not.

        Raises:
            EngineUnavailable: ONNX Runtime, or what exports to it, is not installed.
        """
        from intarsia.engines.onnxruntime.library import import_exporter
        from intarsia.engines.onnxruntime.support import reason_against

        import_exporter()
        return reason_against(node)

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        """Export a partition to ONNX, and see that ONNX Runtime takes it.

        Raises:
            EngineUnavailable: ONNX Runtime, or what exports to it, is not installed, or a provider is not there.
            EngineBuildFailed: torch cannot export the program, or ONNX Runtime refuses it.
            ArgumentError: As for `check_options`.
        """
        from intarsia.engines.onnxruntime.library import import_exporter

        import_exporter()
        from intarsia.engines.onnxruntime.build import build_engine

        return build_engine(program, options)

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> NoReturn:  # noqa: ARG002 - as the protocol says
        """Refuse: there are no payloads.

        Raises:
            EngineUnavailable: ONNX Runtime is not installed.
            EngineRefused: Always otherwise.
        """
        from intarsia.engines.onnxruntime.library import import_onnxruntime

        import_onnxruntime()
        raise EngineRefused(
            "ONNX Runtime engine",
            found=f"a compiled form of {len(payload)} bytes",
            expected="the portable one alone, for ONNX Runtime has no other",
            fix="Compile the model here.",
        )

    def rebuild(self, source: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of an ONNX model.

        Raises:
            EngineUnavailable: ONNX Runtime is not installed, or a provider is not there.
            EngineBuildFailed: ONNX Runtime refuses the model, or the model reads files.
        """
        from intarsia.engines.onnxruntime.engine import load_engine

        return load_engine(source, options)

    def available(self) -> str | None:
        """None when ONNX Runtime is installed, else what is not."""
        missing = missing_modules()
        if not missing:
            return None
        return f"{' and '.join(missing)} not installed (install the extra intarsia[onnxruntime])"

    def accepts(self, version: str, target: str) -> str | None:  # noqa: ARG002 - as the protocol says
        """That there are no payloads."""
        return "ONNX Runtime has no compiled form of an engine"
