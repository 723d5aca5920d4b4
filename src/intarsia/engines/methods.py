"""Build the engines of several methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from intarsia.core.backend import Backend
from intarsia.core.coverage import Coverage
from intarsia.engines.build import Progress, build_engines
from intarsia.errors import IntarsiaError


def build_methods(
    parts: Mapping[str, tuple[torch.fx.GraphModule, Coverage]],
    *,
    backend: Backend,
    export: Callable[[torch.fx.GraphModule], torch.export.ExportedProgram],
    options: Mapping[str, Any] | None = None,
    fallback: bool = True,
    progress: Progress | None = None,
) -> dict[str, torch.fx.GraphModule]:
    """Build the engines of each method's hybrid, as `build_engines` does.

    Args:
        parts: Hybrid and plan of each method, by its name.
        backend: As for `build_engines`.
        export: Likewise.
        options: Likewise.
        fallback: Likewise.
        progress: Counts the engines of all methods; the name of one is that of its method, a point and its own.

    Raises:
        EngineBuildFailed: As for `build_engines`; names the method.
        IntarsiaError: Likewise.
    """
    total = sum(len(plan.engines) for _, plan in parts.values())
    built: dict[str, torch.fx.GraphModule] = {}
    done = 0
    for method, (hybrid, plan) in parts.items():
        with IntarsiaError.of_method(method):
            built[method], _ = build_engines(
                hybrid,
                plan,
                backend=backend,
                export=export,
                options=options,
                fallback=fallback,
                progress=_counting(progress, method, done, total),
            )
        done += len(plan.engines)
    if progress:
        progress(total, total, "")
    return built


def _counting(progress: Progress | None, method: str, before: int, total: int) -> Progress | None:
    """Progress of one method as that of all; what it tells when it has ended is left out."""
    if progress is None:
        return None

    def report(done: int, _: int, name: str) -> None:
        if name:
            progress(before + done, total, f"{method}.{name}")

    return report
