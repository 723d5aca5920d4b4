"""Several programs of one model that share its state: prefill and decode of a decoder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from intarsia.core.engine_calls import engine_names
from intarsia.core.method_names import check_method_names
from intarsia.core.vectors import Vectors
from intarsia.errors import ConventionError, with_article
from intarsia.runtime.method_set import MethodSet
from intarsia.runtime.program import Program
from intarsia.runtime.sharing import Held, check_held_state, check_one_model, share_state
from intarsia.runtime.state import Snapshot, State


class Methods(MethodSet[Program]):
    """The methods of a model: each is a `Program`, an attribute of this object, and all have one state.

    Args:
        programs: By the names of their methods. Their state is taken from their exported programs.
        vectors: Reads the test vectors of the file that the programs were read from.

    Raises:
        ConventionError: There is none, or one has a name that no attribute can have here.
        StateError: State of one name differs between methods.

    Example:
        >>> class Counter(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("calls", torch.zeros(()))
        ...     def forward(self, x):
        ...         return x + self.calls.add_(1)
        >>> model = Counter()
        >>> methods = Methods({
        ...     "one": Program(torch.export.export(model, (torch.zeros(1),))),
        ...     "two": Program(torch.export.export(model, (torch.zeros(2),))),
        ... })
        >>> methods.one(torch.zeros(1)), methods.two(torch.zeros(2))
        (tensor([1.]), tensor([2., 2.]))
        >>> methods.methods, methods.state["calls"]
        (('one', 'two'), tensor(2.))
    """

    def __init__(self, programs: Mapping[str, Program], vectors: Callable[[], Vectors] | None = None) -> None:
        self._vectors = vectors
        check_method_names(programs)
        exported = {name: program.exported_program for name, program in programs.items()}
        hidden = {name: program.state.hidden for name, program in programs.items()}
        shared = share_state(exported, hidden)
        written = sorted({name for program in programs.values() for name in program.writes})
        engines = {shared.names[exported[method]].get(name, name) for method, names in hidden.items() for name in names}
        self._take(programs, State(next(iter(exported.values())), written, engines, shared))

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {program!r}" for name, program in self._programs.items())

    @property
    def state(self) -> State:
        """The live state of all methods, by name, as `Program.state`."""
        return next(iter(self._programs.values())).state

    @property
    def test_vectors(self) -> Vectors | None:
        """The calls that the file records, of all methods, read from it anew; None where it has none.

        Raises:
            FormatError: They are damaged, or do not fit the methods.
        """
        return self._vectors() if self._vectors else None

    def reset(self) -> None:
        """Give all state its initial value.

        Raises:
            StateError: Another thread's call is running.
        """
        next(iter(self._programs.values())).reset()

    def snapshot(self) -> Snapshot:
        """A copy of the state that was written, to come back to.

        Raises:
            StateError: Another thread's call is running.
        """
        return next(iter(self._programs.values())).snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Give all state the values that it had when the snapshot was taken.

        Raises:
            StateError: It is of another program, or another thread's call is running. The state is as it was.
        """
        next(iter(self._programs.values())).restore(snapshot)

    def session(self) -> Methods:
        """The same methods with state of their own, in its initial values; everything else is shared."""
        session = object.__new__(type(self))
        session._vectors = self._vectors
        session._take(self._programs, self.state.fresh())
        return session

    def _take(self, programs: Mapping[str, Program], state: State) -> None:
        lock = threading.Lock()
        first = next(iter(programs))
        self._programs = {
            name: program.on(state if name == first else state.face(program.exported_program), lock)
            for name, program in programs.items()
        }


def run_methods(programs: Mapping[str, torch.export.ExportedProgram]) -> dict[str, Program]:
    """Programs on one state, by the names of their methods; raises as `check_methods`."""
    check_methods(programs)
    methods = Methods({name: Program(program) for name, program in programs.items()})
    return {name: getattr(methods, name) for name in programs}


def check_methods(
    programs: Mapping[str, torch.export.ExportedProgram], held: Mapping[str, Held] = MappingProxyType({})
) -> None:
    """Refuse programs that cannot be the methods of one model, before they are saved.

    Args:
        programs: By the names of their methods.
        held: State that engines of a method hold as constants; pairs of the engine's and the state's name.

    Raises:
        ConventionError: There is none, one has a name that no attribute can have here, or is no exported program.
        StateError: State of one name differs between methods, or one writes it and it is another tensor, or a constant
            in an engine, in the other.
    """
    check_method_names(programs)
    for name, program in programs.items():
        if not isinstance(program, torch.export.ExportedProgram):
            raise ConventionError(
                f"method {name!r}",
                found=with_article(type(program).__name__),
                expected="a hybrid, an exported program or a Program",
                fix="Pass what intarsia.compile, export or load returned.",
            )
    share_state(programs, {name: engine_names(program) for name, program in programs.items()})
    check_one_model(programs)
    check_held_state(programs, held)
