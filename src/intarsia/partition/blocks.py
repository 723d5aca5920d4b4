"""Nodes that run together: blocks, which become partitions, and what goes into and comes out of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from intarsia.partition.operators import is_tensor
from intarsia.partition.state import State

Node = torch.fx.Node
Unit = dict[Node, None]
"""Nodes that run one after the other, in graph order: those of a block, or a single one."""


class Block(Unit):
    """The nodes of one partition, in graph order.

    Args:
        nodes: Its nodes.
        backend: Name of the backend that is to build it.
        name: Name that the partition is to have; empty where it has none yet.
    """

    def __init__(self, nodes: Iterable[Node], backend: str, name: str = "") -> None:
        super().__init__(dict.fromkeys(nodes))
        self.backend = backend
        self.name = name


@dataclass(frozen=True)
class Cut:
    """Which nodes form which partition.

    Attributes:
        blocks: The partitions' nodes, in the order of their first ones.
        reasons: Operator nodes -> why they are where they are.
    """

    blocks: tuple[Block, ...]
    reasons: Mapping[Node, str]


def block_inputs(block: Collection[Node], state: State) -> list[Node]:
    """Tensors that go into a block from outside, in the order of their first use. Constants are part of it."""
    arguments = dict.fromkeys(argument for node in block for argument in node.all_input_nodes)
    return [node for node in arguments if node not in block and is_tensor(node) and not state.is_constant(node)]


def block_outputs(block: Collection[Node]) -> list[Node]:
    """Tensors of a block that something outside uses, in the block's order."""
    return [node for node in block if any(user not in block for user in node.users)]
