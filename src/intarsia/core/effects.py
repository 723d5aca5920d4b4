"""Which calls have an effect: they must stay though nobody uses what they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node

from intarsia._torch import OpOverload


class Effects:
    """Tells calls with an effect from pure ones: writes, random numbers, asserts, mode switches.

    Torch takes a higher-order operator for pure whatever its bodies do; here one has the effects of its bodies.
    """

    def __init__(self) -> None:
        self._operators: dict[int, bool] = {}  # by identity: hashing an operator is slow
        self._bodies: dict[int, bool] = {}

    def has(self, node: Node, bodies: Mapping[Node, Any]) -> bool:
        """Whether a call has an effect.

        Args:
            node: The call.
            bodies: What `get_attr` nodes among its arguments name.
        """
        if not isinstance(node.target, OpOverload):
            return node.is_impure() or any(self._has_body(bodies.get(source)) for source in node.all_input_nodes)
        known = self._operators.get(id(node.target))
        if known is None:
            known = self._operators[id(node.target)] = node.is_impure()
        return known

    def _has_body(self, body: Any) -> bool:
        if not isinstance(body, GraphModule):
            return False
        if id(body) not in self._bodies:
            self._bodies[id(body)] = False
            inner = {n: body.get_submodule(str(n.target)) for n in body.graph.nodes if _names_module(body, n)}
            calls = [node for node in body.graph.nodes if node.op == "call_function"]
            self._bodies[id(body)] = any(self.has(node, inner) for node in calls)
        return self._bodies[id(body)]


def _names_module(body: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and isinstance(getattr(body, str(node.target).partition(".")[0], None), GraphModule)
