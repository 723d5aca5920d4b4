"""How a partition works out the symbolic sizes that it uses: from the shapes of its tensor inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping
from typing import Any

import torch

from intarsia.partition.operators import is_symbolic, operator_name


class Sizes:
    """The symbolic sizes that a set of tensors carries.

    Args:
        tensors: Nodes with a fake tensor as `val`: the inputs of a partition.
    """

    def __init__(self, tensors: Iterable[torch.fx.Node]) -> None:
        self._carriers: dict[Any, tuple[torch.fx.Node, int]] = {}
        for node in tensors:
            for dim, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt):
                    self._carriers.setdefault(size.node.expr, (node, dim))

    def missing(self, size: torch.fx.Node, inside: Collection[torch.fx.Node]) -> torch.fx.Node | None:
        """A number that cannot be worked out on the way to `size`, or None.

        Args:
            size: Node whose `val` is a (symbolic) number.
            inside: The partition's nodes; sizes of their tensors are at hand too.
        """
        if _literal(size) is not None or _expression(size) in self._carriers:
            return None
        if not is_symbolic(size):
            return size
        if operator_name(size) == "aten.sym_size.int":
            return None if size.args[0] in inside else size
        return next(filter(None, (self.missing(part, inside) for part in size.all_input_nodes)), None)

    def rebuild(self, size: torch.fx.Node, graph: torch.fx.Graph, images: MutableMapping[torch.fx.Node, Any]) -> Any:
        """Work `size` out again in `graph`, for which `missing` found nothing.

        Args:
            size: Node of the parent graph.
            graph: The partition's graph; nodes are added to it.
            images: Nodes of the parent graph -> their images in `graph`; added to.

        Returns:
            The image: a node, or a plain number.
        """
        if size in images:
            return images[size]
        literal = _literal(size)
        if literal is not None:
            return literal
        carrier = self._carriers.get(_expression(size))
        if carrier is not None:
            tensor, dim = carrier
            image = graph.call_function(torch.ops.aten.sym_size.int, (images[tensor], dim))
            image.meta["val"] = tensor.meta["val"].shape[dim]
        else:
            for part in size.all_input_nodes:
                self.rebuild(part, graph, images)
            image = graph.node_copy(size, lambda part: self.rebuild(part, graph, images))
        images[size] = image
        return image


def _literal(size: torch.fx.Node) -> Any:
    """The number that `size` always is, or None."""
    value = size.meta["val"]
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    expression = value.node.expr
    return int(expression) if isinstance(value, torch.SymInt) and expression.is_number else None


def _expression(size: torch.fx.Node) -> Any:
    value = size.meta["val"]
    return value.node.expr if isinstance(value, torch.SymInt) else None
