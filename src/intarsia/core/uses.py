"""What an integer input is for, told from the operators that it reaches."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from intarsia.core.backend import MASKS, POSITIONS
from intarsia.core.dim import Size
from intarsia.core.engine_calls import read_containers
from intarsia.core.op import RUN_ENGINE

aten = torch.ops.aten


class Range(NamedTuple):
    """Where positions may lie.

    Attributes:
        dim: Dim that they count along.
        size: Size of that.
        counts_back: Whether -1 is the last position.
    """

    dim: int
    size: Size
    counts_back: bool


@dataclass(frozen=True)
class Use:
    """What may stand in an integer input.

    Attributes:
        ranges: What its values are positions in; none for a mask of zeros and ones.
        returned: Whether its values, or others made of them, are among the outputs.
    """

    ranges: tuple[Range, ...] = ()
    returned: bool = False

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Sizes that its values index, each from 0 to the size less one."""
        return tuple(found.size for found in self.ranges)


def _packets(names: str) -> frozenset[Any]:
    return frozenset(getattr(aten, name) for name in names.split())


# Their results hold the integers of their first argument, in other places or in another integer dtype.
_CARRIERS = _packets(
    "_to_copy _unsafe_view alias clone contiguous detach expand flatten flip lift_fresh_copy permute repeat reshape "
    "roll select slice squeeze t to transpose unfold unsqueeze view"
)
# Their results are other integers: a mask may pass through them, an index may not.
_ARITHMETIC = _packets("abs add cat clamp copy cumsum maximum minimum mul neg rsub stack sub sum")
_COMPARISONS = _packets("all any eq ge gt le logical_and logical_not logical_or logical_xor lt masked_fill ne where")
# torch leaves a check of the dtype behind at every cast.
_METADATA_CHECK = getattr(aten, "_assert_tensor_metadata")  # noqa: B009 - an operator's name, and not private
_INDEXING = _packets("_unsafe_index _unsafe_index_put index index_put index_put_")
_INDEXING_ONE_DIM = _packets(
    "gather index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_select scatter scatter_ "
    "scatter_add scatter_add_ scatter_reduce"
)


EngineInputs: TypeAlias = Mapping[Node, Mapping[int, Sequence[Range]]]
"""For each call of an engine the integer inputs whose use is told: what these are positions in, nothing for a mask."""


def find_use(placeholder: Node, engines: EngineInputs) -> Use | None:
    """What an integer input is for, or None when that cannot be told.

    It is followed through views, casts and copies to what consumes it. An index counts before a mask; one consumer
    that cannot be told (an engine that does not say, a body of a higher-order operator) leaves the whole untold.

    Args:
        placeholder: The input.
        engines: What engines do with integers.
    """
    ranges: list[Range] = []
    told, returned = True, False
    waiting = [(placeholder, True)]
    seen = set(waiting)
    while waiting:
        value, exact = waiting.pop()
        for user in value.users:
            returned = returned or user.op == "output"
            if user in engines:
                taken = _taken_by_engine(user, value, engines[user])
                ranges += taken or ()
                told = told and taken is not None and (exact or not taken)
                continue
            indexed = _indexed(user, value)
            if indexed:
                ranges.append(indexed)
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
    return Use(tuple(ranges), returned) if told else None


def _taken_by_engine(user: Node, value: Node, known: Mapping[int, Sequence[Range]]) -> list[Range] | None:
    """What a value is for an engine; None where it does not tell of one of the inputs that take it."""
    arguments: Any = user.args[0]
    found = [known.get(index) for index, argument in enumerate(arguments) if argument is value]
    return None if None in found else [one for ranges in found if ranges for one in ranges]


def _indexed(user: Node, value: Node) -> Range | None:
    """What a consumer takes a value for positions in; None when it does something else with it."""
    packet = getattr(user.target, "overloadpacket", None)
    arguments: tuple[Any, ...] = user.args
    dim: int | None = None
    if packet is aten.embedding and arguments[1] is value:
        dim = 0
    elif packet in _INDEXING_ONE_DIM and len(arguments) > 2 and arguments[2] is value:
        dim = arguments[1]
    elif packet in _INDEXING:
        dim = next((i for i, index in enumerate(arguments[1]) if index is value), None)
    if dim is None:
        return None
    shape = _shape(arguments[0]) or (1,)
    return Range(dim % len(shape), shape[dim], packet in _INDEXING | _packets("index_fill index_fill_"))


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


def engine_inputs(program: ExportedProgram) -> EngineInputs:
    """What the engines of a program do with integers, as far as their backends tell.

    Raises:
        EngineError: An engine is damaged.
    """
    containers = read_containers(program)
    held = {spec.arg.name: containers.get(str(spec.target)) for spec in program.graph_signature.input_specs}
    found: dict[Node, Mapping[int, Sequence[Range]]] = {}
    for call in program.graph.find_nodes(op="call_function", target=RUN_ENGINE):
        container = held.get(call.args[1].name)
        if container is not None:
            ranges: dict[int, list[Range]] = {number: [] for number in container.options.get(MASKS, ())}
            for position in container.options.get(POSITIONS, ()):
                entry = Range(position.get("dim", 0), position["size"], position.get("counts_back", False))
                ranges.setdefault(position["input"], []).append(entry)
            found[call] = ranges
    return found


def describe_integers(program: ExportedProgram) -> dict[str, Any]:
    """What a partition does with the integers that it takes, for the options of its engine.

    Told are inputs of which all uses can be told, along fixed sizes, and whose values are not among the outputs.

    Returns:
        `intarsia.core.backend.POSITIONS` and `intarsia.core.backend.MASKS`, each where there are some.
    """
    names = program.graph_signature.user_inputs
    inputs = [node for node in program.graph.find_nodes(op="placeholder") if node.name in names]
    positions: list[dict[str, Any]] = []
    masks: list[int] = []
    for node in integer_inputs(inputs):
        use, number = find_use(node, {}), names.index(node.name)
        if use is None or use.returned or not all(isinstance(size, int) for size in use.sizes):
            continue
        if not use.ranges:
            masks.append(number)
        positions += [{"input": number, **found._asdict()} for found in dict.fromkeys(use.ranges)]
    return {**({POSITIONS: positions} if positions else {}), **({MASKS: masks} if masks else {})}


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
