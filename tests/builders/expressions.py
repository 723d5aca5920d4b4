"""Random expressions over sizes, in the grammar of what torch writes."""

from __future__ import annotations

import random
from collections.abc import Sequence

_NUMBERS = ["0", "1", "2", "-1", "7", "97", "-1000000007", "1180591620717411303424", "9" * 38]
_PAIRS = [
    "Add", "Mul", "Max", "Min", "FloorDiv", "Mod", "PythonMod", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv",
    "StrictLessThan", "LessThan", "Equality", "Unequality", "And", "Or", "BitwiseFn_bitwise_and", "LShift", "RShift",
]  # fmt: skip
_SINGLE = ["floor", "ceiling", "Abs", "CeilToInt", "FloorToInt", "ToFloat", "TruncToInt", "OpaqueUnaryFn_sqrt", "Not"]
_LONG = ["Add", "Mul", "Max", "Min", "Piecewise", "And", "Or", "IsNonOverlappingAndDenseIndicator"]


def draw_expression(draw: random.Random, symbols: Sequence[str], leaves: int) -> str:
    """The text of an expression with about so many symbols and numbers."""
    if leaves <= 1:
        return _draw_leaf(draw, symbols)
    form = draw.random()
    if form < 0.55:
        left = draw.randrange(1, leaves)
        parts = [draw_expression(draw, symbols, left), draw_expression(draw, symbols, leaves - left)]
        return f"{draw.choice(_PAIRS)}({', '.join(parts)})"
    if form < 0.7:
        return f"{draw.choice(_SINGLE)}({draw_expression(draw, symbols, leaves - 1)})"
    if form < 0.8:
        base, exponent = draw_expression(draw, symbols, leaves - 1), draw.randrange(-4, 17)
        return f"{draw.choice(['Pow', 'PowByNatural'])}({base}, Integer({exponent}))"
    parts = [draw_expression(draw, symbols, 1 + leaves // 8) for _ in range(draw.randrange(2, 9))]
    return f"{draw.choice(_LONG)}({', '.join(parts)})"


def _draw_leaf(draw: random.Random, symbols: Sequence[str]) -> str:
    form = draw.random()
    if form < 0.6:
        return f"Symbol('{draw.choice(symbols)}', integer=True)"
    if form < 0.9:
        return _draw_integer(draw, _NUMBERS)
    return draw.choice(
        ["Rational(1, 3)", "Rational(-7, 2)", "Float('2.5', precision=53)", "oo", "-oo", "int_oo", "true"]
    )


def _draw_integer(draw: random.Random, numbers: Sequence[str]) -> str:
    return f"Integer({draw.choice(numbers)})"
