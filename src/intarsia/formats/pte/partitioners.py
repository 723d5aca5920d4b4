"""Which of ExecuTorch's partitioners each method gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intarsia.errors import ConventionError, near_match, with_article
from intarsia.formats.pte.library import import_executorch

Partitioners = Sequence[Any] | Mapping[str, Sequence[Any]] | None

_METHOD_NAME = "method_name"


def partitioners_by_method(partitioners: Partitioners, methods: Sequence[str]) -> dict[str, list[Any]]:
    """The partitioners of each method, in order.

    Args:
        partitioners: For all methods, or a mapping with their names; None is one `XnnpackPartitioner` for each.
        methods: Names of the methods.

    Raises:
        ConventionError: They are given for a method that is not there, one is no partitioner, or one names another
            method in its compile specs than the one that it is given for.
    """
    if partitioners is None:
        xnnpack = import_executorch("backends.xnnpack.partition.xnnpack_partitioner")
        return {name: [xnnpack.XnnpackPartitioner()] for name in methods}
    if not isinstance(partitioners, Mapping):
        partitioners = dict.fromkeys(methods, partitioners)
    unknown = [name for name in partitioners if name not in methods]
    if unknown:
        raise ConventionError(
            "partitioners",
            found=f"some for the method {unknown[0]!r}, which is not there",
            expected=f"names among {', '.join(methods)}",
            fix=near_match(unknown[0], methods) or "Name the methods that are saved.",
        )
    chosen = {name: _as_list(partitioners.get(name, ())) for name in methods}
    for name, given in chosen.items():
        for one in given:
            _check_named_method(one, name)
    return chosen


def _as_list(given: Any) -> list[Any]:
    kind = import_executorch("exir.backend.partitioner").Partitioner
    wrong = [one for one in given if not isinstance(one, kind)] if isinstance(given, Sequence) else [given]
    if wrong:
        raise ConventionError(
            "partitioners",
            found=with_article(type(wrong[0]).__name__) + (" in the place of a list" if wrong[0] is given else ""),
            expected="lists of ExecuTorch's partitioners",
            fix="Pass partitioners=[XnnpackPartitioner()], or a mapping from names of methods to such lists.",
        )
    return list(given)


def _check_named_method(partitioner: Any, method: str) -> None:
    """A compile spec tells some backends which method they compile; shared, they would compile one for another."""
    for named in _named_methods(partitioner):
        if named != method:
            raise ConventionError(
                f"method {method!r}, partitioner {type(partitioner).__name__}",
                found=f"a compile spec in it that names the method {named!r}",
                expected=f"one that names {method!r}",
                consequence="Its delegate would be that of another method.",
                fix="Give each method a partitioner of its own: partitioners={name: [...], ...}.",
            )


def _named_methods(partitioner: Any) -> Iterator[str]:
    specification = import_executorch("exir.backend.partitioner").DelegationSpec
    spec = import_executorch("exir.backend.compile_spec_schema").CompileSpec
    for value in vars(partitioner).values():
        held = value.compile_specs if isinstance(value, specification) else value
        for one in held if isinstance(held, list | tuple) else ():
            if isinstance(one, spec) and one.key == _METHOD_NAME:
                yield bytes(one.value).decode(errors="replace")
