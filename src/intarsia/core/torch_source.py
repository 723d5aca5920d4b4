"""The torch graphs that engines of this process were built from, kept without their weights.

An engine has its weights as constants, so that a model can be let go once it is compiled. That stays so: of parameters
and buffers only weak references are kept here. A graph lives as long as the memory of its engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary, finalize, ref

import torch
from torch.fx import Graph, GraphModule

from intarsia._torch import is_buffer, non_persistent_buffers
from intarsia.core.container import EngineContainer
from intarsia.errors import EngineError

# By digest of the container, so that a copy of its tensor finds it too.
_by_digest: WeakValueDictionary[bytes, _Source] = WeakValueDictionary()


class _Source:
    """A partition without its weights."""

    def __init__(self, partition: GraphModule) -> None:
        self._graph = _copy(partition.graph)  # a graph holds on to its module
        reads = dict.fromkeys(str(node.target) for node in self._graph.find_nodes(op="get_attr"))
        self._state = {path: _Attribute(partition, path) for path in reads}

    def partition(self, subject: str) -> GraphModule:
        """The partition; raises `EngineError` where a weight is gone."""
        partition = GraphModule(torch.nn.Module(), Graph())
        for path, attribute in self._state.items():
            if not attribute.place(partition, path):
                raise _unknown(
                    subject,
                    f"that {path!r}, which its torch source reads, is gone with the model",
                    "Keep the model until the program is saved.",
                )
        partition.graph = _copy(self._graph)
        return partition


class _Attribute:
    """What a graph reads, and what it is to its module. Who has a parameter or buffer is the model's affair."""

    def __init__(self, partition: GraphModule, path: str) -> None:
        owner: Any = attrgetter(path.rpartition(".")[0])(partition) if "." in path else partition
        name = path.rpartition(".")[2]
        value = getattr(owner, name)
        self._is_buffer = is_buffer(owner, name)
        self._persistent = name not in non_persistent_buffers(owner)
        belongs = self._is_buffer or isinstance(value, torch.nn.Parameter)
        self._value: Callable[[], Any] = ref(value) if belongs else lambda: value

    def place(self, partition: GraphModule, path: str) -> bool:
        """Give a module the attribute; whether it is still there."""
        value = self._value()
        if value is None:
            return False
        *parents, name = path.split(".")
        owner: torch.nn.Module = partition
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, torch.nn.Module())
            owner = getattr(owner, parent)
        if self._is_buffer:
            owner.register_buffer(name, value, persistent=self._persistent)
        else:
            setattr(owner, name, value)
        return True


def keep_source(engine: torch.Tensor, partition: GraphModule) -> None:
    """Let an engine find the partition that it was built from, as long as the memory of its tensor lives.

    Args:
        engine: uint8[n]: the engine's container.
        partition: Its graph takes and gives what the engine does. Not modified; its weights are not kept.
    """
    source = _Source(partition)
    _by_digest[EngineContainer.unpack(engine.numpy().data).digest] = source
    finalize(engine.untyped_storage(), _let_go, source).atexit = False


def source_of(engine: EngineContainer) -> GraphModule:
    """The partition that an engine was built from: a graph module with the model's own tensors.

    Raises:
        EngineError: Another process compiled the engine, or the model that has its weights is gone.

    Example:
        >>> import intarsia
        >>> model = torch.nn.Linear(4, 2)
        >>> hybrid = intarsia.compile(model, (torch.ones(3, 4),))
        >>> container = EngineContainer.unpack(hybrid.openvino_0.openvino_0.numpy().data)
        >>> source_of(container).weight is model.weight
        True
    """
    source = _by_digest.get(engine.digest)
    if source is None:
        raise _unknown(
            engine.subject,
            "no torch source, for it was not compiled in this process",
            "Compile the model in this process and save what that gives, or leave engines='source' out.",
        )
    return source.partition(engine.subject)


def _copy(graph: Graph) -> Graph:
    copy = Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _unknown(subject: str, found: str, fix: str) -> EngineError:
    return EngineError(subject, found=found, expected="the torch operators that it was built from", fix=fix)


def _let_go(source: _Source) -> None:
    """What a finalizer holds until then is free."""
