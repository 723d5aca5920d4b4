"""A program that can be called: an exported program with its own copy of the state that it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch.export.graph_signature import InputKind

from intarsia.core.dim import render
from intarsia.core.engine_calls import engine_names
from intarsia.core.ledger import Ledger
from intarsia.core.memory import memory_of
from intarsia.core.paths import output_paths
from intarsia.core.vectors import Vectors
from intarsia.errors import ConventionError, StateError
from intarsia.runtime.arguments import Arguments, read_arguments
from intarsia.runtime.checks import read_checks
from intarsia.runtime.in_place import StateWrite, plan_in_place
from intarsia.runtime.inputs import describe_type
from intarsia.runtime.results import read_results
from intarsia.runtime.running import plan_graph, read_graph
from intarsia.runtime.state import Snapshot, State, read_state
from intarsia.runtime.structure import output_builder
from intarsia.runtime.uncopied import Uncopied


class Manifest(Protocol):
    """What a program reads of the manifest of its file."""

    @property
    def ledger(self) -> Ledger | None:
        """The account of the export, when the file holds it."""
        ...

    @property
    def coverage(self) -> Mapping[str, Any] | None:
        """Where each operator runs, as JSON values, when the file holds it."""
        ...


class Program(Uncopied):
    """An exported program, ready to run.

    A call takes the model's own arguments and gives the model's own structure. It runs the flat graph under
    `torch.no_grad`. State that the program writes is its own copy: no call changes the tensors of the exported
    program. All other state is shared with it. Of a state entry only what changes is written, where that can be proved
    to be right (`writes` tells); otherwise a call computes the entry anew and copies it.

    A value that the model returns and that is written state is the live tensor, which the next call changes, as it is
    in the model. A call that fails while it runs (an engine, an interruption) may have written some state already, as a
    model's would have; `snapshot` and `restore` bring it back. A position outside of the state is refused before.

    Inputs are checked for structure, dtype, device and shape, and sizes for their ranges; nothing else that the
    model demanded of them is.

    Args:
        exported_program: Not modified. Both dialects run: declared writes are carried out after the graph or in
            place, and a graph that writes in place does so itself.
        manifest: Manifest of the file that the program was read from.
        check: Called before the first call of the program; raises when the bytes of its tensors are not those that were
            saved.
        vectors: Reads the test vectors of the file that the program was read from.

    Raises:
        ConventionError: The exported program does not tell its calling convention.
        StateError: The exported program has no value for a state entry.

    Example:
        >>> program = Program(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)))
        >>> program(torch.tensor([[1.0, -1.0, 0.0], [-2.0, 2.0, 0.5]])).tolist()
        [[1.0, 0.0, 0.0], [0.0, 2.0, 0.5]]
    """

    def __init__(
        self,
        exported_program: torch.export.ExportedProgram,
        manifest: Manifest | None = None,
        check: Callable[[], None] | None = None,
        vectors: Callable[[], Vectors] | None = None,
    ) -> None:
        self.exported_program = exported_program
        self._vectors = vectors
        self.manifest = manifest
        self._check = check
        self._arguments = read_arguments(exported_program)
        self._flatten = self._arguments.flatten
        self._checks = read_checks(exported_program, self._arguments.leaf_names)
        _check_counts(exported_program, self._arguments)
        self._build = _read_outputs(exported_program)
        self._as_exported = read_graph(exported_program)
        plan = plan_in_place(exported_program, read_state(exported_program))
        self._writes = plan.entries
        self._graph = plan_graph(exported_program, plan, self._arguments.leaf_names)
        self._own(State(exported_program, plan.entries, engine_names(exported_program)), threading.Lock())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program once.

        Raises:
            ArgumentError: An argument is missing, unknown, or does not fit; names the argument and what is allowed.
            PositionError: State was to be written at a position that it does not have; nothing was written.
            StateError: Another thread's call is running, and the program writes state.
            EngineError: An engine failed, or is damaged.
            FormatError: At the first call: the file that the program was loaded from is damaged.
        """
        if self._check is not None:
            self.check()
        inputs = self._flatten(args, kwargs)
        self._checks.run(inputs)
        if not self._state.written:
            return self._build(self._graph.run(self._state, inputs))
        self._begin()
        try:
            # An input that shares memory with state that is written in place would change under the graph.
            is_apart = not self._live or self._live.isdisjoint(map(memory_of, inputs))
            graph = self._graph if is_apart else self._as_exported
            return self._build(graph.run(self._state, inputs))
        finally:
            self._lock.release()

    def flatten(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """The values of a call's arguments, in the order of the program's inputs; nothing is run.

        Raises:
            ArgumentError: As for a call.
        """
        inputs = self._flatten(args, kwargs)
        self._checks.run(inputs)
        return inputs

    def check(self) -> None:
        """Compare the tensors of the file that the program was loaded from with their hashes, unless that was done.

        The first call does it by itself. Engines are compared when they are made.

        Raises:
            FormatError: A tensor is damaged; names the file and the member.
        """
        if self._check is not None:
            self._check()
            self._check = None

    @property
    def test_vectors(self) -> Vectors | None:
        """The calls that the file of the program records, read from it anew; None where it has none.

        Raises:
            FormatError: They are damaged, or do not fit the program.
        """
        return self._vectors() if self._vectors else None

    @property
    def ledger(self) -> Ledger | None:
        """What the export did with every node, output and state entry, or None where the file does not tell."""
        return self.manifest.ledger if self.manifest else None

    @property
    def state(self) -> State:
        """The live parameters, buffers and constants, by name; setting one copies the new value into it.

        Set entries; do not write into their tensors, of which some are shared with other sessions.

        Example:
            >>> program = Program(torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),)))
            >>> program.state["bias"] = torch.tensor([5.0])
            >>> program.state["bias"]
            tensor([5.])
        """
        return self._state

    @property
    def writes(self) -> Mapping[str, StateWrite]:
        """How each state entry that the program writes is written, by name.

        Example:
            >>> class Counter(torch.nn.Module):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.register_buffer("calls", torch.zeros(()))
            ...     def forward(self, x):
            ...         return x + self.calls.add_(1)
            >>> program = Program(torch.export.export(Counter(), (torch.zeros(2),)))
            >>> program.writes["calls"]
            StateWrite(name='calls', operators=('add_',), reason='')
        """
        return MappingProxyType(self._writes)

    def reset(self) -> None:
        """Give the state that a call writes, or that was set, the values that it has in the exported program.

        What was written in place into the tensor of another entry (`program.state["w"].zero_()`) went into the exported
        program itself, and stays. Set entries instead.

        Raises:
            StateError: Another thread's call is running.
        """
        with self._turn():
            self._state.reset()

    def snapshot(self) -> Snapshot:
        """A copy of the state that was written, to come back to.

        Raises:
            StateError: Another thread's call is running.
        """
        with self._turn():
            return self._state.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Give all state the values that it had when the snapshot was taken.

        Args:
            snapshot: One that this program, or another session of it, has taken.

        Raises:
            StateError: It is of another program, or another thread's call is running. The state is as it was.
        """
        with self._turn():
            self._state.restore(snapshot)

    def session(self) -> Program:
        """A program with state of its own, in its initial values, that shares everything else with this one.

        Its own are the entries that a call writes, and those that are set. All others are the exported program's
        tensors, in this session as in every other.

        One program runs one call at a time; sessions run at once, each from a thread of its own.
        """
        return self.on(self._state.fresh(), threading.Lock())

    def on(self, state: State, lock: threading.Lock) -> Program:
        """This program on another state.

        Args:
            state: Of this program, or a face of one that programs share.
            lock: Held while a call runs that writes; programs that share a state share it.
        """
        program = object.__new__(type(self))
        program.__dict__.update(self.__dict__)
        program._own(state, lock)
        return program

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be called, by name; a program of one method is called itself."""
        return ("forward",)

    def __repr__(self) -> str:
        lines = [f"  input   {entry}" for entry in self._checks.inputs]
        lines += [f"  output  {text}" for text in _describe_outputs(self.exported_program)]
        lines += [f"  size    {render(dim)}: {allowed}" for dim, allowed in self._checks.named_sizes.ranges.items()]
        return "\n".join([self._headline(), *lines])

    def _headline(self) -> str:
        """How many engines and state entries there are; an engine's bytes are no state of the model."""
        engines, entries = len(engine_names(self.exported_program)), len(self._state)
        return (
            f"Program of {engines} engine{'' if engines == 1 else 's'} "
            f"and {entries} state entr{'y' if entries == 1 else 'ies'}"
        )

    def _own(self, state: State, lock: threading.Lock) -> None:
        self._state = state
        self._lock = lock
        self._live = {memory_of(state.entries[name]) for name, write in self._writes.items() if write.in_place}

    def _begin(self) -> None:
        """Take the turn, which the caller must give back: one call runs at a time."""
        if not self._lock.acquire(blocking=False):
            raise StateError(
                "program",
                found="a call while another thread's call is running",
                expected="one call at a time, for the program writes state",
                fix="Give each thread a session of its own: program.session().",
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._lock.release()


def _check_counts(program: torch.export.ExportedProgram, arguments: Arguments) -> None:
    user = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    if len(user) != len(arguments.leaf_names):
        raise ConventionError(
            "exported program",
            found=f"{len(user)} graph inputs",
            expected=f"{len(arguments.leaf_names)}, as its input structure says",
            fix="Export the model again.",
        )


def _read_outputs(program: torch.export.ExportedProgram) -> Callable[[Sequence[Any]], Any]:
    spec = program.call_spec.out_spec
    if spec is None:
        raise ConventionError(
            "exported program",
            found="no output structure",
            expected="one",
            fix="Export the model with torch.export or intarsia.",
        )
    return output_builder(spec)


def _describe_outputs(program: torch.export.ExportedProgram) -> list[str]:
    spec = program.call_spec.out_spec
    results = read_results(program)
    outputs: Any = program.graph.output_node().args[0]
    values = [outputs[position] for position in results.returned]
    names = output_paths(spec) if spec else []
    return [f"{name}: {describe_type(value)}" for name, value in zip(names, values, strict=True)]
