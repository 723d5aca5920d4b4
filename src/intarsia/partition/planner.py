"""Decide which operators go to engines together, and why the others stay in torch. Changes no graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from intarsia.partition.blocks import Block, Cut, Unit
from intarsia.partition.limits import TRAILING_LAYOUT, Supports, refuse_alone, refuse_together, trailing_layout
from intarsia.partition.operators import is_getitem, is_operator
from intarsia.partition.order import Units
from intarsia.partition.state import State

Node = torch.fx.Node

SUPPORTED = "supported"


class Candidates(Protocol):
    """Whom an operator may go to."""

    def __call__(self, node: Node) -> tuple[Sequence[str], str]:
        """Names of backends, the most wanted first, and why the operator stays in torch where there are none."""
        ...


class Planner:
    """Plans one graph: each operator goes to the first of its backends against which nothing speaks.

    Args:
        graph: Nodes have fake tensors as `val`. Not modified.
        state: The state of the graph's module.
        supports: For each backend, in the order in which they cut: why it does not take a node; None when it does.
        candidates: Which of these backends an operator may go to.
        refused: For names of nodes, backends whose engines turned out not to hold them -> why.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        state: State,
        *,
        supports: Mapping[str, Supports],
        candidates: Candidates,
        refused: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._graph = graph
        self._state = state
        self._supports = supports
        self._stay: dict[Node, str] = {}
        self._wanted: dict[Node, Sequence[str]] = {}
        self._refused: dict[Node, dict[str, str]] = {}
        self._taken: dict[Node, set[str]] = {}
        for node in filter(is_operator, graph.nodes):
            wanted, reason = candidates(node)
            against = None if wanted else reason
            against = against or refuse_alone(node, state)
            if against is not None:
                self._stay[node] = against
            self._wanted[node] = () if against is not None else wanted
            self._refused[node] = dict(refused.get(node.name, {}))
            self._taken[node] = set()

    def plan(self, min_block_size: int) -> Cut:
        """Blocks of at least `min_block_size` operators."""
        while True:
            blocks, trailing = self._propose()
            faults = self._refuse_blocks(blocks, min_block_size) or self._move_on(trailing)
            if not faults:
                break
            for node, reason in faults.items():
                self._refuse(node, reason)
        placed = {node for block in blocks for node in block}
        for node in trailing:
            self._refuse(node, TRAILING_LAYOUT)
        order = {node: i for i, node in enumerate(self._graph.nodes)}
        blocks.sort(key=lambda block: order[next(iter(block))])
        return Cut(tuple(blocks), {node: self._tell(node, placed) for node in self._wanted})

    def _owner(self, node: Node) -> str | None:
        """The first backend of an operator against which nothing speaks so far."""
        for backend in self._wanted[node]:
            if backend in self._refused[node]:
                continue
            if backend in self._taken[node]:
                return backend
            reason = self._supports[backend](node)
            if reason is None:
                self._taken[node].add(backend)
                return backend
            self._refused[node][backend] = reason
        return None

    def _refuse(self, node: Node, reason: str) -> None:
        owner = self._owner(node)
        if owner is not None:
            self._refused[node][owner] = reason

    def _tell(self, node: Node, placed: set[Node]) -> str:
        """Why an operator is where it is."""
        if node in self._stay:
            return self._stay[node]
        refused = {name: self._refused[node][name] for name in self._wanted[node] if name in self._refused[node]}
        told = [f"{name}: {reason}" for name, reason in refused.items()]
        if node in placed:
            return "; ".join((SUPPORTED, *told))
        return "; ".join(told) if len(set(refused.values())) > 1 else next(iter(refused.values()))

    def _propose(self) -> tuple[list[Block], list[Node]]:
        """Blocks of all backends, and the layout operators that were cut off from their ends."""
        owners = {node: self._owner(node) for node in self._wanted}
        in_engines = [node for node, owner in owners.items() if owner is not None]
        blocks: list[Block] = []
        trailing: list[Node] = []
        for backend in self._supports:
            wanted = {node for node in in_engines if owners[node] == backend}
            found = self._propose_for(backend, wanted, Units(self._graph, blocks, in_engines)) if wanted else []
            for block in found:
                cut_off = trailing_layout(block)
                trailing += filter(is_operator, cut_off)
                blocks.append(Block((node for node in block if node not in set(cut_off)), backend))
        return [block for block in blocks if block], trailing

    def _propose_for(self, backend: str, wanted: set[Node], units: Units) -> list[Block]:
        images = units.contract()
        # The partitioner lists all submodules for each node; it needs none of them.
        graph_only: Any = SimpleNamespace(graph=next(iter(images)).graph, named_modules=tuple)
        partitioner = CapabilityBasedPartitioner(
            graph_only, _Support(images, wanted), allows_single_node_partition=True
        )
        order = {node: i for i, node in enumerate(self._graph.nodes)}
        found = ([node for image in part.nodes for node in images[image]] for part in partitioner.propose_partitions())
        blocks = [Block(sorted(nodes, key=order.__getitem__), backend) for nodes in found]
        return sorted(blocks, key=lambda block: order[next(iter(block))])

    def _refuse_blocks(self, blocks: Iterable[Block], min_block_size: int) -> dict[Node, str]:
        """Operators that a backend does not get, of the first one that there are some of: others may want them."""
        blocks = list(blocks)
        for backend, supports in self._supports.items():
            own = [block for block in blocks if block.backend == backend]
            together = [refuse_together(block, self._state, supports) for block in own]
            faults = {node: reason for found in together for node, reason in found.items()}
            faults = faults or _refuse_small(own, min_block_size)
            if faults:
                return faults
        return {}

    def _move_on(self, trailing: Iterable[Node]) -> dict[Node, str]:
        """Operators at the ends of engines that another backend may want at the beginning of its own."""
        return {node: TRAILING_LAYOUT for node in trailing if self._has_other(node)}

    def _has_other(self, node: Node) -> bool:
        left = [name for name in self._wanted[node] if name not in self._refused[node] and name != self._owner(node)]
        return any(self._supports[name](node) is None for name in left)


def _refuse_small(blocks: Iterable[Block], min_block_size: int) -> dict[Node, str]:
    faults: dict[Node, str] = {}
    for block in blocks:
        operators = [node for node in block if is_operator(node)]
        if len(operators) < min_block_size:
            count = f"{len(operators)} operator{'' if len(operators) == 1 else 's'}"
            faults.update(dict.fromkeys(operators, f"in a block of {count}, below min_block_size"))
    return faults


class _Support(OperatorSupportBase):
    """What the partitioner may put into engines of one backend.

    Args:
        images: Nodes of the contracted graph -> what they stand for.
        wanted: Operators that shall go to the backend.
    """

    def __init__(self, images: Mapping[Node, Unit], wanted: set[Node]) -> None:
        self._images = images
        self._wanted = wanted

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:  # noqa: ARG002  unused
        unit = self._images[node]
        if isinstance(unit, Block):
            return False
        (only,) = unit
        while is_getitem(only):
            only = only.all_input_nodes[0]
        return only in self._wanted
