"""Build the engines of a model's methods, and cut the model again without what could not be built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TypeAlias

import torch

from intarsia.core.build_failure import BuildFailure
from intarsia.core.coverage import Coverage
from intarsia.engines.build import EngineBuilder, Progress
from intarsia.errors import IntarsiaError

Parts: TypeAlias = Mapping[str, tuple[torch.fx.GraphModule, Coverage]]
"""Hybrid and plan of each method, by its name; of one program alone the name is empty."""


def build_methods(
    cut: Callable[[Sequence[BuildFailure]], Parts],
    builder: EngineBuilder,
    *,
    fallback: bool = True,
    progress: Progress | None = None,
) -> dict[str, torch.fx.GraphModule]:
    """Build the engines of each method's hybrid.

    Args:
        cut: Cuts the model into partitions. It is called again with all that could not be built so far, which then goes
            to another backend or to torch, until everything is built.
        builder: Builds the engines.
        fallback: Whether what cannot be built goes elsewhere; otherwise that is an error.
        progress: Counts the engines of all methods; the name of one is that of its method, a point and its own.

    Raises:
        EngineBuildFailed: As for `EngineBuilder.build`; names the method.
        IntarsiaError: Likewise.
    """
    failures: list[BuildFailure] = []
    while True:
        parts = cut(failures)
        found = _build(parts, builder, fallback=fallback, progress=progress)
        if not found:
            return {method: hybrid for method, (hybrid, _) in parts.items()}
        failures += found


def _build(parts: Parts, builder: EngineBuilder, *, fallback: bool, progress: Progress | None) -> list[BuildFailure]:
    total = sum(len(plan.engines) for _, plan in parts.values())
    failures: list[BuildFailure] = []
    done = 0
    for method, (hybrid, plan) in parts.items():
        told = _counting(progress, method, done, total)
        with IntarsiaError.of_method(method) if method else nullcontext():
            failures += builder.build(hybrid, plan, method=method, fallback=fallback, progress=told)
        done += len(plan.engines)
    if progress:
        progress(total, total, "")
    return failures


def _counting(progress: Progress | None, method: str, before: int, total: int) -> Progress | None:
    """Progress of one method as that of all; what it tells when it has ended is left out."""
    if progress is None:
        return None

    def report(done: int, _: int, name: str) -> None:
        if name:
            progress(before + done, total, f"{method}.{name}" if method else name)

    return report
