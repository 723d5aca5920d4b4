"""What the calls of all sides showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from intarsia.errors import ArgumentError, ConventionError, PositionError
from intarsia.verification.bits import difference
from intarsia.verification.drawing import Call
from intarsia.verification.leaves import LeafErrors
from intarsia.verification.result import Check
from intarsia.verification.sides import Outcome, Side, Watched, call, outcome_difference

Sides: TypeAlias = Mapping[str, Side]
"""What is called, by the names of the methods; of one program alone the name is empty."""

PARTS = ("outputs", "state", "inputs")


@dataclass(frozen=True)
class Model:
    """The model to compare with.

    Attributes:
        sides: Its entry points, by the names of the methods.
        tensors: Its own tensors that have the names of watched state, by name.
        misfits: How the names of the arguments of each differ from the program's inputs, or no text.
        coarsest: For each leaf, the coarsest dtype that it passes through.
    """

    sides: Sides
    tensors: dict[str, torch.Tensor]
    misfits: Mapping[str, str]
    coarsest: Mapping[str, torch.dtype]


class Record:
    """Makes calls on every side, and notes where they differ.

    Args:
        subject: The program, or its methods.
        eager: The graph that says what is right, to the bit.
        retraced: The retraced program, if there is one.
        model: What says what is right, within tolerances, if there is one.
        watched: State to look at.

    Attributes:
        leaves: Errors against the model.
        calls: How many calls were compared.
        retrace_fault: How the retraced program differs from the eager graph, or no text.
    """

    def __init__(
        self, subject: Sides, eager: Sides, retraced: Sides | None, model: Model | None, watched: Watched
    ) -> None:
        self._subject = subject
        self._eager = eager
        self._retraced = retraced
        self._model = model
        self._watched = watched
        self._differences: dict[str, str] = {}
        self.leaves = LeafErrors(model.coarsest if model else {})
        self.calls = 0
        self.retrace_fault = ""
        self._stop = ""
        self._answered = False

    def make(self, calls: Sequence[Call], progress: Callable[[str], None]) -> None:
        """Make calls one after the other, until one raises.

        A call for which the state has no more room, in the program as in the graph, ends the comparison: no fault.

        Args:
            calls: Calls to make.
            progress: Told what comes next.

        Raises:
            ArgumentError: Given inputs do not fit the program.
            ConventionError: The model refuses the inputs.
            EngineError: An engine cannot be made here, which says nothing about the program.
        """
        for made in calls:
            seed = self.calls
            self.calls += 1
            progress(f"call {self.calls}{place_text(made)}")
            found = call(self._subject[made.method], made, self._watched, seed)
            expected = call(self._eager[made.method], made, self._watched, seed)
            if self._runs_out(found, expected):
                self.calls -= 1
                self._stop = f"not compared after call {self.calls}: program and graph both raise ({found.fault})"
                return
            if isinstance(found.error, ArgumentError) and not made.drawn:
                raise found.error
            if expected.fault:
                self._note("calls", made, f"the graph itself raises {expected.fault.rstrip('.')}. {_ADVICE}")
                return
            if found.fault:
                self._note("calls", made, f"the program raises {found.fault}")
                return
            self._answered = True
            for part in PARTS:
                self._note(part, made, outcome_difference(part, found, expected))
            self._compare_retraced(made, expected, seed)
            self._compare_model(made, found, seed)

    def checks(self) -> tuple[Check, ...]:
        """The checks that come of the calls."""
        if not self._answered:
            text = self._differences.get("calls", "")
            return (Check("calls", not text, text), *(Check(name, None, "no call succeeded") for name in PARTS))
        texts = [(name, self._differences.get(name, "")) for name in ("calls", *PARTS)]
        return tuple(Check(name, not text, text) for name, text in texts)

    def findings(self) -> list[str]:
        """Why the calls ended early, and what of the state differed between program and model before the first one."""
        return [*([self._stop] if self._stop else []), *self._other_state()]

    def _runs_out(self, found: Outcome, expected: Outcome) -> bool:
        """Whether a later call finds no room in the state, in the program as in the graph."""
        both = found.error is not None and isinstance(expected.error, IndexError | RuntimeError)
        is_position = isinstance(found.error, PositionError) or (
            isinstance(found.error, IndexError) and isinstance(expected.error, IndexError)
        )
        return self.calls > 1 and bool(self._watched.tensors) and both and is_position

    def _other_state(self) -> list[str]:
        tensors = self._model.tensors if self._model else {}
        names = [name for name, tensor in tensors.items() if difference(self._watched.tensors[name], tensor)]
        if not names:
            return []
        listed = ", ".join(f"'{name}'" for name in names)
        reason = "the model was called or changed after the program was made. Pass it as it was then"
        return [f"before the first call, state {listed} of the model was not the program's: {reason}"]

    def _compare_retraced(self, made: Call, expected: Outcome, seed: int) -> None:
        if self._retraced is None or self.retrace_fault:
            return
        found = call(self._retraced[made.method], made, self._watched, seed)
        texts = [found.fault] if found.fault else [outcome_difference(part, found, expected) for part in PARTS]
        self.retrace_fault = next((self._place(made) + text for text in texts if text), "")

    def _compare_model(self, made: Call, found: Outcome, seed: int) -> None:
        if self._model is None:
            return
        tensors = self._model.tensors
        expected = call(self._model.sides[made.method], made, Watched(tensors), seed)
        if expected.fault:
            raise refused_reference(made.method, expected.fault, self._model.misfits[made.method])
        one, other = ({f"state '{name}'": outcome.state[name] for name in tensors} for outcome in (found, expected))
        outputs = [
            {f"{made.method}: {name}" if made.method else name: leaf for name, leaf in outcome.outputs.items()}
            for outcome in (found, expected)
        ]
        self.leaves.add({**outputs[0], **one}, {**outputs[1], **other})

    def _note(self, name: str, made: Call, text: str) -> None:
        if text:
            self._differences.setdefault(name, self._place(made) + text)

    def _place(self, made: Call) -> str:
        return f"call {self.calls}{place_text(made)}: "


def refused_reference(method: str, fault: str, misfit: str) -> ConventionError:
    """The error for a model that raises.

    Args:
        method: Its name, or no text.
        fault: What is raised.
        misfit: How its arguments differ from the program's inputs, or no text.
    """
    return ConventionError(
        f"the reference, method {method!r}" if method else "the reference",
        found=f"a model that raises {fault}",
        expected="a model that takes the program's inputs",
        consequence=misfit,
        fix="Pass the model that the program was made of, or inputs that suit both.",
    )


def place_text(made: Call) -> str:
    """The method and the sizes of a call, to stand behind its number."""
    method = f" of {made.method}" if made.method else ""
    return f"{method} ({made.place})" if made.place else method


_ADVICE = "Its ranges are wrong, or the drawn inputs do not suit it: pass inputs that do."
