"""What an integer input is for, told from the operators that it reaches."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from intarsia.core.backend import POSITIONS
from intarsia.core.engine_calls import read_containers
from intarsia.core.op import RUN_ENGINE

aten = torch.ops.aten

Size: TypeAlias = int | torch.SymInt


@dataclass(frozen=True)
class Use:
    """What may stand in an integer input.

    Attributes:
        sizes: Sizes that its values index, each from 0 to the size less one; none for a mask of zeros and ones.
    """

    sizes: tuple[Size, ...] = ()


def _packets(names: str) -> frozenset[Any]:
    return frozenset(getattr(aten, name) for name in names.split())


# Their results hold the integers of their first argument, in other places or in another integer dtype.
_CARRIERS = _packets(
    "_to_copy _unsafe_view alias clone contiguous detach expand flatten flip lift_fresh_copy permute repeat reshape "
    "roll select slice squeeze t to transpose unfold unsqueeze view"
)
# Their results are other integers: a mask may pass through them, an index may not.
_ARITHMETIC = _packets("abs add cat copy cumsum maximum minimum mul neg rsub stack sub sum")
_COMPARISONS = _packets("all any eq ge gt le logical_and logical_not logical_or logical_xor lt masked_fill ne where")
# torch leaves a check of the dtype behind at every cast.
_METADATA_CHECK = getattr(aten, "_assert_tensor_metadata")  # noqa: B009 - an operator's name, and not private
_INDEXING = _packets("_unsafe_index _unsafe_index_put index index_put index_put_")
_INDEXING_ONE_DIM = _packets(
    "gather index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_select scatter scatter_ "
    "scatter_add scatter_add_ scatter_reduce"
)


EnginePositions: TypeAlias = Mapping[Node, Mapping[int, Sequence[int]]]
"""For each call of an engine the numbers of the inputs that hold positions, and the sizes that those are below."""


def find_use(placeholder: Node, engines: EnginePositions) -> Use | None:
    """What an integer input is for, or None when that cannot be told.

    It is followed through views, casts and copies to what consumes it. An index counts before a mask; one consumer
    that cannot be told (an engine that takes no positions there, a body of a higher-order operator) leaves the whole
    untold.

    Args:
        placeholder: The input.
        engines: What engines take positions from.
    """
    sizes: list[Size] = []
    told = True
    waiting = [(placeholder, True)]
    seen = set(waiting)
    while waiting:
        value, exact = waiting.pop()
        for user in value.users:
            indexed = _indexed_by_engine(user, value, engines) if user in engines else _indexed(user, value)
            if indexed:
                sizes += indexed
                told = told and exact
                continue
            kept = _follow(user, value)
            if kept is None:
                told = told and _is_harmless(user)
                continue
            step = (user, exact and kept)
            if step not in seen:
                seen.add(step)
                waiting.append(step)
    if sizes:
        return Use(tuple(sizes)) if told else None
    return Use() if told else None


def _indexed_by_engine(user: Node, value: Node, engines: EnginePositions) -> list[Size]:
    """The sizes that an engine indexes by a value; none where one of its inputs takes it for something else."""
    arguments: Any = user.args[0]
    found = [engines[user].get(index, ()) for index, argument in enumerate(arguments) if argument is value]
    return [size for sizes in found for size in sizes] if all(found) else []


def _indexed(user: Node, value: Node) -> list[Size]:
    """The size that a consumer indexes by a value; none when it does something else with it."""
    packet = getattr(user.target, "overloadpacket", None)
    arguments: tuple[Any, ...] = user.args
    found: Size | None = None
    if packet is aten.embedding and arguments[1] is value:
        found = _shape(arguments[0])[0]
    elif packet in _INDEXING_ONE_DIM and len(arguments) > 2 and arguments[2] is value:
        found = _shape(arguments[0])[arguments[1]]
    elif packet in _INDEXING:
        sizes = zip(arguments[1], _shape(arguments[0]), strict=False)
        found = next((size for index, size in sizes if index is value), None)
    return [] if found is None else [found]


def _follow(user: Node, value: Node) -> bool | None:
    """Whether a consumer keeps the integers as they are (True) or makes others (False); None when it ends them."""
    result = user.meta.get("val")
    if not isinstance(result, torch.Tensor) or not _is_integral(result):
        return None
    packet = getattr(user.target, "overloadpacket", None)
    if packet in _CARRIERS and user.args[0] is value:
        return True
    return False if packet in _ARITHMETIC else None


def _is_harmless(user: Node) -> bool:
    """Whether a consumer takes zeros and ones: an output, a comparison, a cast, arithmetic with floats, a write."""
    packet = getattr(user.target, "overloadpacket", None)
    if user.op == "output" or packet in (aten.sym_size, aten.copy_, _METADATA_CHECK) or user.target is operator.getitem:
        return True
    return packet in _CARRIERS | _ARITHMETIC | _COMPARISONS | {aten.div}


def engine_positions(program: ExportedProgram) -> EnginePositions:
    """What the engines of a program take positions from, as far as their backends tell.

    Raises:
        EngineError: An engine is damaged.
    """
    containers = read_containers(program)
    held = {spec.arg.name: containers.get(str(spec.target)) for spec in program.graph_signature.input_specs}
    found: dict[Node, Mapping[int, Sequence[int]]] = {}
    for call in program.graph.find_nodes(op="call_function", target=RUN_ENGINE):
        container = held.get(call.args[1].name)
        if container is not None:
            sizes: dict[int, list[int]] = {}
            for position in container.options.get(POSITIONS, ()):
                sizes.setdefault(position["input"], []).append(position["size"])
            found[call] = sizes
    return found


def integer_inputs(nodes: Sequence[Node]) -> Iterator[Node]:
    """Those of some placeholders that hold integer tensors."""
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and _is_integral(value):
            yield node


def _is_integral(value: torch.Tensor) -> bool:
    return value.dtype is not torch.bool and not value.dtype.is_floating_point and not value.dtype.is_complex


def _shape(source: Any) -> Any:
    return source.meta["val"].shape
