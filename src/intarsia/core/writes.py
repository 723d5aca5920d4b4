"""What a graph writes: which placeholders its operators write in place, directly or through a view."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from intarsia._torch import HigherOrderOperator, OpOverload, pytree, schema_of
from intarsia.core.operands import operands_of

# These may return an argument itself, or a view of it, and their schemas do not tell.
_UNTOLD_VIEWS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "_unsafe_view",
        "alpha_dropout",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "cartesian_prod",
        "conj_physical",
        "dequantize",
        "dropout",
        "einsum",
        "feature_alpha_dropout",
        "feature_dropout",
        "flatten_dense_tensors",
        "lift",
        "meshgrid",
        "sum_to_size",
        "to_dense",
        "type_as",
        "unflatten_dense_tensors",
        "unsafe_chunk",
        "unsafe_split",
        "unsafe_split_with_sizes",
    )
)

PARTIAL_WRITES = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("copy", "default"),
        ("diagonal_scatter", "default"),
        ("index_add", "default"),
        ("index_copy", "default"),
        ("index_fill", "int_Scalar"),
        ("index_fill", "int_Tensor"),
        ("index_put", "default"),
        ("masked_fill", "Scalar"),
        ("masked_fill", "Tensor"),
        ("masked_scatter", "default"),
        ("scatter", "src"),
        ("scatter", "value"),
        ("scatter_add", "default"),
        ("scatter_reduce", "two"),
        ("select_scatter", "default"),
        ("slice_scatter", "default"),
    )
)
"""Functional operators that return their first argument with a part replaced, which can be done in place."""

Nodes = frozenset[torch.fx.Node]


class Aliases:
    """Which placeholders each value of a flat graph may share memory with.

    An operator's result shares memory with those arguments that its schema says. For a higher-order operator
    nothing says, so all of its arguments count: the answer may name too many placeholders, never too few.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._sources: dict[torch.fx.Node, Nodes] = {}
        for node in graph.nodes:
            self._sources[node] = self._read(node)

    def of(self, value: Any) -> Nodes:
        """Placeholders that a node, or any node in a nested argument, may share memory with."""
        return frozenset().union(*(self._sources[node] for node in _nodes_in(value)))

    def _read(self, node: torch.fx.Node) -> Nodes:
        return frozenset((node,)) if node.op == "placeholder" else self.of(aliased_arguments(node))


def aliased_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Nodes among a call's arguments that its result may share memory with; see `Aliases`."""
    if node.op != "call_function":
        return []
    if isinstance(node.target, OpOverload) and node.target.overloadpacket not in _UNTOLD_VIEWS:
        return _nodes_in(arguments_at(node, schema_of(node.target).aliased))
    if node.target is operator.getitem or isinstance(node.target, (OpOverload, HigherOrderOperator)):
        return node.all_input_nodes
    return []


class Writes:
    """Which of its arguments each call writes in place; a higher-order operator writes what its bodies write."""

    def __init__(self) -> None:
        self._positions: dict[int, frozenset[int]] = {}

    def of(self, node: torch.fx.Node, bodies: Mapping[str, Any]) -> list[torch.fx.Node]:
        """Nodes among a call's arguments that the call writes.

        Args:
            node: The call.
            bodies: Modules that `get_attr` nodes of its graph name, by their target.
        """
        if isinstance(node.target, OpOverload):
            written = schema_of(node.target).written
            return _nodes_in(arguments_at(node, written)) if written else []
        if not isinstance(node.target, HigherOrderOperator):
            return []
        return self._of_bodies(node, bodies)

    def _of_bodies(self, node: torch.fx.Node, bodies: Mapping[str, Any]) -> list[torch.fx.Node]:
        """What bodies write of their operands; of an operator that is not known these stand behind the bodies."""
        leaves = pytree.tree_leaves((node.args, node.kwargs))
        named = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node) and leaf.op == "get_attr"]
        known = operands_of(node.target, node.args)
        operands = leaves[named[-1] + 1 :] if named else []
        if known is not None:
            operands = [*known.made, *known.passed]
        written: dict[torch.fx.Node, None] = {}
        for body in (bodies.get(str(leaves[i].target)) for i in named):
            positions = self._written_positions(body)
            if positions and body is not None and len(body.graph.find_nodes(op="placeholder")) != len(operands):
                positions = frozenset(range(len(operands)))
            written.update(dict.fromkeys(_nodes_in([operands[i] for i in sorted(positions)])))
        return list(written)

    def _written_positions(self, body: Any) -> frozenset[int]:
        if not isinstance(body, torch.fx.GraphModule):
            return frozenset()
        if id(body) not in self._positions:
            placeholders = body.graph.find_nodes(op="placeholder", sort=True)
            written = self.of_graph(body)
            self._positions[id(body)] = frozenset(i for i, node in enumerate(placeholders) if node in written)
        return self._positions[id(body)]

    def calls(self, module: torch.fx.GraphModule) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        """Calls of a flat graph that write -> the arguments that each writes, in graph order."""
        bodies = {str(n.target): _attribute(module, str(n.target)) for n in module.graph.find_nodes(op="get_attr")}
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        return {node: values for node in calls if (values := self.of(node, bodies))}

    def of_graph(self, module: torch.fx.GraphModule) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        """Placeholders that the calls of a flat graph write -> the calls that do, in graph order."""
        written = self.calls(module)
        aliases = Aliases(module.graph) if written else None
        found: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for node, values in written.items():
            for placeholder in aliases.of(values) if aliases else ():
                found.setdefault(placeholder, []).append(node)
        return found


def written_placeholders(module: torch.fx.GraphModule) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Placeholders of a flat graph that its operators write in place -> the nodes that do, in graph order."""
    return Writes().of_graph(module)


def written_state(program: torch.export.ExportedProgram) -> set[str]:
    """Names of the state entries that a program writes, in its graph or by declaration."""
    signature = program.graph_signature
    # What is declared of an input has the name of a placeholder, which may be that of a buffer too.
    declared = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    in_graph = {node.name for node in written_placeholders(program.graph_module)}
    named = [spec for spec in signature.input_specs if spec.target is not None]
    return {str(spec.target) for spec in named if spec.target in declared or spec.arg.name in in_graph}


def arguments_at(node: torch.fx.Node, positions: Iterable[int]) -> list[Any]:
    """What a call of an operator passes for the arguments at some positions of its schema."""
    names = schema_of(node.target).argument_names
    return [node.args[i] if i < len(node.args) else node.kwargs.get(names[i]) for i in positions]


def _attribute(module: torch.nn.Module, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), module)


def _nodes_in(value: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.map_arg(value, found.append)
    return found
