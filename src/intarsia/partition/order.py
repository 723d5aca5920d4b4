"""The order in which a hybrid runs its partitions and operators."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

import torch

from intarsia.partition.blocks import Block, Unit

Node = torch.fx.Node


class Units:
    """A graph's nodes, with the nodes of each block as one unit.

    Operators with an effect (random numbers, checks, writes) keep their order among each other. An engine has none,
    whatever torch says of its operators: a backend takes only calls that draw no random numbers, such as attention
    without dropout, and no write or check.

    Args:
        graph: Not modified.
        blocks: Node sets, each in graph order.
        in_engines: Nodes that are in engines or shall be: those of the blocks, and what may become one.
    """

    def __init__(self, graph: torch.fx.Graph, blocks: Sequence[Block], in_engines: Collection[Node] = ()) -> None:
        owners = {node: block for block in blocks for node in block}
        self._units: list[Unit] = []
        self._unit_of: dict[Node, int] = {}
        for node in graph.nodes:
            if node not in self._unit_of:
                unit = owners.get(node, {node: None})
                self._unit_of.update(dict.fromkeys(unit, len(self._units)))
                self._units.append(unit)
        self._before: list[dict[int, None]] = [{} for _ in self._units]
        self._link(graph.nodes, {*owners, *in_engines})

    def _link(self, nodes: Iterable[Node], in_engines: Collection[Node]) -> None:
        previous: Node | None = None
        for node in nodes:
            before = list(node.all_input_nodes)
            if node.op == "call_function" and node not in in_engines and node.is_impure():
                before += [previous] if previous is not None else []
                previous = node
            unit = self._unit_of[node]
            others = (self._unit_of[part] for part in before)
            self._before[unit].update(dict.fromkeys(other for other in others if other != unit))

    def sort(self) -> list[Unit]:
        """The units in an order that respects all dependencies, without those that wait for a circle.

        The order is that of the units' first nodes wherever it can be. So writes and the output, which end a
        functional graph, stay behind all that reads what they write.
        """
        return [self._units[unit] for unit in self._sort()[0]]

    def _sort(self) -> tuple[list[int], list[int]]:
        waiting = [len(before) for before in self._before]
        followers: list[list[int]] = [[] for _ in self._units]
        for unit, before in enumerate(self._before):
            for other in before:
                followers[other].append(unit)
        ready = [unit for unit, count in enumerate(waiting) if count == 0]
        done: list[int] = []
        while ready:
            unit = heapq.heappop(ready)
            done.append(unit)
            for follower in followers[unit]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(ready, follower)
        return done, [unit for unit, count in enumerate(waiting) if count > 0]

    def circle(self) -> list[Unit]:
        """Units of which each waits for the next one, and the last for the first; empty where there are none."""
        _, stuck = self._sort()
        if not stuck:
            return []
        waits_for = {unit: next(other for other in self._before[unit] if other in stuck) for unit in stuck}
        walk: dict[int, None] = {}
        unit = stuck[0]
        while unit not in walk:
            walk[unit] = None
            unit = waits_for[unit]
        steps = list(walk)
        return [self._units[step] for step in steps[steps.index(unit) :]]

    def contract(self) -> dict[Node, Unit]:
        """A graph in which each unit is one node, and what a unit waits for are the node's inputs.

        Returns:
            The nodes of that graph, which holds together as long as one of them is held -> the units.
        """
        graph = torch.fx.Graph()
        images: dict[int, Node] = {}
        for i in self._sort()[0]:
            unit = self._units[i]
            node = next(iter(unit))
            target = node.target if node.op == "call_function" and len(unit) == 1 else _run_block
            images[i] = graph.call_function(target, tuple(images[other] for other in self._before[i]))  # type: ignore[arg-type]
        return {image: self._units[i] for i, image in images.items()}


def _run_block(*inputs: torch.Tensor) -> None:
    """What stands in a contracted graph for a block, and for what is no operator."""
