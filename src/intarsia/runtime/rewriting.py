"""The graph that a program with state runs: writes in place where that was proved, positions checked beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from intarsia.core.op import run_engine_in_place
from intarsia.core.positions import check_positions
from intarsia.core.writes import Writes, aliased_arguments
from intarsia.runtime.forms import read_write
from intarsia.runtime.in_place import InPlacePlan
from intarsia.runtime.positions import Position, positions_of, subject_of

_FIX = "Pass a position inside of the state, or make the state larger."


def rewrite(program: torch.export.ExportedProgram, plan: InPlacePlan, names: Mapping[str, str]) -> GraphModule | None:
    """The program's graph with the plan carried out, or None where it has nothing to change.

    Flat outputs keep their positions.

    Args:
        program: Not modified.
        plan: What is done in place.
        names: What the user calls the program's placeholders, by node name.
    """
    return _Rewriter(program, plan, names).rewrite()


class _Rewriter:
    def __init__(self, program: torch.export.ExportedProgram, plan: InPlacePlan, names: Mapping[str, str]) -> None:
        self._program = program
        self._plan = plan
        self._names = names
        self._graph = Graph()
        self._images: dict[Node, Node] = {}
        self._positions: dict[Node, dict[Position, None]] = {}
        self._late_positions: dict[Node, list[Position]] = {}
        self._engines: dict[Node, tuple[int, ...]] = {}
        for write in plan.writes.values():
            if write.engine is not None:
                self._engines[write.engine] = (*self._engines.get(write.engine, ()), write.position)

    def rewrite(self) -> GraphModule | None:
        if self._plan.entries:
            self._find_positions()
        if not (self._positions or self._late_positions or self._plan.writes):
            return None
        nodes = self._program.graph.nodes
        for node in nodes:
            if node.op == "placeholder":
                self._images[node] = self._graph.node_copy(node)
        for node in nodes:
            self._check(self._late_positions.get(node, ()), "")
            if node.op == "output":
                self._graph.output(self._outputs(node))
            elif node.op != "placeholder":
                self._images[node] = self._image(node)
            self._check(self._positions.get(node, ()), "Nothing was written.")
        inner = {self._images[node] for node in self._plan.inner}
        self._graph.eliminate_dead_code(is_impure_node=lambda node: node not in inner)
        return GraphModule(self._program.graph_module, self._graph)

    def _find_positions(self) -> None:
        """Positions of all writes of a state entry that the program writes, of a part of it, or of what is to be it.

        Each is checked as soon as it is known; one whose memory the graph writes in place, right before it is used.
        """
        changed = _sharing(value for values in Writes().calls(self._program.graph_module).values() for value in values)
        specs = self._program.graph_signature.input_specs
        written = {spec.arg.name for spec in specs if spec.target in self._plan.entries}
        shown: set[Node] = set()
        for node in self._program.graph.nodes:
            write = read_write(node)
            bases = [write.destination] if write else aliased_arguments(node)
            if node.name in written or not shown.isdisjoint(bases):
                shown.add(node)
                for position in positions_of(node):
                    if changed.isdisjoint(_sharing([position.tensor])):
                        self._positions.setdefault(position.tensor, {})[position] = None
                    else:
                        self._late_positions.setdefault(node, []).append(position)

    def _check(self, positions: Iterable[Position], consequence: str) -> None:
        for position in positions:
            index, *rest = position
            subject = subject_of(index, self._names)
            self._graph.call_function(check_positions, (self._images[index], *rest, subject, consequence, _FIX))

    def _image(self, node: Node) -> Node:
        if node in self._plan.absorbed:
            return self._images[self._plan.absorbed[node]]
        if node in self._engines:
            args = torch.fx.map_arg(node.args, self._images.__getitem__)
            return self._graph.call_function(run_engine_in_place, (*args, self._engines[node]))
        write = self._plan.writes.get(node)
        if write is None:
            return self._graph.node_copy(node, self._images.__getitem__)
        args, kwargs = torch.fx.map_arg((write.args, write.kwargs), self._images.__getitem__)
        return self._graph.call_function(write.in_place, args, kwargs)

    def _outputs(self, node: Node) -> Any:
        values: list[Any] = [*torch.fx.map_arg(node.args[0], self._images.__getitem__)]  # type: ignore[misc]
        for position in self._plan.copied:
            values[position] = self._graph.call_function(torch.ops.aten.clone.default, (values[position],))
        return tuple(values)


def _sharing(nodes: Iterable[Node]) -> set[Node]:
    """Nodes, and all that they may share memory with by what they were made of."""
    waiting = list(nodes)
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += aliased_arguments(node)
    return found
