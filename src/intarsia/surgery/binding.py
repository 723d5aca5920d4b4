"""What a call passes, bound to the placeholders of the graph that it calls: by position, keyword, default; and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from torch.fx import Graph, Node

from intarsia._torch import PytreeConvention, pytree, pytree_convention
from intarsia.errors import HybridError
from intarsia.surgery.values import Value


def bind(graph: Graph, args: Sequence[Value], kwargs: Mapping[str, Value], place: str) -> dict[Node, Value]:
    """Values of a graph's placeholders for one call of it.

    Raises:
        HybridError: The call passes too much, too little, or a name that the graph does not have.
    """
    placeholders = graph.find_nodes(op="placeholder", sort=True)
    convention = pytree_convention(graph)
    if convention is not None:
        return _bind_leaves(placeholders, convention, args, kwargs, place)
    values: dict[Node, Value] = {}
    left, named = deque(args), dict(kwargs)
    for placeholder in placeholders:
        name = str(placeholder.target)
        if name.startswith("**"):
            values[placeholder], named = named, {}
        elif name.startswith("*"):
            values[placeholder], left = tuple(left), deque()
        elif left:
            values[placeholder] = left.popleft()
        elif name in named:
            values[placeholder] = named.pop(name)
        elif placeholder.args:
            values[placeholder] = placeholder.args[0]
        else:
            raise _misfit(placeholders, args, kwargs, place)
    if left or named:
        raise _misfit(placeholders, args, kwargs, place)
    return values


def restructure(graph: Graph, returned: Value) -> Value:
    """What a graph's output node returns, in the structure that its calling convention gives to it."""
    convention = pytree_convention(graph)
    if convention is None or convention.out_spec is None:
        return returned
    leaves = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    return pytree.tree_unflatten(leaves, convention.out_spec)


def _bind_leaves(
    placeholders: Sequence[Node],
    convention: PytreeConvention,
    args: Sequence[Value],
    kwargs: Mapping[str, Value],
    place: str,
) -> dict[Node, Value]:
    children = convention.in_spec.children()
    keywords = children[1].context if len(children) == 2 and children[1].type is dict else []
    ordered = {name: kwargs[name] for name in keywords if name in kwargs}
    leaves = pytree.tree_leaves((tuple(args), ordered))
    if len(leaves) != len(placeholders) or len(ordered) != len(kwargs):
        raise _misfit(placeholders, args, kwargs, place)
    return dict(zip(placeholders, leaves, strict=True))


def _misfit(
    placeholders: Sequence[Node], args: Sequence[Value], kwargs: Mapping[str, Value], place: str
) -> HybridError:
    names = ", ".join(str(placeholder.target) for placeholder in placeholders)
    return HybridError(
        f"partition '{place}'",
        found=f"a call with {len(args)} positional values and keywords {sorted(kwargs)}",
        expected=f"one value for each of ({names})",
        fix="Make the call pass what the partition's placeholders take, by position.",
        node=place,
    )
