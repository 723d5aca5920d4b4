"""`retrace`: the other way to the same noun, `torch.export.export` of the hybrid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from intarsia._torch import int_bounds, pytree
from intarsia.core.examples import distinct
from intarsia.errors import CaptureError, ConventionError, first_line
from intarsia.surgery.convention import Convention, InputLeaf, read_convention
from intarsia.surgery.metadata import Metadata, expression, find_mode
from intarsia.surgery.ranges import Ranges, ranges_of


def retrace(
    hybrid: GraphModule,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """Export a hybrid by tracing it again, as `torch.export.export` does.

    Keywords are passed in the order of the hybrid's placeholders: torch 2.13 binds the keywords of a graph module by
    their position.

    Args:
        hybrid: Graph module whose graph calls partitions.
        args: Example positional arguments.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for `torch.export.export`; when it is left out, the sizes are dynamic that are so in the
            hybrid's metadata.

    Raises:
        ConventionError: No example inputs were given, or they do not fit the hybrid.
        CaptureError: `torch.export.export` refuses the hybrid.
    """
    if args is None and kwargs is None:
        raise ConventionError(
            "export with retrace=True",
            found="no example inputs",
            expected="args=(...) or kwargs={...}",
            fix="Pass example inputs, or leave retrace=False, which needs none.",
        )
    convention = read_convention(hybrid, args, kwargs)
    examples = [leaf.example for leaf in convention.leaves]
    state = (*hybrid.parameters(), *hybrid.buffers())
    positional, keywords = distinct(pytree.tree_unflatten(examples, convention.in_spec), state)
    if dynamic_shapes is None:
        dynamic_shapes = _dynamic_shapes(hybrid, convention)
    try:
        with torch.no_grad():
            return torch.export.export(hybrid, positional, keywords, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise CaptureError(
            "the hybrid",
            found=f"{type(error).__name__} ({first_line(error)}) in torch.export.export",
            expected="a hybrid that torch.export can trace",
            fix="Leave retrace=False.",
        ) from error


def _dynamic_shapes(hybrid: GraphModule, convention: Convention) -> dict[str, Any] | None:
    """What `torch.export.export` is to be told so that the sizes are dynamic that are so in the metadata."""
    described = [leaf.described for leaf in convention.leaves if leaf.described is not InputLeaf.ABSENT]
    ranges = ranges_of(described, hybrid.meta.get("range_constraints"), {}, Metadata(find_mode(hybrid)))
    if not ranges:
        return None
    leaves = [_leaf_shapes(leaf.described, ranges) for leaf in convention.leaves]
    positional, keywords = pytree.tree_unflatten(leaves, convention.in_spec)
    return dict(zip(convention.names, [*positional, *keywords.values()], strict=True))


def _leaf_shapes(described: Any, ranges: Ranges) -> dict[int, Any] | None:
    if not isinstance(described, torch.Tensor):
        return None
    return {
        position: _dim(size, ranges)
        for position, size in enumerate(map(expression, described.shape))
        if not isinstance(size, int)
    }


def _dim(size: sympy.Expr, ranges: Ranges) -> Any:
    """A `Dim` for a size: a symbol's own, one derived from it when the size is linear in it, else a hint."""
    symbols = sorted(size.free_symbols, key=str)
    if len(symbols) != 1:
        return Dim.AUTO
    (symbol,) = symbols
    lower, upper = int_bounds(ranges[symbol])
    root = Dim(str(symbol), min=lower, max=upper)
    offset = size.subs(symbol, 0)
    factor = sympy.expand(size - offset) / symbol
    if not (factor.is_Integer and offset.is_Integer):
        return Dim.AUTO
    scaled = root if factor == 1 else int(factor) * root
    return scaled if offset == 0 else scaled + int(offset)
