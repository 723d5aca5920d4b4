"""How higher-order operators pass operands to their bodies: which ones the operator makes, which it passes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from intarsia._torch import HigherOrderOperator, pytree


class _Convention(NamedTuple):
    """Arguments of an operator that its bodies' operands come from.

    Attributes:
        made: Positions of arguments for each leaf of which a body takes one operand, made by the operator: a carried
            value, a row.
        passed: Position of the argument, or of the first argument, whose leaves bodies take as they are, last.
        packed: Whether one argument holds all of these; otherwise they are the arguments from there on.
    """

    made: tuple[int, ...]
    passed: int
    packed: bool = True


# As the kernels of torch 2.13 and later call their bodies.
_CONVENTIONS = {
    "associative_scan": _Convention((1, 1), 2),
    "cond": _Convention((), 3),
    "invoke_subgraph": _Convention((), 2, packed=False),
    "map_impl": _Convention((1,), 2),
    "scan": _Convention((1, 2), 3),
    "strict_mode": _Convention((), 1),
    "while_loop": _Convention((2,), 3),
    "wrap_with_autocast": _Convention((), 5, packed=False),
    "wrap_with_set_grad_enabled": _Convention((), 2, packed=False),
}


class Operands(NamedTuple):
    """What the bodies of one call take.

    Attributes:
        made: What the operator makes operands of itself, one of each; they come first.
        passed: Operands that every run of every body takes as they are; they come last.
        rest: The positional arguments of the call without those that are passed on.
    """

    made: tuple[Any, ...]
    passed: tuple[Any, ...]
    rest: tuple[Any, ...]


def operands_of(target: Any, args: Sequence[Any]) -> Operands | None:
    """What the bodies of a call take, or None for an operator whose way with operands is not known.

    Args:
        target: The higher-order operator.
        args: Positional arguments of the call.

    Example:
        >>> import torch
        >>> operands_of(torch.ops.higher_order.cond, ("p", "one", "other", ("x", "y")))
        Operands(made=(), passed=('x', 'y'), rest=('p', 'one', 'other'))
    """
    convention = _convention_of(target, args)
    if convention is None:
        return None
    made = tuple(leaf for position in convention.made for leaf in pytree.tree_leaves(args[position]))
    passed = args[convention.passed] if convention.packed else args[convention.passed :]
    return Operands(made, tuple(passed), tuple(args[: convention.passed]))


def has_bodies(target: Any) -> bool:
    """Whether a call target is an operator with bodies whose way with operands is known."""
    return isinstance(target, HigherOrderOperator) and str(target) in _CONVENTIONS


def pass_on(target: Any, args: Sequence[Any], more: Sequence[Any]) -> tuple[Any, ...] | None:
    """The arguments of a call with more operands for its bodies behind the others.

    Returns:
        The arguments, or None for an operator whose way with operands is not known.
    """
    convention = _convention_of(target, args)
    if convention is None:
        return None
    if not convention.packed:
        return (*args, *more)
    return (*args[: convention.passed], (*args[convention.passed], *more))


def _convention_of(target: Any, args: Sequence[Any]) -> _Convention | None:
    if not has_bodies(target):
        return None
    convention = _CONVENTIONS[str(target)]
    return convention if len(args) >= convention.passed + convention.packed else None
