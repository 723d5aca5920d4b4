"""The inductor backend: which operators it takes, and how engines are built and loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intarsia.core.backend import BuiltEngine, Engine
from intarsia.core.compiled.machine import reason_against_code
from intarsia.errors import EngineUnavailable

if TYPE_CHECKING:
    import torch


class InductorBackend:
    """Builds engines with AOTInductor, on the CPU and on CUDA devices.

    The options are settings of `torch._inductor.config` (`{"max_autotune": True}`). Building needs a C++ compiler;
    loading needs none. An engine is native code: a file that holds one is loaded with `allow={"native"}` only.
    """

    name = "inductor"
    native = True

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse settings that inductor does not have.

        Raises:
            EngineUnavailable: There is no C++ compiler.
            ArgumentError: A setting is not known, or one that intarsia chooses, or has an unsuitable value.
        """
        from intarsia.core.compiled.compiling import check_compiler, check_options

        check_compiler("backend 'inductor'")
        check_options(options)

    def supports(self, node: torch.fx.Node) -> str | None:
        """None when inductor computes this node as torch does, else why not."""
        from intarsia.engines.inductor.support import reason_against

        return reason_against(node)

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        """Compile a partition: the payload is an AOTInductor package, the source the program itself.

        Raises:
            EngineUnavailable: There is no C++ compiler.
            EngineBuildFailed: Inductor refuses the program.
        """
        from intarsia.engines.inductor.build import build_engine

        return build_engine(program, options)

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of a package. Its code is opened, and so may run.

        Raises:
            EngineRefused: It is no package, or this machine does not take its code.
        """
        from intarsia.engines.inductor.engine import load_engine

        return load_engine(payload, options)

    def rebuild(self, source: memoryview, options: Mapping[str, Any]) -> Engine:
        """Compile the program again, for this machine.

        Raises:
            EngineUnavailable: There is no C++ compiler.
            EngineBuildFailed: Inductor refuses the program.
        """
        from intarsia.engines.inductor.build import rebuild_engine

        return rebuild_engine(source, options)

    def available(self) -> str | None:
        """None on Linux and macOS: engines are loaded by torch alone."""
        return "engines of inductor run on Linux and macOS" if sys.platform == "win32" else None

    def missing_to_rebuild(self) -> str | None:
        """None where there is a C++ compiler, which loading does not need."""
        from intarsia.core.compiled.compiling import check_compiler

        try:
            check_compiler(f"backend {self.name!r}")
        except EngineUnavailable as error:
            return error.found
        return None

    def accepts(self, version: str, target: str) -> str | None:
        """None when a package is of this version of torch and for a processor or GPU like this one, else why not."""
        return reason_against_code(version, target)
