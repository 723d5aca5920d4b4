"""Which partitions are equal, so that one of them is built for all."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch.fx.node import map_arg

from intarsia.core.container import EngineContainer
from intarsia.core.memory import memory_of
from intarsia.core.numbering import key_of


def key_of_partition(partition: torch.fx.GraphModule) -> Hashable:
    """Equal for partitions that run the same operators on inputs of the same types and on the same state.

    Args:
        partition: Its nodes have fake tensors as `val`. As long as keys are compared, all of its state is to live.
    """
    places = {node: i for i, node in enumerate(partition.graph.nodes)}
    return tuple(_key_of_node(node, partition, places) for node in partition.graph.nodes)


def _key_of_node(node: torch.fx.Node, partition: torch.fx.GraphModule, places: dict[torch.fx.Node, int]) -> Hashable:
    if node.op == "get_attr":
        value = partition
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return node.op, memory_of(value), _key_of_type(value)
    values = node.meta.get("val")
    types = tuple(map(_key_of_type, values)) if isinstance(values, (list, tuple)) else _key_of_type(values)
    arguments = map_arg((node.args, node.kwargs), lambda part: f"%{places[part]}")
    target: Any = node.target if node.op == "call_function" else None
    return node.op, target, key_of(arguments), types


def _key_of_type(value: Any) -> Hashable:
    """Type of a tensor, with the sizes that vary as those of one capture."""
    if not isinstance(value, torch.Tensor):
        return str(type(value))
    if value.layout is not torch.strided:
        return id(value)
    numbers = (*value.shape, value.storage_offset(), *value.stride())
    captures = {id(number.node.shape_env) for number in numbers if isinstance(number, torch.SymInt)}
    return value.dtype, value.device, len(value.shape), tuple(map(str, numbers)), *captures


def renamed(engine: torch.Tensor, name: str) -> bytes:
    """The container of the same engine under another name.

    Args:
        engine: uint8[n]: a container.
        name: Name of the engine in the other one.
    """
    container = EngineContainer.unpack(engine.numpy().data)
    return b"".join(replace(container, name=name).repack(payload=True, outside=()).chunks)
