"""Cut a graph as a plan says, or tell why that cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from intarsia.core.choice import TORCH
from intarsia.core.plan import PlannedOperator
from intarsia.errors import PartitionError, near_match
from intarsia.partition.blocks import Block, Cut
from intarsia.partition.limits import TRAILING_LAYOUT, Supports, refuse_alone, refuse_together, trailing_layout
from intarsia.partition.operators import is_getitem, is_operator, module_path, operator_name
from intarsia.partition.planner import SUPPORTED
from intarsia.partition.state import State

Node = torch.fx.Node

PLANNED = "left there by the plan"


def describe_operators(graph: torch.fx.Graph) -> dict[Node, PlannedOperator]:
    """The operators of a captured graph as a plan lists them; all of them in torch."""
    return {
        node: PlannedOperator(
            TORCH,
            node.name,
            operator_name(node),
            module_path(node),
            tuple(dict.fromkeys(part.name for part in node.all_input_nodes)),
        )
        for node in graph.nodes
        if is_operator(node)
    }


def replay(
    graph: torch.fx.Graph, state: State, planned: Sequence[PlannedOperator], supports: Mapping[str, Supports]
) -> Cut:
    """The blocks that a plan lists.

    Args:
        graph: A captured graph, not modified.
        state: The state of the graph's module.
        planned: The operators of the plan.
        supports: For each backend of the plan: why it does not take a node; None when it does.

    Raises:
        PartitionError: The plan is not of this graph, or an operator cannot run where it says.
    """
    found = describe_operators(graph)
    _compare(list(found.values()), planned)
    places = dict(zip(found, planned, strict=True))
    for node, place in places.items():
        if place.place != TORCH:
            reason = refuse_alone(node, state) or supports[place.backend](node)
            if reason is not None:
                raise misplaced(place, reason)
    names = dict.fromkeys(place.place for place in planned if place.place != TORCH)
    blocks = tuple(_block(name, places, graph) for name in names)
    for block in blocks:
        faults = dict.fromkeys(filter(is_operator, trailing_layout(block)), TRAILING_LAYOUT)
        if state.has(block.name):
            faults.update(dict.fromkeys(filter(is_operator, block), "the model has an attribute of this name"))
        faults.update(refuse_together(block, state, supports[block.backend]))
        for node, reason in faults.items():
            raise misplaced(places[node], reason)
    return Cut(blocks, {node: PLANNED if one.place == TORCH else SUPPORTED for node, one in places.items()})


def _block(name: str, places: Mapping[Node, PlannedOperator], graph: torch.fx.Graph) -> Block:
    """The operators of one place, and what takes their single results."""
    members: dict[Node, None] = {}
    backend = ""
    for node in graph.nodes:
        if node in places and places[node].place == name:
            members[node] = None
            backend = places[node].backend
        elif is_getitem(node) and node.all_input_nodes[0] in members:
            members[node] = None
    return Block(members, backend, name)


def _compare(found: Sequence[PlannedOperator], planned: Sequence[PlannedOperator]) -> None:
    """Refuse a plan for another graph, or one with lines too many or too few: tell where the two part."""
    _refuse_lost_lines(found, planned)
    for i, (one, other) in enumerate(zip(found, planned, strict=False)):
        if _identity(one) != _identity(other):
            raise _foreign(f"{other.description} as its operator {i + 1}", one.description)
    if len(found) != len(planned):
        rest = planned[len(found)]
        raise _foreign(f"{len(planned)} operators; it has too many of, from {rest.description}", f"{len(found)}")


def _refuse_lost_lines(found: Sequence[PlannedOperator], planned: Sequence[PlannedOperator]) -> None:
    """Refuse a plan of which a line is there twice, or that fits this graph but for lines that are not there."""
    seen = set()
    for one in planned:
        if _identity(one) in seen:
            raise PartitionError(
                one.subject,
                found=f"two lines for {one.description}",
                expected="one line for each operator",
                fix="Leave out one of them.",
            )
        seen.add(_identity(one))
    missing = [one for one in found if _identity(one) not in seen]
    kept = [_identity(one) for one in found if _identity(one) in seen]
    if missing and kept == [_identity(one) for one in planned]:
        more = f" and of {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PartitionError(
            "plan",
            found=f"{len(planned)} operators; it lacks the line of {missing[0].description}{more}",
            expected=f"{len(found)}, a line for each operator of the captured graph",
            fix="Put the line back in its place. If the model has grown, compile without the plan, and take that of "
            "the new hybrid.",
        )


def _identity(one: PlannedOperator) -> tuple[object, ...]:
    """What a line says of an operator, wherever it runs."""
    return one.node, one.operator, one.module, one.inputs


def _foreign(found: str, expected: str) -> PartitionError:
    return PartitionError(
        "plan",
        found=found,
        expected=f"{expected}, as the captured graph has it",
        consequence="It is the plan of another model.",
        fix="Compile without the plan, and take that of the new hybrid.",
    )


def misplaced(operator: PlannedOperator, reason: str) -> PartitionError:
    """The error for an operator that cannot run where a plan says."""
    return PartitionError(
        operator.subject,
        found=f"the place {operator.place!r} for {operator.operator}: {reason}",
        expected="a place where it can run",
        fix="Give it another place in the plan, 'torch' for instance.",
        node=operator.node,
    )


def check_names(planned: Mapping[str, Sequence[PlannedOperator]], methods: Sequence[str]) -> None:
    """Refuse a plan that is not of the methods that are compiled.

    Raises:
        PartitionError: It lacks one, or has another.
    """
    unknown = [name for name in planned if name not in methods]
    if unknown or len(planned) != len(methods):
        names = ", ".join(map(repr, methods))
        raise PartitionError(
            "plan",
            found=f"the methods {', '.join(map(repr, planned)) or 'of none'}",
            expected=f"the methods {names}",
            fix=next(filter(None, (near_match(name, methods) for name in unknown)), "")
            or "Compile without the plan, and take that of the new hybrids.",
        )
