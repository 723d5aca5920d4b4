"""Take out the checks that a capture leaves in the graph for itself."""

from __future__ import annotations

import torch

from intarsia.partition.operators import operator_name

_REASON = "a check of the capture: dtypes and devices inside a program are fixed by those of its inputs"


def remove_asserts(graph: torch.fx.Graph) -> tuple[tuple[str, str], ...]:
    """Erase the checks of tensor metadata (`aten._assert_tensor_metadata`).

    Checks of numbers (`aten._assert_scalar`, `aten.sym_constrain_range`) stay: those of data-dependent sizes are
    where their ranges come from, and others are conditions on inputs that nothing else in the program states.

    Args:
        graph: Changed in place.

    Returns:
        Pairs of "name (operator)" and reason, in graph order, for `Coverage.removed`.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    found = [node for node in calls if operator_name(node).startswith("aten._assert_tensor_metadata.")]
    for node in found:
        graph.erase_node(node)
    return tuple((f"{node.name} ({operator_name(node)})", _REASON) for node in found)
