"""Inputs for a program, drawn from what it says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Node

from intarsia._torch import TreeSpec, pytree
from intarsia.core.boundary import is_boundary
from intarsia.core.paths import input_paths
from intarsia.core.uses import Use, engine_inputs, find_use, integer_inputs
from intarsia.errors import ConventionError, first_line, with_article
from intarsia.verification.sizes import Point, evaluate
from intarsia.verification.symbols import user_inputs

_MOST_SHUFFLED = 2**24
_FIX = "Pass inputs=[(args, kwargs), ...], calls to make, or example=(args, kwargs), a call whose integers tell."


class UndrawableInput(ConventionError):
    """An input of which the program does not tell what may stand in it."""


@dataclass(frozen=True)
class Call:
    """One call to make.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        place: The sizes of the call, for people; empty when nothing is dynamic or the caller gave the inputs.
        drawn: Whether the inputs were drawn.
        method: Name of the method to call; empty for a program that is one.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: str = ""
    drawn: bool = False
    method: str = ""


@dataclass(frozen=True)
class Span:
    """The lowest and the highest integer of some examples, and whether all integers of each differ."""

    lowest: int
    highest: int
    distinct: bool

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Integers as in the example: positions that a call writes at have to differ where those of the example do."""
        size = self.highest - self.lowest + 1
        if self.distinct and count <= size <= _MOST_SHUFFLED:
            return torch.randperm(size, generator=generator)[:count] + self.lowest
        return torch.randint(self.lowest, self.highest + 1, (count,), generator=generator)


class Drawing:
    """Draws the inputs of one program.

    Floats are normal, bools random, an integer tensor is drawn by its use (see `find_use`), a number is the one that
    the program was exported with. A tensor has the strides that it was exported with. The same seed gives the same
    inputs.

    Args:
        program: Tells dtypes, sizes and the structure of the arguments.
        examples: Calls whose integers tell what may stand in those inputs of which the graph does not.

    Attributes:
        findings: What was taken from the examples, for people.

    Raises:
        UndrawableInput: The use of an integer input cannot be told, or an input is no tensor and no number.
        ConventionError: An example has another structure than the program's arguments.
    """

    def __init__(self, program: ExportedProgram, *examples: Call) -> None:
        self._program = program
        self._inputs = user_inputs(program)
        self._paths = dict(zip(self._inputs, input_paths(program), strict=True))
        self._constants = {
            spec.arg.name: spec.arg.value
            for spec in program.graph_signature.input_specs
            if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument)
        }
        engines = engine_inputs(program)
        tells = not is_boundary(program)
        found = {node: find_use(node, engines) if tells else None for node in integer_inputs(self._inputs)}
        spans = _spans(program, examples, [node for node, use in found.items() if use is None])
        self._uses = {node: use or spans[node] for node, use in found.items()}
        self.findings = tuple(
            f"the integers of input {self._paths[node]!r} were drawn from {use.lowest} to {use.highest}, "
            "as in the example"
            for node, use in spans.items()
        )

    def draw(self, point: Point, seed: int) -> Call:
        """Inputs at a point of the ranges."""
        generator = torch.Generator().manual_seed(seed)
        leaves = [self._leaf(node, point, generator) for node in self._inputs]
        args, kwargs = pytree.tree_unflatten(leaves, self._program.call_spec.in_spec)
        return Call(tuple(args), kwargs, self._place(point), drawn=True)

    def _leaf(self, node: Node, point: Point, generator: torch.Generator) -> Any:
        if node.name in self._constants:
            return self._constants[node.name]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return evaluate(value, point)
        if not isinstance(value, torch.Tensor):
            raise UndrawableInput(
                f"input {self._paths[node]!r}",
                found=with_article(type(value).__name__),
                expected="a tensor or a number, which can be drawn",
                fix="Pass inputs=[(args, kwargs), ...], calls to make.",
            )
        shape = [evaluate(size, point) for size in value.shape]
        strides = [evaluate(stride, point) for stride in value.stride()]
        span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0
        try:
            drawn = _draw(span, value.dtype, self._uses.get(node, Use()), point, generator)
            return drawn.to(value.device).as_strided(shape, strides)
        except RuntimeError as error:
            raise UndrawableInput(
                f"input {self._paths[node]!r}",
                found=f"sizes {shape} and strides {strides}, of which torch makes no tensor ({first_line(error)})",
                expected="a tensor that fits into memory",
                fix="Pass inputs=[(args, kwargs), ...], calls to make.",
            ) from error

    def _place(self, point: Point) -> str:
        """Where each size is first seen, and what it is: `x.shape[0] = 4`."""
        seen: dict[Any, str] = {}
        for node in self._inputs:
            value = node.meta.get("val")
            sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
            for position, size in sizes:
                if isinstance(size, torch.SymInt):
                    path = self._paths[node]
                    name = path if position is None else f"{path}.shape[{position}]"
                    seen.setdefault(size.node.expr, f"{name} = {evaluate(size, point)}")
        return ", ".join(seen.values())


def _spans(program: ExportedProgram, examples: Sequence[Call], untold: Sequence[Node]) -> dict[Node, Span]:
    """From where to where the integers of examples reach, for inputs whose use the graph does not tell."""
    if not untold:
        return {}
    inputs = user_inputs(program)
    leaves = [dict(zip(inputs, _example_leaves(program, example), strict=True)) for example in examples]
    paths = dict(zip(inputs, input_paths(program), strict=True))
    untelling = "the graph does" if not is_boundary(program) else "a file without a graph does"
    return {node: _span(paths[node], [values[node] for values in leaves], untelling) for node in untold}


def _example_leaves(program: ExportedProgram, example: Call) -> list[Any]:
    """The values of an example call, in the order of the program's inputs."""
    expected = program.call_spec.in_spec
    keywords = expected.child(1).context
    in_order = {name: example.kwargs[name] for name in keywords if name in example.kwargs}
    leaves, found = pytree.tree_flatten((tuple(example.args), {**in_order, **example.kwargs}))
    if found != expected:
        raise ConventionError(
            "the example inputs",
            found=_structure_text(found),
            expected=f"the structure of the program's arguments, {_structure_text(expected)}",
            fix="Pass the example inputs that the program was made with.",
        )
    return leaves


def _structure_text(spec: TreeSpec) -> str:
    """Arguments with a star for each value: `((*, [*, *]), {'mask': *})`."""
    return str(pytree.tree_unflatten([_Star()] * spec.num_leaves, spec))


class _Star:
    def __repr__(self) -> str:
        return "*"


def _span(path: str, values: Sequence[Any], untelling: str) -> Span:
    given = [value.flatten().tolist() for value in values if isinstance(value, torch.Tensor) and value.numel()]
    if given:
        distinct = all(len(set(one)) == len(one) for one in given) and any(len(one) > 1 for one in given)
        return Span(min(map(min, given)), max(map(max, given)), distinct)
    raise UndrawableInput(
        f"input {path!r}",
        found=f"integers whose use {untelling} not tell",
        expected="integers that are used as an index or as a mask",
        fix=_FIX,
    )


def _draw(count: int, dtype: torch.dtype, use: Use | Span, point: Point, generator: torch.Generator) -> torch.Tensor:
    shape = (count,)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)
    if isinstance(use, Span):
        return use.draw(count, generator).to(dtype)
    above = min((evaluate(size, point) for size in use.sizes), default=2)  # zero and one for a mask
    return torch.randint(0, max(above, 1), shape, generator=generator).to(dtype)
