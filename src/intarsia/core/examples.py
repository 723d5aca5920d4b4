"""Example inputs: those of each method, and those that `torch.export.export` does not take for one input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from intarsia._torch import pytree
from intarsia.errors import ConventionError, near_match


class Examples(NamedTuple):
    """What `torch.export.export` is given beside a model.

    Attributes:
        args: Example positional inputs, or None.
        kwargs: Example keyword inputs, or None.
        dynamic_shapes: Which sizes are dynamic, or None.
    """

    args: Any
    kwargs: Any
    dynamic_shapes: Any


def examples_by_method(methods: Iterable[str], args: Any, kwargs: Any, dynamic_shapes: Any) -> dict[str, Examples]:
    """The examples of each method, of mappings with the methods' names.

    Args:
        methods: Names of the methods.
        args: Mapping from names to positional examples, or None; a name that is left out has None.
        kwargs: Likewise.
        dynamic_shapes: Likewise.

    Raises:
        ConventionError: One of them is no mapping, or has a name that no method has.

    Example:
        >>> examples_by_method(["prefill", "decode"], {"prefill": (1,), "decode": (2,)}, None, None)["decode"]
        Examples(args=(2,), kwargs=None, dynamic_shapes=None)
    """
    methods = list(methods)
    given = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
    for argument, values in given.items():
        check_names(argument, values, methods)
    columns = {argument: values or {} for argument, values in given.items()}
    return {name: Examples(*(column.get(name) for column in columns.values())) for name in methods}


def check_names(argument: str, values: Any, methods: Sequence[str]) -> None:
    """Refuse what is no mapping from names of methods; None is one without names.

    Raises:
        ConventionError: It is none, or has a name that no method has.
    """
    if not isinstance(values, Mapping | None):
        raise ConventionError(
            argument,
            found=f"an object of type {type(values).__name__!r}",
            expected=f"a mapping with the names of the methods ({', '.join(methods)})",
            fix=f"Write {argument}={{{methods[0]!r}: ...}}.",
        )
    unknown = [name for name in values or {} if name not in methods]
    if unknown:
        raise ConventionError(
            argument,
            found=f"the name {unknown[0]!r}, which no method has",
            expected=f"names of the methods ({', '.join(methods)})",
            fix=near_match(str(unknown[0]), methods) or f"Give {argument} the methods' own names.",
        )


def distinct(examples: tuple[tuple[Any, ...], dict[str, Any]], state: Iterable[torch.Tensor]) -> Any:
    """The examples `(args, kwargs)`, with a copy for each tensor that is state or an earlier input too.

    Args:
        examples: Positional and keyword examples, of any nesting.
        state: Parameters and buffers of what is to be exported.

    Example:
        >>> x = torch.ones(2)
        >>> (one, two), _ = distinct(((x, x), {}), [])
        >>> one is x, two is x
        (True, False)
    """
    seen = {id(value) for value in state}

    def separate(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            return value.clone()
        seen.add(id(value))
        return value

    with torch.no_grad():
        return pytree.tree_map(separate, examples)
