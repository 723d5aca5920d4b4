"""Inputs for a program, drawn from what it says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Node

from intarsia._torch import pytree
from intarsia.errors import ConventionError
from intarsia.verification.sizes import Point, evaluate
from intarsia.verification.symbols import user_inputs
from intarsia.verification.uses import Use, find_use, integer_inputs

_FIX = "Pass inputs=[(args, kwargs), ...], calls to make."


@dataclass(frozen=True)
class Call:
    """One call to make.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        place: The sizes of the call, for people; empty when nothing is dynamic or the caller gave the inputs.
        drawn: Whether the inputs were drawn.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: str = ""
    drawn: bool = False


class Drawing:
    """Draws the inputs of one program.

    Floats are normal, bools random, an integer tensor is drawn by its use (see `find_use`), a number is the one that
    the program was exported with. A tensor has the strides that it was exported with. The same seed gives the same
    inputs.

    Args:
        program: Tells dtypes, sizes and the structure of the arguments.

    Raises:
        ConventionError: The use of an integer input cannot be told, or an input is no tensor and no number.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._inputs = user_inputs(program)
        self._constants = {
            spec.arg.name: spec.arg.value
            for spec in program.graph_signature.input_specs
            if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument)
        }
        self._uses = {node: _use_of(node) for node in integer_inputs(self._inputs)}

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
            raise ConventionError(
                f"input '{node.name}'",
                found=f"a {type(value).__name__}",
                expected="a tensor or a number, which can be drawn",
                fix=_FIX,
            )
        shape = [evaluate(size, point) for size in value.shape]
        strides = [evaluate(stride, point) for stride in value.stride()]
        span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0
        drawn = _draw(span, value.dtype, _highest(self._uses.get(node), point), generator)
        return drawn.to(value.device).as_strided(shape, strides)

    def _place(self, point: Point) -> str:
        """Where each size is first seen, and what it is: `x.shape[0] = 4`."""
        seen: dict[Any, str] = {}
        for node in self._inputs:
            value = node.meta.get("val")
            sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
            for position, size in sizes:
                if isinstance(size, torch.SymInt):
                    name = node.name if position is None else f"{node.name}.shape[{position}]"
                    seen.setdefault(size.node.expr, f"{name} = {evaluate(size, point)}")
        return ", ".join(seen.values())


def _use_of(node: Node) -> Use:
    use = find_use(node)
    if use is None:
        raise ConventionError(
            f"input '{node.name}'",
            found="integers whose use the graph does not tell",
            expected="integers that the graph uses as an index or as a mask",
            fix=_FIX,
        )
    return use


def _highest(use: Use | None, point: Point) -> int:
    """The highest integer that may stand in an input; one for a mask."""
    sizes: Sequence[Any] = use.sizes if use else ()
    return max(min((evaluate(size, point) for size in sizes), default=2) - 1, 0)


def _draw(count: int, dtype: torch.dtype, highest: int, generator: torch.Generator) -> torch.Tensor:
    shape = (count,)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)
    return torch.randint(0, highest + 1, shape, generator=generator).to(dtype)
