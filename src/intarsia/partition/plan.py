"""Decide which operators go to engines together, and why the others stay in torch. Changes no graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from intarsia._torch import HigherOrderOperator, OpOverload
from intarsia.core.writes import PARTIAL_WRITES
from intarsia.partition.operators import (
    has_own_sizes,
    is_getitem,
    is_layout,
    is_number,
    is_operator,
    is_symbolic,
    is_tensor,
    is_write,
    operator_name,
    tensors_of,
)
from intarsia.partition.sizes import Sizes
from intarsia.partition.state import State

Node = torch.fx.Node
Supports = Callable[[Node], str | None]

TRAILING_LAYOUT = "changes only the layout of an engine's output"
KEPT = "named in torch_executed_ops"
STATE_WRITE = "writes part of the state, which torch does in place"


@dataclass(frozen=True)
class Plan:
    """Which nodes form which engine.

    Attributes:
        blocks: Node sets, each to become one partition; each in graph order.
        reasons: Operator nodes that stay in torch -> why.
    """

    blocks: tuple[dict[Node, None], ...]
    reasons: Mapping[Node, str]


class Planner:
    """Plans one graph.

    Args:
        module: Graph module whose nodes have fake tensors as `val`. Not modified.
        state: The module's state.
        supports: Why a backend does not take a node; None when it does.
        kept: Nodes that are to stay in torch.
        refused: Names of nodes that turned out not to fit into an engine -> why.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        state: State,
        *,
        supports: Supports,
        kept: Collection[Node],
        refused: Mapping[str, str],
    ) -> None:
        self._module = module
        self._state = state
        self._supports = supports
        self._reasons: dict[Node, str] = {}
        for node in filter(is_operator, module.graph.nodes):
            reason = KEPT if node in kept else refused.get(node.name) or self._refuse_alone(node)
            if reason is not None:
                self._reasons[node] = reason

    def plan(self, min_block_size: int) -> Plan:
        """Blocks of at least `min_block_size` operators."""
        while True:
            trailing: dict[Node, str] = {}
            blocks = [self._trim(block, trailing) for block in self._propose()]
            faults = {node: reason for block in blocks for node, reason in self._refuse_together(block).items()}
            if not faults:
                break
            self._reasons.update(faults)
        reasons = {**self._reasons, **trailing}
        chosen = []
        for block in blocks:
            operators = [node for node in block if is_operator(node)]
            if len(operators) >= min_block_size:
                chosen.append(block)
            else:
                count = f"{len(operators)} operator{'' if len(operators) == 1 else 's'}"
                reasons.update(dict.fromkeys(operators, f"in a block of {count}, below min_block_size"))
        return Plan(tuple(chosen), reasons)

    def _refuse_alone(self, node: Node) -> str | None:
        """Why the node cannot run on an engine, whatever stands around it."""
        return _refuse_target(node) or _refuse_results(node) or self._refuse_state_write(node) or self._supports(node)

    def _refuse_state_write(self, node: Node) -> str | None:
        """An engine would take the whole entry and return another one, to be copied back."""
        if node.target not in PARTIAL_WRITES:
            return None
        base: Any = node
        while base.op == "call_function" and (base.target in PARTIAL_WRITES or is_layout(base)):
            base = base.args[0]
        return STATE_WRITE if self._state.is_written(base) else None

    def _propose(self) -> list[dict[Node, None]]:
        # The partitioner lists all submodules for each node; it needs none of them.
        graph_only: Any = SimpleNamespace(graph=self._module.graph, named_modules=tuple)
        partitioner = CapabilityBasedPartitioner(graph_only, _Support(self._reasons), allows_single_node_partition=True)
        order = {node: i for i, node in enumerate(self._module.graph.nodes)}
        blocks = [
            dict.fromkeys(sorted(found.nodes, key=order.__getitem__)) for found in partitioner.propose_partitions()
        ]
        return sorted(blocks, key=lambda block: order[next(iter(block))])

    def _trim(self, block: dict[Node, None], trailing: dict[Node, str]) -> dict[Node, None]:
        """The block without the layout operators at its end: an engine returns contiguous memory of its own."""
        kept = dict(block)
        for node in reversed(block):
            if is_layout(node) and not any(user in kept for user in node.users):
                del kept[node]
                if is_operator(node):
                    trailing[node] = TRAILING_LAYOUT
        return kept

    def _refuse_together(self, block: Collection[Node]) -> dict[Node, str]:
        """Nodes that cannot run on this engine, for want of inputs that tell what they need."""
        inputs = block_inputs(block, self._state)
        operators = [node for node in block if is_operator(node)]
        if not inputs:
            return dict.fromkeys(operators, "no tensor that changes between calls goes into it")
        sizes = Sizes(inputs)
        faults = {node: self._refuse_sizes(node, sizes, block) for node in operators}
        return {node: reason for node, reason in faults.items() if reason is not None}

    def _refuse_sizes(self, node: Node, sizes: Sizes, block: Collection[Node]) -> str | None:
        for size in filter(is_number, node.all_input_nodes):
            missing = sizes.missing(size, block)
            if missing is not None:
                return f"reads %{missing.name}, a number that no tensor input of an engine carries"
            reason = self._refuse_arithmetic(size)
            if reason is not None:
                return reason
        return None

    def _refuse_arithmetic(self, size: Node) -> str | None:
        if not is_symbolic(size) or isinstance(size.target, OpOverload):
            return None
        reason = self._supports(size)
        if reason is not None:
            return f"reads %{size.name} ({operator_name(size)}): {reason}"
        return next(filter(None, map(self._refuse_arithmetic, size.all_input_nodes)), None)


def _refuse_target(node: Node) -> str | None:
    if isinstance(node.target, HigherOrderOperator):
        return "holds graphs of its own"
    if not isinstance(node.target, OpOverload):
        return "is no torch operator"
    return "writes state or an input" if is_write(node) else None


def _refuse_results(node: Node) -> str | None:
    if not all(leaf is None or isinstance(leaf, torch.Tensor) for leaf in tensors_of(node)):
        return "returns a number"
    if not any(isinstance(leaf, torch.Tensor) for leaf in tensors_of(node)):
        return "returns no tensor"
    if any(not is_getitem(user) for user in node.users) and not is_tensor(node):
        return "returns several tensors as one value"
    return "the sizes of its result depend on data" if has_own_sizes(node) else None


class _Support(OperatorSupportBase):
    """What the partitioner may put into engines: all operators without a reason against them."""

    def __init__(self, reasons: Mapping[Node, str]) -> None:
        self._reasons = reasons

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        if is_getitem(node):
            return self.is_node_supported(submodules, node.all_input_nodes[0])
        return is_operator(node) and node not in self._reasons


def block_inputs(block: Collection[Node], state: State) -> list[Node]:
    """Tensors that go into a block from outside, in the order of their first use. Constants are part of it."""
    arguments = dict.fromkeys(argument for node in block for argument in node.all_input_nodes)
    return [node for node in arguments if node not in block and is_tensor(node) and not state.is_constant(node)]


def block_outputs(block: Collection[Node]) -> list[Node]:
    """Tensors of a block that something outside uses, in the block's order."""
    return [node for node in block if any(user not in block for user in node.users)]
