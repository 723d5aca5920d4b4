"""The sides of a comparison: what is called with the same inputs, call after call, and what each call does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from intarsia.errors import EngineBuildFailed, EngineRefused, EngineUnavailable, first_line
from intarsia.verification.bits import difference, leaves_of, snapshot
from intarsia.verification.drawing import Call
from intarsia.verification.graphs import state_key


class Runnable(Protocol):
    """A program that can be called, and that shows its live state."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program once."""
        ...

    @property
    def state(self) -> Mapping[str, Any]:
        """Live state by name."""
        ...


class Side(Protocol):
    """Something that is called, and whose state can be looked at."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once."""
        ...

    def live(self, original: Any) -> torch.Tensor | None:
        """The tensor that stands for a tensor of the subject, or None when this side has none."""
        ...


@dataclass(frozen=True)
class MethodSide:
    """A program that runs with its own written state, which it may share with other methods.

    Attributes:
        runnable: Is called.
        names: Names of the state, by `state_key` of the tensors that the programs were made of.
    """

    runnable: Runnable
    names: Mapping[Any, str]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program once."""
        return self.runnable(*args, **kwargs)

    def live(self, original: Any) -> torch.Tensor | None:
        """The tensor that the program runs with in place of one of the tensors that it was made of."""
        name = self.names.get(state_key(original))
        return None if name is None else self.runnable.state[name]


def program_side(program: ExportedProgram, run: Callable[[ExportedProgram], Runnable]) -> MethodSide:
    """An exported program that runs with its own written state."""
    runnable = run(program)
    held = {**program.constants, **program.state_dict}
    return MethodSide(runnable, {state_key(held[name]): name for name in runnable.state if name in held})


@dataclass(frozen=True)
class Outcome:
    """What one call did, copied.

    Attributes:
        outputs: Leaves of the outputs, by path.
        inputs: Leaves of the arguments after the call, by path.
        state: State after the call, by name.
        error: What the call raised; then the rest is empty.
    """

    outputs: Mapping[str, Any]
    inputs: Mapping[str, Any]
    state: Mapping[str, Any]
    error: Exception | None = None

    @property
    def fault(self) -> str:
        """What the call raised, in one line, or no text."""
        return "" if self.error is None else fault_text(self.error)


@dataclass(frozen=True)
class Watched:
    """The state to look at after each call: tensors of the subject, by name."""

    tensors: Mapping[str, torch.Tensor]

    @staticmethod
    def of(program: ExportedProgram, sides: Sequence[Side]) -> Watched:
        """Those state tensors of a program of which at least one side has its own copy."""
        held = {**program.constants, **program.state_dict}
        return Watched({name: t for name, t in held.items() if isinstance(t, torch.Tensor) and _is_own(t, sides)})


def call(side: Side, made: Call, watched: Watched, seed: int) -> Outcome:
    """Call a side with copies of the inputs, the random numbers seeded.

    Raises:
        EngineError: An engine cannot be made on this machine, which says nothing about what the side computes.
    """
    args, kwargs = snapshot((made.args, dict(made.kwargs)))
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            returned = side(*args, **kwargs)
    except (EngineUnavailable, EngineRefused, EngineBuildFailed):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a call raises is what is compared
        return Outcome({}, {}, {}, error)
    state = {name: live if (live := side.live(t)) is not None else t for name, t in watched.tensors.items()}
    inputs = leaves_of((args, kwargs), "inputs")
    return Outcome(snapshot(leaves_of(returned, "output")), inputs, snapshot(state))


def outcome_difference(part: str, found: Outcome, expected: Outcome) -> str:
    """The first difference between two calls in their `outputs`, `inputs` or `state`, or no text."""
    one: Mapping[str, Any] = getattr(found, part)
    other: Mapping[str, Any] = getattr(expected, part)
    if list(one) != list(other):
        return f"leaves {list(one)}, not {list(other)}"
    for name in other:
        text = difference(one[name], other[name])
        if text:
            return f"{name}: {text}" if part != "state" else f"'{name}': {text}"
    return ""


def fault_text(error: Exception) -> str:
    """Type of an error, and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def _is_own(original: torch.Tensor, sides: Sequence[Side]) -> bool:
    return any((live := side.live(original)) is not None and live is not original for side in sides)
