"""Symbolic expressions in a file: the grammar of what torch writes. Nothing is evaluated here.

torch gives the text of an expression to `sympy.sympify`, which runs it as Python. Only a text of this grammar goes
there. It is a part of what `sympy.srepr` prints::

    expression := name "(" [ expression { "," expression } ] ")"       name and number of arguments as in `_ARGUMENTS`
                | "Symbol" "(" quoted { "," name "=" truth } ")"
                | "Integer" "(" integer ")" | "Rational" "(" integer "," integer ")"
                | "Float" "(" quoted "," "precision" "=" integer ")"
                | [ "-" ] "oo" | "int_oo" | "true" | "false"

sympy computes what it can while it reads, so an expression is refused as well when that could take long: when a number
or the expression multiplied out becomes larger than `limits` says. What it does beyond reading is counted: it compares
each argument of `Max` and `Min` with each other one, once more for each such call or division around it, and multiplies
out products of sums.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from intarsia.formats.archive.limits import DEPTH, EXPRESSION_BITS, EXPRESSION_CHARACTERS, EXPRESSION_TERMS
from intarsia.formats.archive.refusal import Refused, quoted

_EXPECTED = "an expression that torch writes"
_TOKEN = re.compile(r" *(?:([A-Za-z_][A-Za-z0-9_]*)|(-?[0-9]{1,40}(?![0-9.eE]))|'([^'\\\n]{1,64})'|([(),=])|(-oo\b))")
_KINDS = ("", "name", "number", "quoted", "sign", "infinity")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_DECIMAL = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,60})?(?:e[+-]?[0-9]{1,3})?")
_ASSUMPTIONS = {"integer", "positive", "nonnegative", "real", "finite", "negative", "nonzero", "zero", "extended_real"}
_CONSTANTS = {"oo", "int_oo", "true", "false"}
_LARGEST_EXPONENT = 16
_PRECISIONS = range(1, 65)
_MANY = 64

# Fewest and most arguments of each function: those of sympy that torch's sizes are made of, and torch's own. Its
# ModularIndexing is for index arithmetic of the compiler, stands in no program, and takes sympy seconds.
_ARGUMENTS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(["Add", "Mul"], (1, 200)),
    **dict.fromkeys(["Max", "Min", "And", "Or", "Piecewise"], (1, 32)),
    **dict.fromkeys(["Not", "Abs", "floor", "ceiling", "ToFloat", "Identity"], (1, 1)),
    **dict.fromkeys(["CeilToInt", "FloorToInt", "TruncToFloat", "TruncToInt", "RoundToInt"], (1, 1)),
    **dict.fromkeys(["Equality", "Unequality", "ExprCondPair"], (2, 2)),
    **dict.fromkeys(["StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"], (2, 2)),
    **dict.fromkeys(["FloorDiv", "Mod", "PythonMod", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv"], (2, 2)),
    **dict.fromkeys(["Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal"], (2, 2)),
    **dict.fromkeys([f"BitwiseFn_bitwise_{name}" for name in ("and", "or", "xor")], (2, 2)),
    "Where": (3, 3),
    "IsNonOverlappingAndDenseIndicator": (1, _MANY),
    **dict.fromkeys(
        [
            f"OpaqueUnaryFn_{name}"
            for name in [
                "sqrt",
                "cos",
                "cosh",
                "sin",
                "sinh",
                "tan",
                "tanh",
                "asin",
                "acos",
                "atan",
                "exp",
                "log",
                "asinh",
                "log2",
            ]
        ],
        (1, 1),
    ),
}
# torch looks symbols up where it looks functions up.
_RESERVED = {*_ARGUMENTS, *_CONSTANTS, "Symbol", "Integer", "Rational", "Float"}
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal"}
_COMPARING = {"Max", "Min", "FloorDiv", "Mod", "PythonMod", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv"}
_SHIFTS = {"LShift", "RShift"}


class Expression(NamedTuple):
    """What a text says.

    Attributes:
        symbols: Names of its symbols.
        work: What sympy does for it beyond reading it, see `EXPRESSION_WORK`.
    """

    symbols: frozenset[str]
    work: int


class _Size(NamedTuple):
    """How large a part is: its terms when multiplied out, the bits of its numbers, and its value where it is a number.

    `value` is the exponent that the part can be, `leaves` counts symbols and numbers, and `compares` tells that sympy
    compares or divides in it.
    """

    terms: int = 1
    bits: int = 1
    value: float | None = None
    is_symbol: bool = False
    leaves: int = 1
    compares: bool = False


def read_expression(text: str) -> Expression:
    """What an expression says.

    Raises:
        Refused: The text does not follow the grammar, or is too large.

    Example:
        >>> read_expression("Add(Symbol('s0', integer=True), Integer(2))")
        Expression(symbols=frozenset({'s0'}), work=0)
    """
    if len(text) > EXPRESSION_CHARACTERS:
        raise Refused(f"an expression of {len(text)} characters", f"at most {EXPRESSION_CHARACTERS}")
    reader = _Reader(text)
    reader.whole()
    return Expression(frozenset(reader.symbols), reader.work)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokenize(text)
        self._position = 0
        self._depth = 0
        self.symbols: set[str] = set()
        self.work = 0

    def whole(self) -> None:
        self._expression()
        if self._position != len(self._tokens):
            raise self._fault()

    def _expression(self) -> _Size:
        kind, token = self._take()
        if kind == "infinity" or (kind == "name" and token in _CONSTANTS):
            return _Size()
        if kind != "name":
            raise self._fault()
        self._expect("(")
        literal = {"Symbol": self._symbol, "Integer": self._integer, "Rational": self._rational, "Float": self._float}
        size = literal[token]() if token in literal else self._call(token)
        self._expect(")")
        return size

    def _call(self, function: str) -> _Size:
        fewest, most = _ARGUMENTS.get(function, (1, 0))
        if most == 0:
            raise Refused(f"the function {quoted(function)} in the expression {quoted(self._text)}", _EXPECTED)
        self._depth += 1
        if self._depth > DEPTH:
            raise Refused(f"the nested expression {quoted(self._text)}", f"at most {DEPTH} levels")
        parts = [self._expression()]
        while self._at(","):
            self._expect(",")
            parts.append(self._expression())
        self._depth -= 1
        if not fewest <= len(parts) <= most:
            raise Refused(f"{len(parts)} arguments of {function} in {quoted(self._text)}", _EXPECTED)
        size = self._limited(_combined(function, parts))
        leaves, compares = sum(part.leaves for part in parts), any(part.compares for part in parts)
        self.work += _work(function, len(parts), leaves, compares=compares) + max(0, size.terms - leaves)
        return size._replace(leaves=leaves, compares=compares or function in _COMPARING)

    def _limited(self, size: _Size | None) -> _Size:
        if size is None or size.terms > EXPRESSION_TERMS or size.bits > EXPRESSION_BITS:
            raise Refused(
                f"the expression {quoted(self._text)}",
                f"one of at most {EXPRESSION_TERMS} terms and numbers of at most {EXPRESSION_BITS} bits",
            )
        return size

    def _symbol(self) -> _Size:
        name = self._quoted(_SYMBOL)
        if name in _RESERVED:
            raise self._fault()
        while self._at(","):
            self._expect(",")
            if self._take()[1] not in _ASSUMPTIONS:
                raise self._fault()
            self._expect("=")
            if self._take() not in (("name", "True"), ("name", "False")):
                raise self._fault()
        self.symbols.add(name)
        return _Size(is_symbol=True)

    def _integer(self) -> _Size:
        value = self._number()
        return self._limited(_Size(1, value.bit_length(), value))

    def _rational(self) -> _Size:
        above = self._number()
        self._expect(",")
        below = self._number()
        if below == 0:
            raise self._fault()
        return _Size(1, max(above.bit_length(), below.bit_length()), above / below)

    def _float(self) -> _Size:
        text = self._quoted(_DECIMAL)
        self._expect(",")
        if self._take() != ("name", "precision"):
            raise self._fault()
        self._expect("=")
        if self._number() not in _PRECISIONS or not math.isfinite(float(text)):
            raise self._fault()
        return _Size(1, EXPRESSION_BITS // 2 if "e" in text else 64)

    def _quoted(self, pattern: re.Pattern[str]) -> str:
        kind, token = self._take()
        if kind != "quoted" or not pattern.fullmatch(token):
            raise self._fault()
        return token

    def _number(self) -> int:
        kind, token = self._take()
        if kind != "number":
            raise self._fault()
        return int(token)

    def _at(self, token: str) -> bool:
        return self._position < len(self._tokens) and self._tokens[self._position] == ("sign", token)

    def _expect(self, token: str) -> None:
        if self._take() != ("sign", token):
            raise self._fault()

    def _take(self) -> tuple[str, str]:
        if self._position == len(self._tokens):
            raise self._fault()
        self._position += 1
        return self._tokens[self._position - 1]

    def _fault(self) -> Refused:
        return Refused(f"the text {quoted(self._text)} where an expression should stand", _EXPECTED)


def _work(function: str, count: int, leaves: int, *, compares: bool) -> int:
    """What sympy compares in a call, beyond two plain arguments."""
    if function not in _COMPARING:
        return 0
    return leaves * (max(0, count - 2) + compares)


def _combined(function: str, parts: list[_Size]) -> _Size | None:
    """The size of what a function makes of its arguments, or None where that could be anything."""
    if function in _POWERS:
        return _power(function, *parts)
    bits = [part.bits for part in parts]
    if function == "Mul":
        return _Size(math.prod(part.terms for part in parts), sum(bits))
    if function == "Add":
        return _Size(sum(part.terms for part in parts), max(bits) + len(bits).bit_length())
    return _Size(1, max(bits))


def _power(function: str, base: _Size, exponent: _Size) -> _Size | None:
    if exponent.is_symbol and function != "Pow":
        return _Size(1, base.bits)
    if exponent.value is None or abs(exponent.value) > (_MANY if function in _SHIFTS else _LARGEST_EXPONENT):
        return None
    size = math.ceil(abs(exponent.value))
    if function in _SHIFTS:
        return _Size(1, base.bits + size)
    return _Size(base.terms**size, base.bits * max(size, 1))


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens, end = [], 0
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None:
            raise Refused(f"the text {quoted(text)} where an expression should stand", _EXPECTED)
        kind = _KINDS[match.lastindex or 0]
        tokens.append((kind, match[match.lastindex or 0]))
        end = match.end()
    return tokens
