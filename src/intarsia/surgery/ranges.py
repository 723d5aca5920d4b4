"""Dynamic sizes: which dims of the inputs are dynamic, and the range of every symbol.

Ranges come from `dynamic_shapes`, from the hybrid (`hybrid.meta["range_constraints"]`, which `compile` fills), or else
from the shape environment of the metadata. The environment holds sizes of 0 and 1 apart from the others, so that its
lower bound is 2 for every dynamic size; the first two say what was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import sympy
import torch
from torch.export import Dim

from intarsia._torch import (
    DerivedDim,
    DimHint,
    ValueRanges,
    bounds_of,
    is_static_hint,
    new_symbol,
    pytree,
)
from intarsia.errors import ConventionError
from intarsia.surgery import limits
from intarsia.surgery.convention import Convention, InputLeaf
from intarsia.surgery.limits import check_limit
from intarsia.surgery.metadata import Metadata, expression

Ranges = dict[sympy.Expr, "ValueRanges[Any]"]
Dims = dict[int, Any]
"""Dynamic dims of one tensor: position -> `torch.export.Dim` or hint."""


def leaf_dims(convention: Convention, dynamic_shapes: Any) -> list[Dims]:
    """The dynamic dims that `dynamic_shapes` gives to each input leaf.

    Args:
        convention: Structure and names of the inputs.
        dynamic_shapes: As for `torch.export.export`: by argument name, or in the order of the arguments.

    Raises:
        ConventionError: It names an unknown argument, or is not nested as the inputs are.
    """
    dims: list[Dims] = [{} for _ in convention.leaves]
    if not dynamic_shapes:
        return dims
    indices = pytree.tree_unflatten(list(range(len(dims))), convention.in_spec)
    arguments = [*indices[0], *indices[1].values()]
    for name, argument, shapes in _by_argument(convention.names, arguments, dynamic_shapes):
        _assign(name, argument, shapes, convention.leaves, dims)
    return dims


def _by_argument(names: Sequence[str], arguments: Sequence[Any], shapes: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(shapes, Mapping):
        unknown = [name for name in shapes if name not in names]
        if unknown:
            raise _misfit(f"arguments {unknown}", f"names among {list(names)}")
        return [(name, argument, shapes.get(name)) for name, argument in zip(names, arguments, strict=True)]
    if not isinstance(shapes, (tuple, list)):
        raise _misfit(f"a {type(shapes).__name__}", "a dict by argument name, or a tuple in the arguments' order")
    if len(shapes) != len(arguments):
        raise _misfit(f"{len(shapes)} entries", f"{len(arguments)}, one for each of {list(names)}")
    return list(zip(names, arguments, shapes, strict=True))


def _assign(name: str, argument: Any, shapes: Any, leaves: Sequence[InputLeaf], dims: list[Dims]) -> None:
    """Give the shapes of one argument to its leaves; `argument` holds leaf indices in the argument's structure."""
    waiting = [(name, argument, shapes)]
    while waiting:
        path, part, given = waiting.pop()
        if given is None:
            continue
        if isinstance(part, int):
            dims[part] = _dynamic_dims(leaves[part], given)
        elif isinstance(part, Mapping) and isinstance(given, Mapping) and set(given) <= set(part):
            waiting += [(f"{path}[{key!r}]", part[key], given[key]) for key in given]
        elif isinstance(part, (tuple, list)) and isinstance(given, (tuple, list)) and len(given) == len(part):
            waiting += [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(part, given, strict=True))]
        else:
            raise _misfit(f"a {type(given).__name__} for {path!r}", "the nesting that the argument has")


def _dynamic_dims(leaf: InputLeaf, given: Any) -> Dims:
    """The dynamic dims of a leaf, from a dict by position or a sequence with an entry for each dim."""
    tensor = leaf.example if isinstance(leaf.example, torch.Tensor) else leaf.described
    rank = tensor.dim() if isinstance(tensor, torch.Tensor) else 0
    if isinstance(given, Mapping):
        entries = dict(given)
    elif isinstance(given, (tuple, list)) and len(given) == rank:
        entries = dict(enumerate(given))
    else:
        raise _misfit(f"{given!r} for '{leaf.path}'", f"a dict from dim to Dim, or {rank} entries, one for each dim")
    for position, dim in entries.items():
        if position not in range(rank):
            raise _misfit(f"dim {position!r} of '{leaf.path}'", f"a dim from 0 to {rank - 1}")
        if not isinstance(dim, (Dim, DimHint, int, NoneType)):
            raise _misfit(
                f"{dim!r} for dim {position} of '{leaf.path}'", "a Dim, Dim.AUTO, Dim.DYNAMIC, an int or None"
            )
    return {position: dim for position, dim in entries.items() if _is_dynamic(dim)}


def _is_dynamic(dim: Any) -> bool:
    return isinstance(dim, (Dim, DimHint)) and not is_static_hint(dim)


def _misfit(found: str, expected: str) -> ConventionError:
    return ConventionError(
        "argument 'dynamic_shapes'",
        found=found,
        expected=expected,
        fix="Give it the structure of the inputs, as for torch.export.export.",
    )


def restates(leaves: Sequence[InputLeaf], dims: Sequence[Dims]) -> bool:
    """Whether `dynamic_shapes` makes a size dynamic that the hybrid's metadata describes as static, or not at all."""
    for leaf, asked in zip(leaves, dims, strict=True):
        known = leaf.described
        if asked and not isinstance(known, torch.Tensor):
            return True
        if any(isinstance(known.shape[position], int) for position in asked):
            return True
    return False


class Symbols:
    """Makes the symbols that `dynamic_shapes` names, one for each `Dim`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._roots: dict[str, torch.SymInt] = {}

    def describe(self, leaf: InputLeaf, dims: Dims) -> torch.Tensor:
        """A fake tensor like the leaf's example (or metadata), with symbols in its dynamic dims."""
        like = leaf.example if isinstance(leaf.example, torch.Tensor) else leaf.described
        if not isinstance(like, torch.Tensor):
            raise ConventionError(
                f"input {leaf.path!r}",
                found="dynamic dims, and no tensor that shows its dtype and rank",
                expected="an example tensor",
                fix="Pass args=(...) to export.",
            )
        sizes = [
            self._size(dims[position], _hint(size), f"{leaf.name}_{position}") if position in dims else _hint(size)
            for position, size in enumerate(like.shape)
        ]
        order = sorted(range(like.dim()), key=lambda position: (-_hint(like.stride(position)), position))
        with self._metadata.mode:
            return torch.empty_permuted(sizes, order, dtype=like.dtype, device=like.device)

    def _size(self, dim: Any, hint: int, name: str) -> Any:
        if isinstance(dim, DerivedDim):
            offset = dim.fn(0)
            return dim.fn(self._size(dim.root, (hint - offset) // (dim.fn(1) - offset), name))
        if isinstance(dim, DimHint):
            return self._symbol(name, hint, dim.min or 0, dim.max)
        return self._symbol(dim.__name__, hint, dim.min, dim.max)

    def _symbol(self, name: str, hint: int, lower: int, upper: Any) -> torch.SymInt:
        if name not in self._roots:
            shape_env = self._metadata.shape_env
            bounds = bounds_of(max(lower, 2), upper)
            self._roots[name] = new_symbol(shape_env, max(hint, 2), bounds, name)
        return self._roots[name]


def _hint(size: Any) -> int:
    hint: Any = size.node.hint if isinstance(size, torch.SymInt) else size
    return int(hint)


def ranges_of(
    descriptions: Iterable[Any], meant: Mapping[Any, ValueRanges[Any]] | None, stated: Ranges, metadata: Metadata
) -> Ranges:
    """The range of every symbol in the sizes of described values, and of every size whose own range is told.

    A derived size (`2*s0`) has a range of its own when it is told: a symbol that is nowhere a size by itself may have
    a wider one.

    Args:
        descriptions: Fake tensors, symbolic numbers, and sequences of them.
        meant: Ranges that the hybrid carries, or None.
        stated: Ranges from `dynamic_shapes`.
        metadata: Its shape environment knows the rest.
    """
    told = {**(meant or {}), **stated}
    if not told and not metadata.shape_env.var_to_range:
        return {}
    sizes = _sizes(descriptions)
    symbols = dict.fromkeys(symbol for size in sizes for symbol in sorted(size.free_symbols, key=str))
    check_limit("symbol", str(next(reversed(symbols), "")), len(symbols), limits.MAX_SYMBOLS, "symbols")
    inferred = metadata.shape_env.var_to_range
    ranges = {symbol: told.get(symbol, inferred.get(symbol, bounds_of(0, None))) for symbol in symbols}
    return ranges | {size: told[size] for size in sizes if size in told}


def stated_ranges(leaves: Iterable[Any], dims: Sequence[Dims]) -> Ranges:
    """Ranges that `dynamic_shapes` states for the symbols in the described inputs.

    Args:
        leaves: Descriptions of the input leaves.
        dims: Their dynamic dims.
    """
    ranges: Ranges = {}
    for described, asked in zip(leaves, dims, strict=True):
        for position, dim in asked.items():
            _state(expression(described.shape[position]), dim, ranges)
    return ranges


def _state(size: Any, dim: Any, ranges: Ranges) -> None:
    if isinstance(dim, DimHint):
        told = dim.min is not None or dim.max is not None
        bounds = bounds_of(dim.min or 0, dim.max)
    else:
        told, bounds = True, bounds_of(dim.min, dim.max)
    if not told or isinstance(size, int):
        return
    ranges[size] = bounds & ranges[size] if size in ranges else bounds
    symbols: set[Any] = size.free_symbols
    if isinstance(dim, DerivedDim) and len(symbols) == 1:
        (symbol,) = symbols
        if sympy.expand(dim.fn(symbol) - size) == 0:
            _state(symbol, dim.root, ranges)


def _sizes(descriptions: Iterable[Any]) -> list[sympy.Expr]:
    """Symbolic sizes and numbers of described values, each once, in the order of their first use."""
    found: dict[sympy.Expr, None] = {}
    for described in descriptions:
        for item in described if isinstance(described, (tuple, list)) else (described,):
            sizes = item.shape if isinstance(item, torch.Tensor) else (item,)
            for size in sizes:
                if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    found[size.node.expr] = None
    return list(found)
