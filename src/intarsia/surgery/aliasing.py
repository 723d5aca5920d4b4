"""Engines that write into an input: each such write must be one of state or of an input, and the graph must show it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from intarsia.core.op import RUN_ENGINE
from intarsia.core.signature import EngineSignature
from intarsia.errors import MutationError

_COPY = torch.ops.aten.copy_.default


def check_engine_writes(
    graph: Graph, targets: Mapping[Node, str], engines: Mapping[Node, str], foreign: Mapping[Node, Mapping[int, int]]
) -> None:
    """Check what engines write into the memory of their inputs, as their signatures say.

    Args:
        graph: The new graph, before any write is taken out of it.
        targets: Placeholders of state and inputs, with the names that the user knows.
        engines: Placeholders of state, with the path of the partition that reads each.
        foreign: Calls of other compilers' engines, with the outputs that go into inputs.

    Raises:
        MutationError: An engine would write into a computed value, or the graph does not show its write.
    """
    ours = graph.find_nodes(op="call_function", target=RUN_ENGINE)
    writes = {call: EngineSignature.parse(call.args[2]).into for call in ours}
    for call, into in {**foreign, **writes}.items():
        inputs: Any
        inputs, engine = call.args[:2]
        for output, position in into.items():
            destination = _written(inputs[position])
            if destination not in targets:
                raise MutationError(
                    f"engine '{engines[engine]}'",
                    found=f"output {output} aliases input {position}, which is computed (%{destination.name})",
                    expected="a buffer or an input of the program",
                    consequence="Its update would be lost.",
                    fix="Register what the engine writes as a buffer, and pass the buffer itself.",
                    node=call.name,
                )
            if not _is_shown(call, output, destination):
                raise MutationError(
                    f"engine '{engines[engine]}'",
                    found=f"output {output} aliases input {position} ('{targets[destination]}'), and nothing shows it",
                    expected="a copy_ of the output into the input",
                    consequence="Its update would be lost.",
                    fix="Let the engine's partition call aten.copy_ on the placeholder and the output.",
                    node=call.name,
                )


def _written(node: Node) -> Node:
    """What a node is: the destination of a `copy_`, or itself."""
    while node.target is _COPY:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_shown(call: Node, output: int, destination: Node) -> bool:
    elements = [user for user in call.users if user.target is operator.getitem and user.args[1] == output]
    copies = [copy for element in elements for copy in element.users if copy.target is _COPY]
    return any(copy.args[1] in elements and _written(copy) is destination for copy in copies)
