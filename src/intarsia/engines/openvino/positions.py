"""Positions that operators take as integer tensors: OpenVINO checks none, so an engine checks them before each call.

An index outside of a tensor makes OpenVINO read zeros or another row, drop a write, or write outside of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind

from intarsia._torch import OpOverload
from intarsia.core.dim import Size
from intarsia.core.positions import InputPositions
from intarsia.engines.nodes import CASTS, operator_name
from intarsia.engines.openvino.table import (
    INDEX_ARGUMENTS,
    MASK_ARGUMENTS,
    MOVERS,
    POSITION_WRITES,
)
from intarsia.errors import EngineBuildFailed

Node = torch.fx.Node
ValueOf = Callable[[Node], torch.Tensor | None]
"""The tensor that a node reads and that never changes, or None for any other node."""

_COUNTS_BACK = frozenset({"_unsafe_index.Tensor", "index.Tensor", "index_put.default"})

# Operators whose result holds the same numbers as their argument, each at least once.
_RESHAPERS = frozenset(
    f"{name}.default"
    for name in ("alias", "clone", "detach", "expand", "permute", "repeat", "squeeze", "t", "unsqueeze", "view")
) | {"flip.default", "squeeze.dim", "squeeze.dims", "transpose.int"}

# Movers that bring in numbers of their own.
_FILLERS = frozenset({"masked_fill.Scalar", "where.ScalarOther", "where.ScalarSelf"})


class _Position(NamedTuple):
    tensor: Node
    dim: int
    size: Size
    counts_back: bool

    def holds(self, values: torch.Tensor) -> bool:
        """Whether all of `values` are positions in a dim of a size that is known."""
        if not isinstance(self.size, int):
            return False
        least = -self.size if self.counts_back else 0
        return values.numel() == 0 or (int(values.min()) >= least and int(values.max()) < self.size)


def reason_against_positions(node: Node, stays_in_torch: Callable[[Node], bool]) -> str | None:
    """Why OpenVINO cannot be trusted with the positions that a node takes, or None.

    Args:
        node: A call of an operator.
        stays_in_torch: Whether no engine computes a node.
    """
    name = operator_name(node)
    for position in _positions_of(node):
        if position.tensor.meta["val"].dtype is torch.uint8:
            return "takes a u8 mask, in which OpenVINO sees positions"
        if _are_constant(position, _attribute_value):
            continue
        if name in POSITION_WRITES:
            return "writes at positions, which OpenVINO does not check"
        if not isinstance(position.size, int):
            return "reads at positions along a dynamic size, which OpenVINO does not check"
        source = _source(position.tensor)
        if source.op == "call_function" and not stays_in_torch(source):
            return "reads at positions that an engine computes, which OpenVINO does not check"
    return None


def find_input_positions(program: torch.export.ExportedProgram) -> list[InputPositions]:
    """Inputs of a partition that hold positions, once for each size that they count along.

    Args:
        program: The partition, before it is decomposed.

    Raises:
        EngineBuildFailed: Positions are computed inside, where nobody checks them.
    """
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs = [spec.arg.name for spec in specs.values() if spec.kind is InputKind.USER_INPUT]

    def value_of(node: Node) -> torch.Tensor | None:
        spec = specs.get(node.name)
        if spec is None or spec.kind is InputKind.USER_INPUT:
            return None
        found = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
        return found if isinstance(found, torch.Tensor) else None

    found: dict[InputPositions, None] = {}
    for node in program.graph.nodes:
        for position in _positions_of(node):
            if _are_constant(position, value_of):
                continue
            name = _source(position.tensor).name
            if name not in inputs or not isinstance(position.size, int):
                raise _uncheckable(node)
            found[InputPositions(inputs.index(name), name, position.dim, position.size, position.counts_back)] = None
    return list(found)


def _positions_of(node: Node) -> Iterator[_Position]:
    """The integer tensors among a call's arguments that hold positions; masks of truth values are none."""
    name = operator_name(node)
    if not isinstance(node.target, OpOverload) or name not in INDEX_ARGUMENTS:
        return
    arguments: Any = node.args
    index = arguments[INDEX_ARGUMENTS[name]]
    if isinstance(index, Sequence):
        given: dict[Any, Any] = dict(enumerate(index))
    else:
        given = {0 if name == "embedding.default" else arguments[1]: index}
    shape: Sequence[Size] = arguments[0].meta["val"].shape or (1,)
    for dim, part in given.items():
        if isinstance(part, Node) and part.meta["val"].dtype is not torch.bool:
            yield _Position(part, dim % len(shape), shape[dim], name in _COUNTS_BACK)


def _are_constant(position: _Position, value_of: ValueOf) -> bool:
    """Whether positions are constants that are all in range."""
    constants = _constants(position.tensor, value_of)
    return constants is not None and all(map(position.holds, constants))


def _constants(index: Node, value_of: ValueOf) -> list[torch.Tensor] | None:
    """Constants from which an index takes all of its numbers, or None when others may be among them."""
    found: list[torch.Tensor] = []
    pending, seen = [index], {index}
    while pending:
        node = pending.pop()
        value = value_of(node)
        if value is not None:
            found.append(value)
            continue
        name = operator_name(node)
        if node.op != "call_function" or not (name in MOVERS - _FILLERS or _widens(node)):
            return None
        sources = [source for source in _moved(node, name) if source not in seen]
        pending += sources
        seen.update(sources)
    return found


def _moved(node: Node, name: str) -> list[Node]:
    """The tensors whose numbers a mover moves: its arguments without positions and masks."""
    others = (INDEX_ARGUMENTS.get(name), MASK_ARGUMENTS.get(name))
    moved: list[Node] = []
    torch.fx.map_arg([argument for i, argument in enumerate(node.args) if i not in others], moved.append)
    return [source for source in moved if isinstance(source.meta.get("val"), torch.Tensor)]


def _source(index: Node) -> Node:
    """The node whose numbers an index holds, all of them and no others."""
    while index.op == "call_function" and (operator_name(index) in _RESHAPERS or _widens(index)):
        index = index.all_input_nodes[0]
    return index


def _widens(node: Node) -> bool:
    """Whether the node casts integers to i64, which changes none."""
    if operator_name(node) not in CASTS or node.meta["val"].dtype is not torch.int64:
        return False
    dtype: torch.dtype = node.all_input_nodes[0].meta["val"].dtype
    return not (dtype.is_floating_point or dtype.is_complex)


def _attribute_value(node: Node) -> torch.Tensor | None:
    """What a `get_attr` node reads, when nothing in its graph writes it."""
    if node.op != "get_attr":
        return None
    module = node.graph.owning_module
    value = attrgetter(str(node.target))(module)
    copies = node.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    targets = [copy.args[0] for copy in copies]
    written = [
        attrgetter(str(target.target))(module).untyped_storage().data_ptr()
        for target in targets
        if isinstance(target, Node) and target.op == "get_attr"
    ]
    is_tensor = isinstance(value, torch.Tensor)
    return value if is_tensor and value.untyped_storage().data_ptr() not in written else None


def _uncheckable(node: Node) -> EngineBuildFailed:
    return EngineBuildFailed(
        "OpenVINO",
        found=f"positions of %{node.name} ({operator_name(node)}) that are computed inside of the engine",
        expected="positions that are constants in range, or an input of the engine",
        consequence="OpenVINO checks none.",
        fix=f"Keep the operator in torch with torch_executed_ops={{'aten.{operator_name(node).partition('.')[0]}'}}.",
        node=node.name,
        operators=(str(node.target),),
    )
