"""Bodies of higher-order operators: copies of their own, in which state that they read is an operand.

A body is walked like the hybrid itself, once however many calls share it: its partitions are inlined, and each state
entry that it reads becomes a placeholder. The operator's call then passes the state on to it. The hybrid's own bodies
stay as they are, for torch and later passes change those of a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.export.graph_signature import CustomObjArgument
from torch.fx import Graph, GraphModule, Node

from intarsia.surgery.lift import new_placeholder, order_placeholders
from intarsia.surgery.metadata import Described, expression


class StateRead(NamedTuple):
    """A `get_attr` of state: what it found (owner, attribute name, object), the node, and the path of its module."""

    found: tuple[torch.nn.Module, str, Any]
    node: Node
    path: str


class StateReader(Protocol):
    """Makes one placeholder for each state entry."""

    def read(self, found: tuple[torch.nn.Module, str, Any], node: Node, path: str) -> Node:
        """The placeholder for what a `get_attr` node reads."""
        ...


class BodyLifter:
    """Makes the placeholders of state in a body, and in the graph around it.

    Args:
        graph: The body's new graph.
        outer: Makes them in the graph whose operator runs the body.

    Attributes:
        reads: State that the body reads, by the object's identity.
        placeholders: Its placeholders, likewise.
    """

    def __init__(self, graph: Graph, outer: StateReader) -> None:
        self.reads: dict[int, StateRead] = {}
        self.placeholders: dict[int, Node] = {}
        self._graph = graph
        self._outer = outer

    def read(self, found: tuple[torch.nn.Module, str, Any], node: Node, path: str) -> Node:
        """The placeholder for what a `get_attr` node reads.

        Raises:
            StateError: The object is of a kind that cannot be exported.
        """
        outside, key = self._outer.read(found, node, path), id(found[2])
        if key not in self.placeholders:
            self.reads[key] = StateRead(found, node, path)
            self.placeholders[key] = _place_state(self._graph, outside)
        return self.placeholders[key]


@dataclass(frozen=True)
class Body:
    """A body after its walk.

    Attributes:
        name: Name of the body in the hybrid.
        place: Place under which it was walked.
        graph: What it computes.
        operands: Its placeholders, in order, without those of state.
        lifter: Its state.
        bodies: What its `get_attr` nodes name.
    """

    name: str
    place: str
    graph: Graph
    operands: Sequence[Node]
    lifter: BodyLifter
    bodies: Mapping[str, Any]
    _modules: dict[tuple[int, ...], GraphModule] = field(default_factory=dict)

    def taking(self, state: Mapping[int, Node]) -> GraphModule:
        """A module that computes what the body computes, with operands for state behind the others.

        Args:
            state: State that the operator passes on, by the object's identity, with its nodes in the graph around;
                all that the body reads, and what the operator's other bodies read.
        """
        key = tuple(state)
        if key not in self._modules:
            images: dict[Node, Node] = {}
            graph = Graph()
            graph.output(graph.graph_copy(self.graph, images))
            own = {key: images[node] for key, node in self.lifter.placeholders.items()}
            passed = [own.get(key) or _place_state(graph, node) for key, node in state.items()]
            order_placeholders(graph, [*(images[node] for node in self.operands), *passed])
            self._modules[key] = GraphModule(dict(self.bodies), graph)
        return self._modules[key]


class OperandProbe(torch.nn.Module):
    """Stands for a body in a call of its operator, and ends the call as soon as the operator runs it."""

    def forward(self, *operands: Described) -> Any:
        """Hand out the operands; the body itself is never run.

        Raises:
            OperandsFound: Always.
        """
        raise OperandsFound(operands)


class OperandsFound(BaseException):
    """Carries what an operator passes to its bodies out of the call; torch stops no exception of this kind."""

    def __init__(self, operands: tuple[Described, ...]) -> None:
        super().__init__()
        self.operands = operands


def facts(described: Described) -> tuple[Any, ...]:
    """What a description says, comparable: two walks of one body for operands of the same facts are the same."""
    if not isinstance(described, torch.Tensor):
        return (type(described), str(expression(described)))
    strides = tuple(map(expression, described.stride())) if described.layout is torch.strided else ()
    return (described.dtype, described.device, described.layout, tuple(map(expression, described.shape)), strides)


def _place_state(graph: Graph, outside: Node) -> Node:
    """A placeholder for state, with the description that it has in the graph around."""
    placeholder = new_placeholder(graph, outside.name)
    described = outside.meta["val"]
    if isinstance(described, CustomObjArgument):
        described = CustomObjArgument(placeholder.name, described.class_fqn, described.fake_val)
    placeholder.meta["val"] = described
    return placeholder
