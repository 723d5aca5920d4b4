"""Build the engines of a model's methods, and cut the model again where the backend refuses what it seemed to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch

from intarsia.core.backend import Backend
from intarsia.core.coverage import Coverage
from intarsia.engines.build import Progress, build_engines
from intarsia.errors import EngineBuildFailed, IntarsiaError

Supports: TypeAlias = Callable[[torch.fx.Node], str | None]
Parts: TypeAlias = Mapping[str, tuple[torch.fx.GraphModule, Coverage]]
"""Hybrid and plan of each method, by its name; of one program alone the name is empty."""


def build_methods(
    cut: Callable[[Supports], Parts],
    *,
    backend: Backend,
    export: Callable[[torch.fx.GraphModule], torch.export.ExportedProgram],
    options: Mapping[str, Any] | None = None,
    fallback: bool = True,
    progress: Progress | None = None,
) -> dict[str, torch.fx.GraphModule]:
    """Build the engines of each method's hybrid, as `build_engines` does.

    Args:
        cut: Cuts the model into partitions of what a function supports. It is called again, without the operators
            concerned, where the backend names some that it cannot build, and `fallback` is true.
        backend: As for `build_engines`.
        export: Likewise.
        options: Likewise.
        fallback: Likewise.
        progress: Counts the engines of all methods; the name of one is that of its method, a point and its own.

    Raises:
        EngineBuildFailed: As for `build_engines`; names the method.
        IntarsiaError: Likewise.
    """
    build = partial(build_engines, backend=backend, export=export, options=options, fallback=fallback)
    refused: dict[str, str] = {}
    while True:
        parts = cut(lambda node: refused.get(str(node.target)) or backend.supports(node))
        try:
            return _build(parts, build, progress)
        except EngineBuildFailed as error:
            if not (fallback and error.operators):
                raise
            refused.update(dict.fromkeys(error.operators, f"{backend.name} could not build it"))


def _build(parts: Parts, build: Callable[..., Any], progress: Progress | None) -> dict[str, torch.fx.GraphModule]:
    total = sum(len(plan.engines) for _, plan in parts.values())
    built: dict[str, torch.fx.GraphModule] = {}
    done = 0
    for method, (hybrid, plan) in parts.items():
        with IntarsiaError.of_method(method) if method else nullcontext():
            built[method], _ = build(hybrid, plan, progress=_counting(progress, method, done, total))
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
            progress(before + done, total, f"{method}.{name}" if method else name)

    return report
