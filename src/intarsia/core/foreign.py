"""Partitions of other compilers: a module without a graph, and the graph that stands for one call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True)
class EngineBody:
    """A graph that runs another compiler's engine in the place of its module.

    Attributes:
        module: The graph, with the engine as an attribute. An output that the engine writes into the memory of an input
            is copied into the placeholder of the input, by `aten.copy_`.
        call: The call in its graph that runs the engine: of a list of tensors, and of the engine.
        into: For each output that the engine writes into the memory of an input: its position, and the input's.
    """

    module: torch.fx.GraphModule
    call: torch.fx.Node
    into: Mapping[int, int]


Adapter: TypeAlias = Callable[[Any, torch.fx.Node, Sequence[Any]], EngineBody | None]
"""Makes the body for a call of a module: of the module, the call, and what describes its arguments.

A description is a fake tensor, a symbolic number, or the argument itself. The body is None for a module that is no
engine of another compiler.
"""


def adapt_nothing(module: Any, call: torch.fx.Node, inputs: Sequence[Any]) -> EngineBody | None:  # noqa: ARG001
    """The adapter where all partitions have graphs."""
    return None
