"""ExecuTorch's manager of edge programs, which keeps state and engines right in whatever its users make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from intarsia.core.container import EngineContainer
from intarsia.errors import ConventionError, IntarsiaError
from intarsia.formats.pte.arity import check_arity
from intarsia.formats.pte.delegates import keep_state
from intarsia.formats.pte.library import import_executorch, lowering
from intarsia.formats.pte.planning import backend_config

Engines = Mapping[str, Mapping[str, EngineContainer]]


def adopt(manager: Any, engines: Engines) -> Any:
    """A manager that plans memory as `backend_config` does unless told otherwise, and proves what it makes.

    Args:
        manager: `EdgeProgramManager`, which becomes the new one.
        engines: Engines of its methods, by name.
    """
    manager.__class__ = _manager_class()
    manager.engines = engines
    return manager


@cache
def _manager_class() -> Any:
    base: Any = import_executorch("exir").EdgeProgramManager

    class StatefulEdgeProgramManager(base):  # type: ignore[misc]  # it is known at run time only
        """An `EdgeProgramManager` of intarsia; those that it makes are such too."""

        engines: Engines

        def transform(self, *args: Any, **kwargs: Any) -> Any:
            with lowering():
                return adopt(super().transform(*args, **kwargs), self.engines)

        def to_backend(self, *args: Any, **kwargs: Any) -> Any:
            with lowering():
                return adopt(super().to_backend(*args, **kwargs), self.engines)

        def to_executorch(self, config: Any = None) -> Any:
            config = config or backend_config()
            programs = [self.exported_program(name) for name in self.methods]
            _check_plan(programs, config)
            keep_state(programs)
            with lowering():
                lowered = super().to_executorch(config)
            for plan in lowered.executorch_program.execution_plan:
                with IntarsiaError.of_method(plan.name):
                    check_arity(plan, self.engines.get(plan.name, {}))
            return lowered

    return StatefulEdgeProgramManager


def _check_plan(programs: Sequence[Any], config: Any) -> None:
    """Refuse ExecuTorch's own plan for several methods of which one writes state.

    Raises:
        ConventionError: The activations of a method would overwrite the state of another.
    """
    planning = import_executorch("exir.passes").MemoryPlanningPass
    plan = config.memory_planning_pass
    plans = list(plan.values()) if isinstance(plan, dict) else [plan]
    shared = all(not isinstance(one, planning) or (one is plans[0] and one.share_mutable_buffers) for one in plans)
    if len(programs) > 1 and any(program.graph_signature.buffers_to_mutate for program in programs) and not shared:
        raise ConventionError(
            "ExecuTorch's memory plan",
            found="a plan of its own for each of several methods, of which one writes state",
            expected="MemoryPlanningPass(share_mutable_buffers=True), one for all methods",
            consequence="The activations of one method would overwrite the state of another.",
            fix="Leave config out, or take intarsia.executorch.backend_config(...).",
        )
