"""The grammar of signature text: a tokenizer and a small recursive reader. Nothing is ever evaluated.

The grammar::

    signature := "(" [ type { "," type } ] ")" "->" "(" [ output { "," output } ] ")"
    output    := type [ "into" integer ]
    type      := dtype "[" [ dim { "," dim } ] "]"
    dim       := term { ("+" | "-") term }
    term      := factor { ("*" | "//" | "%") factor }
    factor    := integer | name | "-" factor | "(" dim ")" | ("max" | "min") "(" dim "," dim { "," dim } ")"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from intarsia.core.dim import Dim, Operation, Symbol
from intarsia.errors import EngineError

_TOKEN = re.compile(r"\s*(->|//|[()\[\],+\-*%]|[0-9]{1,18}(?![0-9])|[A-Za-z_][A-Za-z0-9_]*)")
_MAX_DEPTH = 50
_MOST_OPERATIONS = 100
_MOST_CHARACTERS = 1 << 20
_Item = TypeVar("_Item")

TypeText = tuple[str, tuple[Dim, ...]]
OutputText = tuple[TypeText, int | None]


def read_signature(text: str) -> tuple[list[TypeText], list[OutputText]]:
    """Inputs and outputs of a signature: a dtype's name and dims, and for outputs the input that each is written into.

    Raises:
        EngineError: The text does not follow the grammar.
    """
    return _Reader(text).signature()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = self._operations = 0
        self._tokens = self._tokenize()
        self._position = 0

    def signature(self) -> tuple[list[TypeText], list[OutputText]]:
        inputs = self._list("(", self._type, ")")
        self._take("->")
        outputs = self._list("(", self._output, ")")
        if self._next():
            raise self._error("the end")
        return inputs, outputs

    def _tokenize(self) -> list[str]:
        tokens, end = [], 0
        text = self._text.rstrip()
        if len(text) > _MOST_CHARACTERS:
            raise _syntax_error(text, f"{len(text)} characters", f"at most {_MOST_CHARACTERS}")
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                raise _syntax_error(self._text, repr(text[end:][:20]), "names, integers and operators")
            tokens.append(match[1])
            end = match.end()
        return tokens

    def _next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self, token: str) -> None:
        if self._next() != token:
            raise self._error(repr(token))
        self._position += 1

    def _accept(self, *tokens: str) -> str:
        token = self._next()
        if token not in tokens:
            return ""
        self._position += 1
        return token

    def _name(self) -> str:
        token = self._next()
        if not token.isidentifier():
            raise self._error("a name")
        self._position += 1
        return token

    def _error(self, expected: str) -> EngineError:
        found = repr(self._next()) if self._next() else "the end"
        return _syntax_error(self._text, f"{found} at token {self._position}", expected)

    def _list(self, opening: str, item: Callable[[], _Item], closing: str) -> list[_Item]:
        self._take(opening)
        items: list[_Item] = []
        while not self._accept(closing):
            if items:
                self._take(",")
            items.append(item())
        return items

    def _type(self) -> TypeText:
        return self._name(), tuple(self._list("[", self._size, "]"))

    def _size(self) -> Dim:
        self._operations = 0
        return self._dim()

    def _output(self) -> OutputText:
        type_text = self._type()
        if not self._accept("into"):
            return type_text, None
        if not self._next().isdigit():
            raise self._error("the position of an input")
        self._position += 1
        return type_text, int(self._tokens[self._position - 1])

    def _dim(self) -> Dim:
        return self._binary(self._term, "+", "-")

    def _term(self) -> Dim:
        return self._binary(self._factor, "*", "//", "%")

    def _binary(self, operand: Callable[[], Dim], *operators: str) -> Dim:
        result = operand()
        while token := self._accept(*operators):
            self._count(1)
            result = Operation(token, result, operand())
        return result

    def _count(self, operations: int) -> None:
        self._operations += operations
        if self._operations > _MOST_OPERATIONS:
            raise _syntax_error(self._text, f"more than {_MOST_OPERATIONS} operations in a size", "fewer")

    def _factor(self) -> Dim:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _syntax_error(self._text, f"more than {_MAX_DEPTH} nested expressions", "fewer")
        factor = self._negative() if self._accept("-") else self._atom()
        self._depth -= 1
        return factor

    def _negative(self) -> Dim:
        factor = self._factor()
        return -factor if isinstance(factor, int) else Operation("*", -1, factor)

    def _atom(self) -> Dim:
        if self._next() == "(":
            return self._parenthesised()
        if self._next().isdigit():
            self._position += 1
            return int(self._tokens[self._position - 1])
        name = self._name()
        if self._next() != "(":
            return Symbol(name)
        if name not in {"max", "min"}:
            raise self._error("an operator or ','")
        return self._extremum(name)

    def _parenthesised(self) -> Dim:
        self._take("(")
        dim = self._dim()
        self._take(")")
        return dim

    def _extremum(self, name: str) -> Dim:
        operands = self._list("(", self._dim, ")")
        if not operands:
            raise self._error("an operand")
        result = operands[0]
        self._count(len(operands))
        for operand in operands[1:]:
            result = Operation(name, result, operand)
        return result


def _syntax_error(text: str, found: str, expected: str) -> EngineError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return EngineError(
        f"engine signature {shown!r}",
        found=found,
        expected=expected,
        fix="Write it as in '(f32[b, 128], i64[b]) -> (f32[b, 2*b + 1])'.",
    )
