"""How a graph takes and returns values, as the second reader sees it: it shares no code with the exporter's own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Graph, Node

from intarsia._torch import pytree, pytree_convention


def restructure(graph: Graph, returned: Any) -> Any:
    """What a graph's output node returns, in the structure that the graph's calling convention gives to it."""
    convention = pytree_convention(graph)
    if convention is None or convention.out_spec is None:
        return returned
    return pytree.tree_unflatten(
        list(returned) if isinstance(returned, (list, tuple)) else [returned], convention.out_spec
    )


def positional(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Node, Any]:
    """Values of a graph's placeholders: the next positional one, else the one of its name, else its default."""
    placeholders = graph.find_nodes(op="placeholder", sort=True)
    convention = pytree_convention(graph)
    if convention is not None:
        names = convention.in_spec.children()[-1].context or () if kwargs else ()
        args, kwargs = pytree.tree_leaves((list(args), [kwargs[name] for name in names])), {}
    rest = iter(args)
    values: dict[Node, Any] = {}
    for node in placeholders:
        name = str(node.target)
        if name.startswith("**"):
            taken = {str(other.target) for other in placeholders}
            values[node] = {key: value for key, value in kwargs.items() if key not in taken}
        elif name.startswith("*"):
            values[node] = tuple(rest)
        else:
            value = next(rest, _NOTHING)
            values[node] = kwargs.get(name, *node.args) if value is _NOTHING else value
    return values


_NOTHING = object()
