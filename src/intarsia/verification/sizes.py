"""The sizes at which a program is tried: the corners of the ranges that it states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch.export import ExportedProgram

from intarsia.errors import ConventionError, shorten
from intarsia.verification.symbols import Bounds, free_symbols, ranges_of, user_inputs

Point: TypeAlias = Mapping[sympy.Symbol, int]
"""A size for every symbol of the inputs."""

MAX_ELEMENTS = 2**20
"""No tensor that the graph shows is made larger than this, unless the lower bounds make it so."""

_SHOWN_CHARACTERS = 60

OPEN_SPAN = 96
"""How far above its lower bound a size is tried that has no upper one."""


def corners(program: ExportedProgram) -> list[Point]:
    """Points at the corners of a program's ranges; one empty point when no size is dynamic.

    All sizes at their lower bounds, one above them, in the middle (each at another place, so that no two sizes agree by
    chance), and at their upper bounds; then, where there are several, every second one low and the others high. The
    higher points are drawn towards the lower bounds until no tensor has more than `MAX_ELEMENTS` elements.
    """
    return _points(program, _shares)


def middle(program: ExportedProgram) -> Point:
    """The one of the `corners` at which every size is somewhere in the middle of its range."""
    (point,) = _points(program, lambda count: [_middle(count)])
    return point


def _points(program: ExportedProgram, shares_of: Callable[[int], Iterable[Sequence[float]]]) -> list[Point]:
    symbols = free_symbols(node.meta.get("val") for node in user_inputs(program))
    if not symbols:
        return [{}]
    ranges = ranges_of(program)
    spans = [_span(symbol, ranges) for symbol in symbols]
    shapes = _shapes(program, set(symbols))
    points: dict[tuple[int, ...], Point] = {}
    for shares in shares_of(len(symbols)):
        sizes = _place(shares, spans)
        while _largest(shapes, dict(zip(symbols, sizes, strict=True))) > MAX_ELEMENTS and _is_high(sizes, spans):
            sizes = [max(low, low + (size - low) // 2) for (low, _), size in zip(spans, sizes, strict=True)]
        points[tuple(sizes)] = dict(zip(symbols, sizes, strict=True))
    return list(points.values())


def evaluate(size: Any, point: Point) -> int:
    """The number that a size of a fake tensor stands for at a point."""
    return _number(_expression(size), _substitution(point))


def _shares(count: int) -> Iterator[list[float | int]]:
    """For each point and symbol how much of its range: a fraction, or a whole number of steps above the lower bound."""
    yield [0] * count
    yield [1] * count
    yield _middle(count)
    yield [1.0] * count
    if count > 1:
        yield [0 if index % 2 else 1.0 for index in range(count)]
        yield [1.0 if index % 2 else 0 for index in range(count)]


def _middle(count: int) -> list[float]:
    return [0.5 / (1 + 0.37 * index) for index in range(count)]


def _place(shares: Sequence[float], spans: Sequence[tuple[int, int]]) -> list[int]:
    return [
        min(low + share, high) if isinstance(share, int) else low + int((high - low) * share)
        for share, (low, high) in zip(shares, spans, strict=True)
    ]


def _is_high(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    return any(size > low for size, (low, _) in zip(sizes, spans, strict=True))


def _span(symbol: sympy.Symbol, ranges: Mapping[sympy.Expr, Bounds]) -> tuple[int, int]:
    """Lowest and highest size to try of a symbol: its own range, narrowed by those of sizes linear in it."""
    low, high = ranges.get(symbol, (0, None))
    for size, (least, most) in ranges.items():
        if size.is_Symbol or size.free_symbols != {symbol}:
            continue
        offset = size.xreplace({symbol: sympy.Integer(0)})
        factor = sympy.expand(size - offset).coeff(symbol)
        if not (factor.is_Integer and offset.is_Integer and factor > 0):
            continue
        low = max(low, -((int(offset) - least) // int(factor)))
        if most is not None:
            bound = (most - int(offset)) // int(factor)
            high = bound if high is None else min(high, bound)
    return low, low + OPEN_SPAN if high is None else max(low, high)


def _shapes(program: ExportedProgram, symbols: set[sympy.Symbol]) -> list[tuple[sympy.Expr, ...]]:
    """The different shapes in a graph that these symbols decide."""
    found: dict[tuple[sympy.Expr, ...], None] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                found[tuple(map(_expression, item.shape))] = None
    used = {sizes: set[sympy.Symbol]().union(*(size.free_symbols for size in sizes)) for sizes in found}
    return [sizes for sizes, own in used.items() if own and own <= symbols]


def _expression(size: Any) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _largest(shapes: Sequence[Sequence[sympy.Expr]], point: Point) -> int:
    given = _substitution(point)
    numbers = [[_number(size, given) for size in sizes] for sizes in shapes]
    return max((int(torch.Size(sizes).numel()) for sizes in numbers), default=0)


def _number(size: sympy.Expr, given: Mapping[sympy.Symbol, sympy.Integer]) -> int:
    """The number that a size is at a point; a program from a file may have any expression for a size."""
    try:
        return int(size.xreplace(given))
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        at = ", ".join(f"{symbol} = {value}" for symbol, value in given.items())
        raise ConventionError(
            f"the size {shorten(str(size), _SHOWN_CHARACTERS)}",
            found=f"no number of elements at {at}",
            expected="a whole number wherever the ranges of the program allow",
            fix="Export the model again.",
        ) from error


def _substitution(point: Point) -> dict[sympy.Symbol, sympy.Integer]:
    return {symbol: sympy.Integer(size) for symbol, size in point.items()}
