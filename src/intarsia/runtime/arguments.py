"""The arguments of a program's call: matched to its own parameters, and flattened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from intarsia._torch import TreeSpec
from intarsia.errors import ArgumentError, ConventionError
from intarsia.runtime.structure import Leaf, Structure, flatten, leaf_names, read_structure, suggest


class Arguments:
    """Parameters of a program: `flatten` turns a call's arguments into leaves in the order of the graph's inputs.

    A parameter that was given by position when the program was exported may be given by keyword too, when the
    program knows its name. One that was given by keyword must be given by keyword: the program cannot know which
    position the model had for it.

    Args:
        fixed: Values that the export fixed, by name of the leaf.

    Attributes:
        positional: Structures of the parameters that are given by position.
        keywords: Structures of the parameters that are given by keyword, by name.
        leaf_names: Name of each leaf, as the user knows it.
    """

    def __init__(
        self,
        positional: Sequence[Structure],
        keywords: Mapping[str, Structure],
        fixed: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._fixed = fixed
        self.positional = tuple(positional)
        self.keywords = dict(keywords)
        self._names = tuple(self.keywords)
        structures = [*self.positional, *self.keywords.values()]
        self._structures = tuple(structures)
        self.leaf_names = tuple(name for structure in structures for name in leaf_names(structure))
        self._flat = all(isinstance(structure, Leaf) for structure in structures)
        self._read_keywords = _keyword_reader(self._names)

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Leaves of a call's arguments, in the order of `leaf_names`.

        Raises:
            ArgumentError: An argument is missing, unknown, or of another structure.
        """
        if len(args) != len(self.positional) or len(kwargs) != len(self._names):
            args, kwargs = self._match(args, kwargs)
        try:
            values = args + self._read_keywords(kwargs) if kwargs else args
        except KeyError:
            args, kwargs = self._match(args, kwargs)
            values = args + self._read_keywords(kwargs)
        if self._flat:
            return values
        leaves: list[Any] = []
        for structure, value in zip(self._structures, values, strict=True):
            flatten(structure, value, leaves)
        return leaves

    def _match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = [structure.name for structure in self.positional]
        if len(args) > len(parameters):
            raise self._too_many(len(args))
        unknown = [name for name in kwargs if name not in self.keywords and name not in parameters[len(args) :]]
        missing = [name for name in [*parameters[len(args) :], *self._names] if name not in kwargs]
        if unknown:
            raise self._unknown(unknown, missing, parameters[: len(args)])
        if missing:
            raise ArgumentError(
                f"input '{missing[0]}'",
                found="no value",
                expected=f"every input that the program was exported with ({self._listed()})",
                fix=f"Pass {', '.join(f'{n}={self._fixed[n]!r}' if n in self._fixed else n for n in missing)}.",
            )
        rest = tuple(kwargs[name] for name in parameters[len(args) :])
        return args + rest, {name: kwargs[name] for name in self._names}

    def _too_many(self, count: int) -> ArgumentError:
        return ArgumentError(
            "call",
            found=f"{count} positional arguments",
            expected=f"{len(self.positional)}",
            fix=f"Pass {', '.join(self._names)} by keyword." if self._names else f"Pass {self._listed()} only.",
        )

    def _unknown(self, unknown: list[str], missing: list[str], given: list[str]) -> ArgumentError:
        twice = [name for name in unknown if name in given]
        if twice:
            return ArgumentError(
                f"input '{twice[0]}'", found="it by position and by keyword", expected="it once", fix="Drop one."
            )
        return ArgumentError(
            f"input '{unknown[0]}'",
            found="a keyword that the program does not have",
            expected=f"the inputs that it was exported with ({self._listed()})",
            fix=suggest(unknown, missing or [*given, *self._names]) or f"Drop {', '.join(unknown)}.",
        )

    def _listed(self) -> str:
        return ", ".join(structure.name for structure in self._structures) or "none"


def _keyword_reader(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that reads the values of `names`, in order."""
    if len(names) == 1:
        (name,) = names
        return lambda kwargs: (kwargs[name],)
    return itemgetter(*names) if names else lambda _: ()


def read_arguments(program: torch.export.ExportedProgram) -> Arguments:
    """The parameters of an exported program, under the model's own names where it keeps them.

    Raises:
        ConventionError: The program does not tell its calling convention.
    """
    spec = program.call_spec.in_spec
    if spec is None or spec.type is not tuple or [child.type for child in spec.children()] != [tuple, dict]:
        raise ConventionError(
            "exported program",
            found=f"the input structure {spec}",
            expected="a pair of positional arguments and keywords",
            fix="Export the model with torch.export or intarsia.",
        )
    positional, keywords = spec.children()
    names = _positional_names(program, positional.children())
    structures = [read_structure(child, name) for child, name in zip(positional.children(), names, strict=True)]
    named = {
        name: read_structure(child, name) for name, child in zip(keywords.context, keywords.children(), strict=True)
    }
    leaves = [leaf for structure in (*structures, *named.values()) for leaf in leaf_names(structure)]
    user = [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    fixed = {
        leaf: argument.value
        for leaf, argument in zip(leaves, user, strict=False)
        if isinstance(argument, ConstantArgument)
    }
    return Arguments(structures, named, fixed)


def _positional_names(program: torch.export.ExportedProgram, specs: Sequence[TreeSpec]) -> list[str]:
    signature = program.module_call_graph[0].signature
    known = (signature.forward_arg_names if signature else None) or []
    if len(known) >= len(specs):
        return list(known[: len(specs)])
    inputs = program.graph_signature.input_specs
    placeholders = iter([spec.arg.name for spec in inputs if spec.kind is InputKind.USER_INPUT])
    names = []
    for i, spec in enumerate(specs):
        own = [next(placeholders, "") for _ in range(spec.num_leaves)]
        names.append(own[0] if spec.is_leaf() and own[0] else f"args[{i}]")
    return names
