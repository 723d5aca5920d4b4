"""The checks of a call's inputs, made of what a program's graph and ranges say; nothing is compiled of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from intarsia.core.dim import Dim, Operation, Symbol, evaluate, render, solve, symbol_names
from intarsia.errors import ArgumentError
from intarsia.runtime.inputs import (
    RESHAPE,
    AnyInput,
    ConstantInput,
    Input,
    IntegerInput,
    TensorInput,
    read_dim,
    render_dim,
)
from intarsia.runtime.sizes import NamedSizes, Sizes


class InputChecks:
    """All checks of a program's inputs.

    Attributes:
        inputs: One description for each input, in graph order.
        named_sizes: Named sizes of the program.
    """

    def __init__(self, inputs: Sequence[Input], named_sizes: NamedSizes) -> None:
        self.inputs = tuple(inputs)
        self.named_sizes = named_sizes
        self._checks = tuple(entry.check for entry in self.inputs)
        self._relations = tuple(
            (i, axis, dim)
            for i, entry in enumerate(self.inputs)
            for axis, dim in enumerate(entry.dims)
            if dim is not None and not isinstance(dim, int | Symbol)
        )
        # A size that nothing can check tells nothing either: 0 keeps its axis in place.
        known = [tuple(0 if dim is None else dim for dim in entry.dims) for entry in self.inputs]
        bare = {dim.name for dims in known for dim in dims if isinstance(dim, Symbol)}
        self._solutions = {name: way for name, way in solve(known).items() if name not in bare}

    def run(self, leaves: Sequence[Any]) -> None:
        """Check the inputs of one call.

        Raises:
            ArgumentError: Names the first input that does not fit, what was found, and what is allowed.
        """
        sizes: Sizes = {}
        for check, value in zip(self._checks, leaves, strict=True):
            check(value, sizes)
        if self._relations:
            self._check_relations(leaves, sizes)

    def _check_relations(self, leaves: Sequence[Any], sizes: Sizes) -> None:
        shapes = [entry.shape(value) for entry, value in zip(self.inputs, leaves, strict=True)]
        for name, way in self._solutions.items():
            sizes[name] = int(way.value(shapes, sizes))
            self._check_solved(way.input, way.axis, shapes, sizes)
        for i, axis, dim in self._relations:
            if set(symbol_names(dim)) <= sizes.keys() and evaluate(dim, sizes) != shapes[i][axis]:
                raise self._unequal(i, axis, dim, shapes, sizes)

    def _check_solved(self, i: int, axis: int, shapes: Sequence[Sequence[int]], sizes: Sizes) -> None:
        """Check a size that a name was solved from. The range that counts is its own: the name's is made by torch."""
        dim, found = self.inputs[i].dims[axis], shapes[i][axis]
        if dim is None:
            return
        if evaluate(dim, sizes) != found:
            raise self._unsolvable(i, axis, shapes)
        subject = f"input '{self.inputs[i].name}'"
        self.named_sizes.check_range(dim, found, subject, f"size {found} in dimension {axis}")

    def _unsolvable(self, i: int, axis: int, shapes: Sequence[Sequence[int]]) -> ArgumentError:
        return ArgumentError(
            f"input '{self.inputs[i].name}'",
            found=f"size {shapes[i][axis]} in dimension {axis}",
            expected=_form(self.inputs[i].dims[axis]),
            fix=RESHAPE,
        )

    def _unequal(
        self, i: int, axis: int, dim: Dim, shapes: Sequence[Sequence[int]], sizes: Mapping[str, int]
    ) -> ArgumentError:
        known = ", ".join(f"{name} = {sizes[name]}" for name in dict.fromkeys(symbol_names(dim)))
        return ArgumentError(
            f"input '{self.inputs[i].name}'",
            found=f"size {shapes[i][axis]} in dimension {axis}",
            expected=f"{evaluate(dim, sizes)}, which is {render(dim)} with {known} from the other inputs",
            fix=RESHAPE,
        )


def _form(dim: Dim | None) -> str:
    if isinstance(dim, Operation) and dim.operator == "*":
        factors = [factor for factor in (dim.left, dim.right) if isinstance(factor, int)]
        if factors and (isinstance(dim.left, Symbol) or isinstance(dim.right, Symbol)):
            return f"a multiple of {factors[0]}"
    return f"a size of the form {render_dim(dim)}"


def read_checks(program: torch.export.ExportedProgram, names: Sequence[str]) -> InputChecks:
    """The checks of an exported program's inputs, whose names the user knows as `names`."""
    sizes = NamedSizes(program)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    user = [
        (node, spec.arg)
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
        if spec.kind is InputKind.USER_INPUT
    ]
    return InputChecks(
        [_read_input(name, node, argument, sizes) for name, (node, argument) in zip(names, user, strict=True)], sizes
    )


def _read_input(name: str, node: torch.fx.Node, argument: Any, sizes: NamedSizes) -> Input:
    if isinstance(argument, ConstantArgument):
        return ConstantInput(name, argument.value)
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return TensorInput(name, value, sizes)
    if isinstance(value, torch.SymInt):
        return IntegerInput(name, read_dim(value), sizes)
    return AnyInput(name, None)
