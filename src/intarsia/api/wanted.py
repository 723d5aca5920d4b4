"""What a caller of `compile` wants to run where."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

from intarsia.core.backend import Backend
from intarsia.core.choice import TORCH, BackendChoice
from intarsia.core.plan import PartitionPlan
from intarsia.core.registry import available_backends, find_backend
from intarsia.engines.options import options_by_backend
from intarsia.errors import ArgumentError, IntarsiaError

Choice: TypeAlias = str | Sequence[str] | Mapping[Any, str | Sequence[str]]
Plan: TypeAlias = PartitionPlan | Mapping[str, Any] | str | os.PathLike[str]
DEFAULT_BACKEND = "openvino"


class Wanted(NamedTuple):
    """What `compile` is told of where operators run.

    Attributes:
        choice: The backends of the model, of operators and of modules.
        plan: Where each operator runs, or None.
        backends: All backends concerned, by their names.
    """

    choice: BackendChoice
    plan: PartitionPlan | None
    backends: dict[str, Backend]

    def read_options(self, options: Any) -> dict[str, Mapping[str, Any]]:
        """The options of each backend; see `options_by_backend`, whose errors it raises."""
        return options_by_backend(self.backends, options, self.plan.backends if self.plan else {})


def read_wanted(
    backend: Choice | None = None,
    plan: Plan | None = None,
    *,
    torch_executed_ops: Collection[Any] = (),
    min_block_size: int = 1,
) -> Wanted:
    """What the arguments of `compile` mean, as far as it can be told without the model.

    Raises:
        ArgumentError: `backend` or `plan` is none, or there is a plan beside what it stands for.
        EngineUnavailable: A backend is not known.
    """
    if plan is None:
        read = None
        choice = BackendChoice.of(DEFAULT_BACKEND if backend is None else backend)
        _refuse_swapped(choice)
    else:
        _refuse_beside(backend, torch_executed_ops, min_block_size)
        read = PartitionPlan.of(plan)
        choice = BackendChoice.of(tuple(read.backends) or TORCH)
    places = read.backends if read else {}
    return Wanted(choice, read, {name: _find(name, places.get(name)) for name in choice.names})


def _find(name: str, place: str | None) -> Backend:
    """The backend of a name; what a plan wants it for is told when there is none."""
    with IntarsiaError.within(place) if place else nullcontext():
        return find_backend(name)


def _refuse_swapped(choice: BackendChoice) -> None:
    """Refuse a mapping from backends to what they are for."""
    known = {*available_backends(), TORCH}
    for key, order in choice.orders.items():
        strange = [name for name in order if name not in known]
        if isinstance(key, str) and key in known and strange:
            raise ArgumentError(
                f"backend, {key!r}",
                found=f"{strange[0]!r}, which is no backend, for {key!r}, which is one",
                expected="operators or module paths as keys, and backends as values",
                fix=f"Write backend={{{strange[0]!r}: {key!r}}}.",
            )


def _refuse_beside(backend: Choice | None, torch_executed_ops: Collection[Any], min_block_size: int) -> None:
    given = {
        "backend": backend is not None,
        "torch_executed_ops": bool(torch_executed_ops),
        "min_block_size": min_block_size != 1,
    }
    beside = [name for name, is_given in given.items() if is_given]
    if beside:
        raise ArgumentError(
            "plan",
            found=f"{', '.join(beside)} beside it",
            expected="the plan alone, which says where each operator runs",
            fix=f"Leave out {' and '.join(beside)}, or the plan.",
        )
