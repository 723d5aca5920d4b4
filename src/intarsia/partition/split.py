"""Cut a planned graph into a hybrid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from operator import getitem
from typing import Any

import torch

from intarsia._torch import copy_convention
from intarsia.partition.blocks import Block, Unit, block_inputs, block_outputs
from intarsia.partition.operators import is_number, is_symbolic
from intarsia.partition.sizes import Sizes
from intarsia.partition.state import State

Node = torch.fx.Node


class Splitter:
    """One forward walk that builds the hybrid's graph, and each partition's.

    Args:
        module: The planned graph module. Not modified; its tensors are shared with the hybrid.
        state: The module's state.
        taken: Names that no partition shall have. Those that have no name yet get that of their backend and a number,
            `openvino_0`, `openvino_1`, ..., in the order in which they run.
    """

    def __init__(self, module: torch.fx.GraphModule, state: State, taken: Collection[str] = ()) -> None:
        self._source = module
        self._state = state
        self._taken = taken
        self._counts: Counter[str] = Counter()
        self._graph = torch.fx.Graph()
        self._images: dict[Node, Node] = {}
        self._partitions: dict[str, torch.fx.GraphModule] = {}

    def split(self, units: Sequence[Unit]) -> tuple[torch.fx.GraphModule, dict[str, Block]]:
        """The hybrid, and the nodes of each partition by its name.

        Args:
            units: All nodes of the graph in running order, the nodes of a block as one unit.
        """
        names: dict[str, Block] = {}
        for unit in units:
            if isinstance(unit, Block):
                names[self._add_partition(unit)] = unit
            else:
                (node,) = unit
                self._images[node] = self._graph.node_copy(node, self._images.__getitem__)
        self._erase_unread()
        return self._assemble(), names

    def _add_partition(self, block: Block) -> str:
        name = block.name or self._free_name(block.backend)
        inputs, outputs = block_inputs(block, self._state), block_outputs(block)
        self._partitions[name] = _build_partition(name, block, inputs, outputs, self._state)
        call = self._graph.create_node("call_module", name, tuple(self._images[node] for node in inputs), {}, name)
        call.meta["val"] = tuple(node.meta["val"] for node in outputs)
        for i, node in enumerate(outputs):
            result = self._graph.create_node("call_function", getitem, (call, i), {}, node.name)
            result.meta["val"] = node.meta["val"]
            self._images[node] = result
        return name

    def _free_name(self, backend: str) -> str:
        while True:
            name = f"{backend}_{self._counts[backend]}"
            self._counts[backend] += 1
            if not hasattr(self._source, name) and name not in self._taken:
                return name

    def _erase_unread(self) -> None:
        """Erase reads of state, and sizes, that only partitions used: they have their own."""
        for node in reversed(self._graph.nodes):
            if not node.users and (node.op == "get_attr" or is_symbolic(node)):
                self._graph.erase_node(node)

    def _assemble(self) -> torch.fx.GraphModule:
        hybrid = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph(), "Hybrid")
        for path in dict.fromkeys(str(node.target) for node in self._graph.find_nodes(op="get_attr")):
            self._state.place(path, hybrid)
        for name, partition in self._partitions.items():
            hybrid.add_submodule(name, partition)
        copy_convention(self._source.graph, self._graph)
        hybrid.graph = self._graph
        hybrid.meta.update(self._source.meta)
        return hybrid


def _build_partition(
    name: str, block: Block, inputs: Sequence[Node], outputs: Sequence[Node], state: State
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    images: dict[Node, Any] = {}
    sizes = Sizes(inputs)
    for node in inputs:
        images[node] = graph.placeholder(node.name)
        images[node].meta["val"] = node.meta["val"]
    for node in block:
        for part in node.all_input_nodes:
            if is_number(part):
                images[part] = sizes.rebuild(part, graph, images)
            elif part not in images:
                images[part] = graph.node_copy(part)
        images[node] = graph.node_copy(node, images.__getitem__)
    graph.output(tuple(images[node] for node in outputs)).meta["val"] = tuple(node.meta["val"] for node in outputs)
    partition = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph(), name)
    for path in dict.fromkeys(str(node.target) for node in graph.find_nodes(op="get_attr")):
        state.place(path, partition)
    partition.graph = graph
    return partition
