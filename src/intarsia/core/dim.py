"""Sizes in engine signatures: integers, named sizes, and expressions over them."""

from __future__ import annotations

import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from intarsia.errors import ArgumentError

Size: TypeAlias = int | torch.SymInt


@dataclass(frozen=True)
class Symbol:
    """A named size, such as `b`."""

    name: str


@dataclass(frozen=True)
class Operation:
    """An integer operation on two dims: `+ - * // %` (floor division, Python's remainder), `max` or `min`."""

    operator: str
    left: Dim
    right: Dim


Dim: TypeAlias = int | Symbol | Operation

# sym_max and sym_min build an expression where max and min would compare, and so constrain the program.
_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}
_DIVISIONS = {"//", "%"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def evaluate(dim: Dim, sizes: Mapping[str, Size]) -> Size:
    """The size that `dim` has when the named sizes are `sizes`; works alike on integers and symbolic integers.

    Raises:
        ArgumentError: It is divided by zero.

    Example:
        >>> evaluate(Operation("+", Operation("*", 2, Symbol("b")), 1), {"b": 4})
        9
    """
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Symbol):
        return sizes[dim.name]
    left, right = evaluate(dim.left, sizes), evaluate(dim.right, sizes)
    if dim.operator in _DIVISIONS and isinstance(right, int) and right == 0:
        raise ArgumentError(
            f"engine size {render(dim)}",
            found="a division by zero",
            expected="sizes for which it can be worked out",
            fix="Pass inputs of other sizes.",
        )
    result: Size = _FUNCTIONS[dim.operator](left, right)
    return result


def render(dim: Dim) -> str:
    """Text of a dim, as the signature grammar reads it.

    Example:
        >>> render(Operation("*", 2, Operation("+", Symbol("b"), 1)))
        '2*(b + 1)'
    """
    if isinstance(dim, int):
        return str(dim)
    if isinstance(dim, Symbol):
        return dim.name
    if dim.operator not in _PRECEDENCE:
        return f"{dim.operator}({render(dim.left)}, {render(dim.right)})"
    left = _render_operand(dim.left, _PRECEDENCE[dim.operator])
    right = _render_operand(dim.right, _PRECEDENCE[dim.operator] + 1)
    return f"{left}*{right}" if dim.operator == "*" else f"{left} {dim.operator} {right}"


def _render_operand(dim: Dim, precedence: int) -> str:
    text = render(dim)
    binds_weaker = isinstance(dim, Operation) and _PRECEDENCE.get(dim.operator, precedence) < precedence
    return f"({text})" if binds_weaker else text


def symbol_names(dim: Dim) -> Iterator[str]:
    """Names of the sizes that a dim refers to, from left to right."""
    if isinstance(dim, Symbol):
        yield dim.name
    if isinstance(dim, Operation):
        yield from symbol_names(dim.left)
        yield from symbol_names(dim.right)


def rename(dim: Dim, names: dict[str, str]) -> Dim:
    """The dim with its named sizes called n0, n1, ... by the order in which they are first met.

    Args:
        dim: What to rename in.
        names: New names by the old ones; those that are met first here are added.

    Example:
        >>> render(rename(Operation("*", Symbol("s7"), Symbol("s2")), {"s2": "n0"}))
        'n1*n0'
    """
    if isinstance(dim, Symbol):
        return Symbol(names.setdefault(dim.name, f"n{len(names)}"))
    if isinstance(dim, Operation):
        left = rename(dim.left, names)
        return Operation(dim.operator, left, rename(dim.right, names))
    return dim


@dataclass(frozen=True)
class Solution:
    """How to work out a named size: the size at one axis of one input is `factor * named size + rest`."""

    input: int
    axis: int
    factor: int
    rest: Dim

    def value(self, shapes: Any, sizes: Mapping[str, Size]) -> Size:
        """The named size, given all input shapes and the sizes worked out before it."""
        size: Size = shapes[self.input][self.axis]
        if self.rest != 0:
            size = size - evaluate(self.rest, sizes)
        return size if self.factor == 1 else size // self.factor


def solve(inputs: Sequence[tuple[Dim, ...]]) -> dict[str, Solution]:
    """How to work out each named size from the input sizes, in an order in which it can be done.

    A name that stands alone at some axis is read there. A name that occurs only in expressions is solved for where
    one is linear in it and all other names are known. A name that cannot be worked out is left out.
    """
    solved: dict[str, Solution] = {}
    axes = [(i, axis, dim) for i, dims in enumerate(inputs) for axis, dim in enumerate(dims)]
    for i, axis, dim in axes:
        if isinstance(dim, Symbol):
            solved.setdefault(dim.name, Solution(i, axis, 1, 0))
    unknown = [set(symbol_names(dim)) - solved.keys() for _, _, dim in axes]
    places = defaultdict(list)
    for place, names in enumerate(unknown):
        for name in names:
            places[name].append(place)
    waiting = deque(place for place, names in enumerate(unknown) if len(names) == 1)
    while waiting:
        place = waiting.popleft()
        (i, axis, dim), names = axes[place], unknown[place]
        name = next(iter(names), "")
        factor, rest = _linear(dim, name) or (0, 0)
        if not name or factor == 0:
            continue
        solved[name] = Solution(i, axis, factor, rest)
        for other in places[name]:
            unknown[other].remove(name)
            if len(unknown[other]) == 1:
                waiting.append(other)
    return solved


def _linear(dim: Dim, name: str) -> tuple[int, Dim] | None:
    """`(factor, rest)` with `dim == factor * name + rest` and an integer factor, or None when `dim` is not so."""
    if isinstance(dim, int):
        return 0, dim
    if isinstance(dim, Symbol):
        return (1, 0) if dim.name == name else (0, dim)
    left, right = _linear(dim.left, name), _linear(dim.right, name)
    if left is None or right is None:
        return None
    if left[0] == 0 and right[0] == 0:
        return 0, dim
    if dim.operator in {"+", "-"}:
        sign = 1 if dim.operator == "+" else -1
        return left[0] + sign * right[0], Operation(dim.operator, left[1], right[1])
    if dim.operator == "*" and isinstance(dim.left, int):
        return dim.left * right[0], Operation("*", dim.left, right[1])
    if dim.operator == "*" and isinstance(dim.right, int):
        return dim.right * left[0], Operation("*", left[1], dim.right)
    return None


def from_expression(expression: Any) -> Dim | None:
    """The dim that says the same as a sympy expression of torch's symbolic sizes, or None when no dim can."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return Symbol(expression.name)
    if expression.is_Add:
        return _sum(expression)
    if expression.is_Mul:
        return _chain("*", expression.as_ordered_factors())
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return _chain("*", [expression.base] * int(expression.exp))
    # torch's own function classes are private, so they are known by name.
    operator_of = {"FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%", "Max": "max", "Min": "min"}
    function = operator_of.get(expression.func.__name__)
    return None if function is None else _chain(function, expression.args)


def _sum(expression: Any) -> Dim | None:
    total: Dim | None = None
    for term in expression.as_ordered_terms():
        negative = total is not None and term.could_extract_minus_sign()
        dim = from_expression(-term if negative else term)
        if dim is None:
            return None
        total = dim if total is None else Operation("-" if negative else "+", total, dim)
    return total


def _chain(function: str, operands: Any) -> Dim | None:
    result: Dim | None = None
    for operand in operands:
        dim = from_expression(operand)
        if dim is None:
            return None
        result = dim if result is None else Operation(function, result, dim)
    return result
