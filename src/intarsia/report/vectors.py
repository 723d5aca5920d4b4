"""How the test vectors of two files differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from intarsia.core.signature import SHORT_NAMES
from intarsia.core.vectors import Vector, Vectors
from intarsia.report.difference import Change, compare_texts
from intarsia.report.values import value_text


def compare_vectors(before: Vectors, after: Vectors) -> list[Change]:
    """Everything in which the test vectors of two files differ: calls in their order, answers, and tolerances.

    Args:
        before: Those of the first file, without calls where it has none.
        after: Those of the second one.

    Returns:
        Changes of calls with the name of the method; those of tolerances concern all, and have none.

    Example:
        >>> one, other = (Vectors((Vector("forward", (x,), (2,), {}),), {}, {"forward": ()}) for x in (1, 3))
        >>> [tuple(change) for change in compare_vectors(one, other)]
        [('forward', 'test vector', 'call 1, input 0', '1', '3')]
    """
    calls = enumerate(zip_longest(before.calls, after.calls), 1)
    changes = [change for number, pair in calls for change in _compare_call(f"call {number}", *pair)]
    if before.calls and after.calls:
        changes += _changes("", "", _tolerances(before), _tolerances(after))
    return changes


def _compare_call(subject: str, before: Vector | None, after: Vector | None) -> Iterator[Change]:
    if before is not None and after is not None and before.method == after.method:
        yield from _changes(before.method, f"{subject}, ", _values(before), _values(after))
        return
    one, other = (None if call is None else call.method for call in (before, after))
    yield Change(one or other or "", "test vector", subject, one, other)


def _values(call: Vector) -> dict[str, str]:
    texts = {f"input {index}": value_text(value) for index, value in enumerate(call.inputs)}
    texts |= {f"output {index}": value_text(value) for index, value in enumerate(call.outputs)}
    return texts | {f"input {index} after the call": value_text(value) for index, value in sorted(call.written.items())}


def _tolerances(vectors: Vectors) -> dict[str, str]:
    """How exact answers must be: by dtype, and by which dtypes the outputs of each method are judged."""
    texts = {f"tolerance of {SHORT_NAMES[dtype]}": str(allowed) for dtype, allowed in vectors.tolerances.items()}
    for method in {call.method: None for call in vectors.calls}:
        names = ", ".join(SHORT_NAMES[dtype] for dtype in vectors.coarsest[method])
        texts[f"coarsest dtypes of the outputs of {method}"] = names
    return texts


def _changes(method: str, place: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for part, subject, one, other in compare_texts("test vector", before, after):
        yield Change(method, part, place + subject, one, other)
