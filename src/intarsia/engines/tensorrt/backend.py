"""The TensorRT backend: it runs the engines that Torch-TensorRT built, and builds none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from intarsia.core.backend import BuiltEngine, Engine
from intarsia.errors import EngineBuildFailed, EngineUnavailable

if TYPE_CHECKING:
    import torch


class TensorRTBackend:
    """Runs TensorRT engines with TensorRT's own Python runtime; Torch-TensorRT is not needed.

    Torch-TensorRT builds them: `intarsia.export` takes what `torch_tensorrt.compile` returns. TensorRT is imported when
    it is first needed.
    """

    name = "tensorrt"
    builds = False

    def check_options(self, options: Mapping[str, Any]) -> None:  # noqa: ARG002 - as every backend
        """Refuse to build, before a model is captured.

        Raises:
            EngineUnavailable: Always.
        """
        raise EngineUnavailable(
            "backend 'tensorrt'",
            found="a backend that runs engines and builds none",
            expected="one that builds",
            fix="Compile with torch_tensorrt.compile(model, ir='dynamo', ...), and pass the result to intarsia.export.",
        )

    def supports(self, node: torch.fx.Node) -> str | None:  # noqa: ARG002 - as every backend
        """Why no operator is taken."""
        return "Torch-TensorRT builds TensorRT's engines"

    def build(
        self,
        program: torch.export.ExportedProgram,  # noqa: ARG002 - as every backend
        options: Mapping[str, Any],
    ) -> BuiltEngine:
        """Build nothing; see `check_options`."""
        self.check_options(options)
        raise NotImplementedError

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of TensorRT's own bytes.

        Raises:
            EngineUnavailable: TensorRT is not installed, or there is no GPU.
            EngineRefused: Another version of TensorRT built them, or for another kind of GPU.
        """
        from intarsia.engines.tensorrt.engine import load_engine

        return load_engine(payload, options)

    def rebuild(self, source: memoryview, options: Mapping[str, Any]) -> NoReturn:  # noqa: ARG002 - as every backend
        """Refuse: there is no portable form.

        Raises:
            EngineBuildFailed: Always.
        """
        raise EngineBuildFailed(
            "TensorRT engine",
            found="a portable form of it",
            expected="none, for Torch-TensorRT keeps none",
            fix="Compile the model again with Torch-TensorRT on this machine.",
        )

    def available(self) -> str | None:
        """None when TensorRT and a GPU are there, else what is missing."""
        from intarsia.engines.tensorrt.installation import find_capability, find_version

        if not find_version():
            return "TensorRT is not installed (install the extra intarsia[tensorrt])"
        return None if find_capability() else "torch finds no CUDA GPU"

    def accepts(self, version: str, target: str) -> str | None:
        """None when the engine is of this version of TensorRT and for this kind of GPU, else how they differ."""
        from intarsia.engines.tensorrt.containers import UNKNOWN_VERSION
        from intarsia.engines.tensorrt.installation import find_capability, find_version
        from intarsia.engines.tensorrt.target import misfit

        here = find_version()
        if version != UNKNOWN_VERSION and _release(version) != _release(here):
            return f"TensorRT {version} built it, and {here or 'none'} is installed here"
        capability = find_capability()
        return misfit(target, capability) if capability else None


def _release(version: str) -> list[str]:
    """Major, minor and patch number; what follows them is the build, which TensorRT itself judges."""
    return version.split(".")[:3]
