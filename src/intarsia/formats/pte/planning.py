"""How ExecuTorch plans the memory of a `.pte`."""

from __future__ import annotations

from typing import Any

from intarsia.formats.pte.library import import_executorch


def backend_config(**changes: Any) -> Any:
    """ExecuTorch's `ExecutorchBackendConfig` for programs with state.

    State of one name is one state for all methods, in memory of its own. With ExecuTorch's own default the activations
    of one method overwrite the state of another.

    Args:
        changes: Fields of `ExecutorchBackendConfig`.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.

    Example:
        >>> backend_config(extract_delegate_segments=True)  # doctest: +SKIP
        ExecutorchBackendConfig(...)
    """
    exir = import_executorch("exir")
    passes = import_executorch("exir.passes")
    planned = {"memory_planning_pass": passes.MemoryPlanningPass(share_mutable_buffers=True), **changes}
    return exir.ExecutorchBackendConfig(**planned)
