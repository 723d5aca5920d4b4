"""The order in which a hybrid runs its partitions and operators."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

import torch

Node = torch.fx.Node
Block = dict[Node, None]


class Units:
    """A graph's nodes, with the nodes of each block as one unit.

    Operators with an effect (random numbers, checks, writes) keep their order among each other. An engine has none,
    whatever torch says of its operators: a backend takes only calls that draw no random numbers, such as attention
    without dropout, and no write or check.

    Args:
        graph: Not modified.
        blocks: Node sets, each in graph order.
    """

    def __init__(self, graph: torch.fx.Graph, blocks: Sequence[Block]) -> None:
        owners = {node: block for block in blocks for node in block}
        self._units: list[Block] = []
        self._unit_of: dict[Node, int] = {}
        for node in graph.nodes:
            if node not in self._unit_of:
                block = owners.get(node, {node: None})
                self._unit_of.update(dict.fromkeys(block, len(self._units)))
                self._units.append(block)
        self._followers: list[list[int]] = [[] for _ in self._units]
        self._waiting = [0] * len(self._units)
        self._link(graph.nodes, owners)

    def _link(self, nodes: Iterable[Node], in_engines: Collection[Node]) -> None:
        previous: Node | None = None
        for node in nodes:
            before = list(node.all_input_nodes)
            if node.op == "call_function" and node not in in_engines and node.is_impure():
                before += [previous] if previous is not None else []
                previous = node
            unit = self._unit_of[node]
            for other in {self._unit_of[part] for part in before} - {unit}:
                self._followers[other].append(unit)
                self._waiting[unit] += 1

    def sort(self) -> tuple[list[Block], list[Block]]:
        """The units in an order that respects all dependencies, and those that have none.

        The order is that of the units' first nodes wherever it can be. So writes and the output, which end a
        functional graph, stay behind all that reads what they write.
        """
        waiting = list(self._waiting)
        ready = [unit for unit, count in enumerate(waiting) if count == 0]
        done: list[int] = []
        while ready:
            unit = heapq.heappop(ready)
            done.append(unit)
            for follower in self._followers[unit]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(ready, follower)
        stuck = [self._units[unit] for unit, count in enumerate(waiting) if count > 0]
        return [self._units[unit] for unit in done], stuck
