"""How a person knows the leaves of a program's inputs: `x`, `cache['k']`."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia._torch import TreeSpec, pytree


def leaf_paths(in_spec: TreeSpec, names: Sequence[str]) -> list[str]:
    """Paths of the leaves of `(args, kwargs)`, in order.

    Args:
        in_spec: Structure of `(args, kwargs)`.
        names: Names of the positional arguments; keywords name themselves.

    Example:
        >>> leaf_paths(pytree.tree_structure(((1, [2, 3]), {"k": 4})), ["x", "pair"])
        ['x', 'pair[0]', 'pair[1]', 'k']
    """
    structure = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    with_paths, _ = pytree.tree_flatten_with_path(structure)
    paths = []
    for (part, argument, *rest), _leaf in with_paths:
        positional = isinstance(part, pytree.SequenceKey) and part.idx == 0
        index = argument.idx if isinstance(argument, pytree.SequenceKey) else 0
        name = names[index] if positional else str(getattr(argument, "key", argument))
        paths.append(name + pytree.keystr(tuple(rest)))
    return paths
