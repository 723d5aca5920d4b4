"""The dynamic sizes of a program, named by where its inputs show them first, so that two programs can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from intarsia._torch import int_bounds

Bounds: TypeAlias = tuple[int, int | None]


class Renaming:
    """New names for the symbols of one program: those of its inputs in their order, then those that data decide."""

    def __init__(self, program: ExportedProgram) -> None:
        inputs = free_symbols(node.meta.get("val") for node in user_inputs(program))
        rest = [s for s in free_symbols(_all_values(program)) if s not in set(inputs)]
        names = [*(f"size_{i}" for i in range(len(inputs))), *(f"data_{i}" for i in range(len(rest)))]
        self._renamed = {old: sympy.Symbol(new, integer=True) for old, new in zip([*inputs, *rest], names, strict=True)}
        self._known: dict[sympy.Expr, sympy.Expr | None] = {}

    def of(self, expression: sympy.Expr) -> sympy.Expr | None:
        """An expression in the new names, or None when it holds a symbol that the program's graph does not show."""
        if expression not in self._known:
            hidden = expression.free_symbols - self._renamed.keys()
            self._known[expression] = None if hidden else sympy.expand(expression.xreplace(self._renamed))
        return self._known[expression]


def user_inputs(program: ExportedProgram) -> list[Node]:
    """Placeholders of the inputs that the caller passes, in order."""
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    placeholders = program.graph.find_nodes(op="placeholder", sort=True)
    return [node for node, kind in zip(placeholders, kinds, strict=True) if kind is InputKind.USER_INPUT]


def free_symbols(values: Iterable[Any]) -> list[sympy.Symbol]:
    """Symbols in the sizes of fake tensors, and in symbolic numbers, in the order of their first use."""
    found: dict[sympy.Symbol, None] = {}
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                found.update(dict.fromkeys(sorted(size.node.expr.free_symbols, key=str)))
    return list(found)


def ranges_of(program: ExportedProgram) -> Mapping[sympy.Expr, Bounds]:
    """The stated range of every symbol and size, by its own name."""
    return {key: int_bounds(bounds) for key, bounds in program.range_constraints.items() if bounds.is_int}


def ranges_difference(found: ExportedProgram, expected: ExportedProgram) -> str:
    """The first difference between the sizes that two programs allow, or no text; names of sizes do not count."""
    types = zip(user_inputs(found), _input_types(found), _input_types(expected), strict=False)
    for node, one, other in types:
        if one != other:
            return f"input '{node.name}' is {one}, and {other} in the retraced program"
    renamed = [_renamed_ranges(program) for program in (found, expected)]
    for size in {**renamed[0], **renamed[1]}:
        one, other = (_text(ranges.get(size)) for ranges in renamed)
        if one != other and (size.is_Symbol or all(size in ranges for ranges in renamed)):
            return f"{size} is {one}, and {other} in the retraced program"
    return ""


def _renamed_ranges(program: ExportedProgram) -> dict[sympy.Expr, Bounds]:
    renaming = Renaming(program)
    renamed = ((renaming.of(size), bounds) for size, bounds in ranges_of(program).items())
    return {size: bounds for size, bounds in renamed if size is not None}


def _text(bounds: Bounds | None) -> str:
    if bounds is None:
        return "without a range"
    return f"{bounds[0]} to {'any size' if bounds[1] is None else bounds[1]}"


def _input_types(program: ExportedProgram) -> list[str]:
    renaming = Renaming(program)
    return [_type_text(node.meta.get("val"), renaming) for node in user_inputs(program)]


def _type_text(value: Any, renaming: Renaming) -> str:
    if isinstance(value, torch.Tensor):
        sizes = [str(_size(size, renaming)) for size in value.shape]
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"
    return str(_size(value, renaming))


def _size(size: Any, renaming: Renaming) -> Any:
    return renaming.of(size.node.expr) if isinstance(size, torch.SymInt) else size


def _all_values(program: ExportedProgram) -> Iterable[Any]:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        yield from value if isinstance(value, (tuple, list)) else (value,)
