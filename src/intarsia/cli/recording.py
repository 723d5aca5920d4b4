"""The calls that `--test-vectors` records: example inputs of a target, or those that a file records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intarsia.errors import ArgumentError

if TYPE_CHECKING:
    from intarsia.cli.target import HybridTarget, Target
    from intarsia.runtime.methods import Methods
    from intarsia.runtime.program import Program

_OPTION = "--test-vectors"


def target_calls(made: Target) -> list[tuple[Any, ...]]:
    """The example inputs of a target as calls: of several methods, one of each in their order."""
    if not isinstance(made.model, Mapping):
        return [(made.args or (), made.kwargs)]
    methods = {name: made.of_method("target", name) for name in made.model}
    return [(name, one.args, one.kwargs) for name, one in methods.items()]


def hybrid_calls(made: HybridTarget) -> list[tuple[Any, ...]]:
    """The example inputs beside a hybrid as calls, likewise.

    Raises:
        ArgumentError: There are none.
    """
    several = isinstance(made.hybrid, Mapping)
    names = list(made.hybrid) if isinstance(made.hybrid, Mapping) else [""]
    args, kwargs = ((given or {}) if several else {"": given} for given in (made.args, made.kwargs))
    missing = [name for name in names if args.get(name) is None and kwargs.get(name) is None]
    if missing:
        raise ArgumentError(
            _OPTION,
            found="no example inputs" + (f" of method {missing[0]!r}" if several else ""),
            expected="some to call the program with",
            fix="Let the factory return the hybrid with args, kwargs and dynamic_shapes.",
        )
    calls = [(name, args.get(name) or (), kwargs.get(name) or {}) for name in names]
    return calls if several else [call[1:] for call in calls]


def file_calls(loaded: Program | Methods) -> list[tuple[Any, ...]]:
    """The calls that the test vectors of a file record.

    Raises:
        ArgumentError: It has none.
        FormatError: They are damaged.
    """
    from intarsia.runtime.program import Program
    from intarsia.verification import calls_of

    vectors = loaded.test_vectors
    if vectors is None:
        raise ArgumentError(
            _OPTION,
            found="a file without test vectors",
            expected="one that has some, whose calls are made again",
            fix="Export from Python: intarsia.save(..., test_vectors=[(args, kwargs)]).",
        )
    if isinstance(loaded, Program):
        program = loaded.exported_program
        return [call[1:] for call in calls_of(vectors, {call.method: program for call in vectors.calls})]
    return calls_of(vectors, {name: getattr(loaded, name).exported_program for name in loaded.methods})
