"""What cannot run in an engine, whatever the backend says of its operator."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from intarsia._torch import HigherOrderOperator, OpOverload
from intarsia.core.writes import PARTIAL_WRITES
from intarsia.partition.blocks import Block, block_inputs
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
STATE_WRITE = "writes part of the state, which torch does in place"
NO_INPUT = "no tensor that changes between calls goes into it"


def refuse_alone(node: Node, state: State) -> str | None:
    """Why an operator cannot run in any engine, whatever stands around it."""
    return _refuse_target(node) or _refuse_results(node) or _refuse_state_write(node, state)


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


def _refuse_state_write(node: Node, state: State) -> str | None:
    """An engine would take the whole entry and return another one, to be copied back."""
    if node.target not in PARTIAL_WRITES:
        return None
    base: Any = node
    while base.op == "call_function" and (base.target in PARTIAL_WRITES or is_layout(base)):
        base = base.args[0]
    return STATE_WRITE if state.is_written(base) else None


def refuse_together(block: Block, state: State, supports: Supports) -> dict[Node, str]:
    """Operators that cannot run in the engine of a block, for want of inputs that tell what they need.

    Args:
        block: Nodes that the backend takes.
        state: The state of the graph's module.
        supports: Why the backend does not take a node; here one that works out a size.
    """
    inputs = block_inputs(block, state)
    operators = [node for node in block if is_operator(node)]
    if not inputs:
        return dict.fromkeys(operators, NO_INPUT)
    sizes = Sizes(inputs)
    faults = {node: _refuse_sizes(node, sizes, block, supports) for node in operators}
    return {node: reason for node, reason in faults.items() if reason is not None}


def _refuse_sizes(node: Node, sizes: Sizes, block: Collection[Node], supports: Supports) -> str | None:
    for size in filter(is_number, node.all_input_nodes):
        missing = sizes.missing(size, block)
        if missing is not None:
            return f"reads %{missing.name}, a number that no tensor input of an engine carries"
        reason = _refuse_arithmetic(size, supports)
        if reason is not None:
            return reason
    return None


def _refuse_arithmetic(size: Node, supports: Supports) -> str | None:
    if not is_symbolic(size) or isinstance(size.target, OpOverload):
        return None
    reason = supports(size)
    if reason is not None:
        return f"reads %{size.name} ({operator_name(size)}): {reason}"
    return next(filter(None, (_refuse_arithmetic(part, supports) for part in size.all_input_nodes)), None)


def trailing_layout(block: Block) -> list[Node]:
    """The layout operators at a block's end, last first: an engine returns contiguous memory of its own."""
    found: dict[Node, None] = {}
    for node in reversed(block):
        if is_layout(node) and all(user in found or user not in block for user in node.users):
            found[node] = None
    return list(found)
