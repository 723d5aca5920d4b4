"""Errors of a program's outputs against those of its model, leaf by leaf, over several calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from intarsia.core.signature import SHORT_NAMES
from intarsia.core.vectors import EXACT, Tolerance
from intarsia.verification.bits import difference
from intarsia.verification.result import Leaf
from intarsia.verification.tolerances import TOLERANCES, tolerance_of


class LeafErrors:
    """Collects the errors of every leaf: the largest of all calls counts.

    Args:
        coarsest: For each leaf, the coarsest dtype that it passes through; its own where none is told.
        tolerances: Of each dtype.
    """

    def __init__(
        self, coarsest: Mapping[str, torch.dtype], tolerances: Mapping[torch.dtype, Tolerance] = TOLERANCES
    ) -> None:
        self._coarsest = coarsest
        self._tolerances = tolerances
        self._leaves: dict[str, Leaf] = {}

    def add(self, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Enter one call: leaves of the program and of the model, by name."""
        for name in {**expected, **found}:
            if name not in found:
                leaf = _incomparable(name, expected[name], "the program does not return it")
            elif name not in expected:
                leaf = _incomparable(name, found[name], "the model does not return it")
            else:
                leaf = compare_leaf(name, found[name], expected[name], self._coarsest.get(name), self._tolerances)
            known = self._leaves.get(name)
            self._leaves[name] = leaf if known is None else _worst(known, leaf)

    def close(self) -> tuple[Leaf, ...]:
        """All leaves, in the order in which they came up."""
        return tuple(self._leaves.values())


def compare_leaf(
    name: str,
    found: Any,
    expected: Any,
    coarsest: torch.dtype | None = None,
    tolerances: Mapping[torch.dtype, Tolerance] = TOLERANCES,
) -> Leaf:
    """Error of one leaf of one call.

    NaN equals NaN, and an infinity equals itself only. What is no floating-point number is exact; the tolerance of all
    others is that of `coarsest`, where it is larger than that of their own dtype.

    Example:
        >>> leaf = compare_leaf("output", torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        >>> leaf.absolute_error, leaf.relative_error, leaf.ok
        (0.5, 0.25, False)
    """
    if not (isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor)):
        text = difference(found, expected)
        return _incomparable(name, found, text) if text else _leaf(name, found, 0.0, 0.0, ok=True)
    allowed = tolerance_of(found.dtype, coarsest, tolerances)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return _incomparable(name, found, difference(found, expected))
    if not found.numel():
        return _leaf(name, found, 0.0, 0.0, ok=True, allowed=allowed)
    if found.dtype not in SHORT_NAMES or found.layout is not torch.strided:
        text = difference(found, expected)
        return _incomparable(name, found, text) if text else _leaf(name, found, 0.0, 0.0, ok=True)
    kind = torch.complex128 if found.dtype.is_complex else torch.float64
    one, other = found.to(kind), expected.to(found.device, kind)
    # Whole numbers beyond 2**53 are not exact in float64: their equality is asked of themselves.
    equal = (found == expected.to(found.device)) | (one.isnan() & other.isnan())
    error = torch.where(equal, 0.0, (one - other).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    scale = torch.where(other.isfinite(), other.abs(), 0.0)
    within = equal
    if allowed != EXACT:
        within = equal | (error <= allowed.absolute + allowed.relative * scale)
    largest, height = float(error.max()), float(scale.max())
    relative = largest / height if height else (math.inf if largest else 0.0)
    return _leaf(name, found, largest, relative, ok=bool(within.all()), allowed=allowed)


def _leaf(
    name: str,
    value: Any,
    absolute: float,
    relative: float,
    *,
    ok: bool,
    note: str = "",
    allowed: Tolerance = EXACT,
) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(name, type(value).__name__, None, absolute, relative, allowed, ok, note)
    dtype = SHORT_NAMES.get(value.dtype, str(value.dtype).removeprefix("torch."))
    return Leaf(name, dtype, tuple(value.shape), absolute, relative, allowed, ok, note)


def _incomparable(name: str, value: Any, note: str) -> Leaf:
    return _leaf(name, value, math.inf, math.inf, ok=False, note=note)


def _worst(known: Leaf, leaf: Leaf) -> Leaf:
    return replace(
        leaf,
        absolute_error=max(known.absolute_error, leaf.absolute_error),
        relative_error=max(known.relative_error, leaf.relative_error),
        ok=known.ok and leaf.ok,
        note=known.note or leaf.note,
    )
