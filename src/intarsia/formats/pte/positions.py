"""Positions that engines read at, which OpenVINO does not check.

Two checks stand before it: one of a program's inputs, which tells what is wrong, and one in the file's own graph, which
finds computed positions too, and works in whatever runs the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from intarsia.core.backend import POSITIONS
from intarsia.core.container import EngineContainer
from intarsia.core.op import RUN_ENGINE
from intarsia.core.positions import InputPositions, source_of

aten = torch.ops.aten


def find_positions(
    program: torch.export.ExportedProgram, engines: Mapping[str, EngineContainer]
) -> list[InputPositions]:
    """Inputs of a program that its engines read positions from.

    Args:
        program: As exported.
        engines: Its engines, by the constants that hold them.
    """
    specs = program.graph_signature.input_specs
    inputs = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    constants = {spec.arg.name: str(spec.target) for spec in specs if spec.target in engines}
    found: dict[InputPositions, None] = {}
    for node in program.graph.find_nodes(op="call_function", target=RUN_ENGINE):
        given, engine, _ = node.args
        for number, dim, size, counts_back in _read(engines[constants[engine.name]]):
            source = source_of(given[number])
            if source.name in inputs and not source.meta["val"].is_floating_point():
                found[InputPositions(inputs.index(source.name), source.name, dim, size, counts_back)] = None
    return list(found)


def guard_positions(graph: Graph, inputs: Sequence[Node], container: EngineContainer) -> list[Node]:
    """Inputs of an engine, in which each position outside of its range ends the call.

    A lookup in a table of zeros has as many rows as there are positions: ExecuTorch's kernel refuses what is out of
    range, and what it finds is added.

    Args:
        graph: New nodes go to where it inserts.
        inputs: Of the engine.
        container: Of the engine.
    """
    guarded = list(inputs)
    for number, _, size, counts_back in _read(container):
        index = guarded[number]
        rows, shifted = size, index
        if counts_back:
            rows, shifted = 2 * size, _call(graph, aten.add.Scalar, index, size)
        table = _call(graph, aten.full.default, [rows, 1], 0, dtype=torch.uint8, like=index)
        zeros = _call(graph, aten.squeeze.dims, _call(graph, aten.embedding.default, table, shifted), [-1])
        guarded[number] = _call(graph, aten.add.Tensor, index, zeros)
    return guarded


def _read(container: EngineContainer) -> Iterator[tuple[int, int, int, bool]]:
    for fields in container.options.get(POSITIONS, ()):
        yield fields["input"], fields["dim"], fields["size"], fields["counts_back"]


def _call(graph: Graph, target: Any, *args: Any, like: Node | None = None, **kwargs: Any) -> Node:
    """A call with its value; that of a node decides where values are made."""
    node = graph.call_function(target, args, kwargs)
    nodes = [like] if like else node.all_input_nodes
    with nodes[0].meta["val"].fake_mode:
        node.meta["val"] = target(*torch.fx.map_arg(args, lambda given: given.meta["val"]), **kwargs)
    return node
