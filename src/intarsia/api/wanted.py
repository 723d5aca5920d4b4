"""What a caller of `compile` wants to run where."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from intarsia.core.backend import Backend
from intarsia.core.choice import TORCH, BackendChoice
from intarsia.core.plan import PartitionPlan
from intarsia.core.registry import available_backends, find_backend
from intarsia.errors import ArgumentError

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


def read_wanted(
    backend: Choice = DEFAULT_BACKEND,
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
        choice = BackendChoice.of(backend)
        _refuse_swapped(choice)
    else:
        _refuse_beside(backend, torch_executed_ops, min_block_size)
        read = PartitionPlan.of(plan)
        choice = BackendChoice.of(read.backends or TORCH)
    return Wanted(choice, read, {name: find_backend(name) for name in choice.names})


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


def _refuse_beside(backend: Choice, torch_executed_ops: Collection[Any], min_block_size: int) -> None:
    given = {
        "backend": backend != DEFAULT_BACKEND,
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
