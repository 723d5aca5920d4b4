"""What torch captures wrongly of sizes that may be 0 or 1.

`torch.export` takes a dynamic size for one of at least 2, also where its range begins below that. So `x[:1]` is
captured as one row, and of an `x` without rows it has none. torch's operators look at the tensors that they are given;
an engine goes by what was captured, and compiled code then reads outside of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from intarsia._torch import HigherOrderOperator, OpOverload, ValueRanges, schema_of
from intarsia.core.signature import SHORT_NAMES
from intarsia.errors import first_line, shorten

Ranges = Mapping[Any, ValueRanges[Any]]

_USUAL = 5


class Misfit(NamedTuple):
    """What is otherwise at a small size than torch captured it.

    Attributes:
        size: The size, for instance "x.shape[0]".
        at: What it is, 0 or 1.
        what: What a call does then, as a short phrase.
    """

    size: str
    at: int
    what: str

    def __str__(self) -> str:
        return f"where {self.size} = {self.at}, {self.what}"


class _Point(NamedTuple):
    """Sizes by symbol, of which one is small: its name, and what it is."""

    sizes: Mapping[Any, int]
    name: str
    at: int


def misfits(graph: Graph, ranges: Ranges) -> dict[Node, Misfit]:
    """The calls that fail, or read or give a tensor of another shape than was captured, where a size is 0 or 1.

    Args:
        graph: Its nodes have fake tensors as `val`. Not modified, and nothing in it is computed.
        ranges: Ranges of the symbols in these.
    """
    found: dict[Node, Misfit] = {}
    usual, *points = _points(graph, ranges)
    untellable = _Trial(graph, usual).wrong.keys() if points else ()
    for point in points:
        for node, what in _Trial(graph, point, untellable).wrong.items():
            found.setdefault(node, Misfit(point.name, point.at, what))
    return found


def _points(graph: Graph, ranges: Ranges) -> Iterator[_Point]:
    """Sizes none of which is small, and then those of which one is."""
    names = {
        size.node.expr: f"{node.name}.shape[{dim}]"
        for node in reversed(graph.find_nodes(op="placeholder"))
        for dim, size in enumerate(getattr(node.meta.get("val"), "shape", ()))
        if isinstance(size, torch.SymInt)
    }
    varying = {symbol: ranges[symbol] for symbol in names if symbol in ranges}
    usual = {symbol: int(min(max(_USUAL, given.lower), given.upper)) for symbol, given in varying.items()}
    yield _Point(usual, "", _USUAL)
    for symbol, given in varying.items():
        for size in (0, 1):
            if given.lower <= size <= given.upper:
                yield _Point({**usual, symbol: size}, names[symbol], size)


class _Trial:
    """Tries the calls of a graph at some sizes.

    Attributes:
        wrong: The calls that fail, or meet other shapes than were captured, and what is wrong with each.
    """

    def __init__(self, graph: Graph, point: _Point, untellable: Collection[Node] = ()) -> None:
        self.wrong: dict[Node, str] = {}
        self._point = point
        self._untellable = untellable
        self._misshapen: dict[Node, str] = {}
        self._values: dict[Node, Any] = {}
        with torch.no_grad():
            for node in graph.nodes:
                self._values[node] = _told(node.meta.get("val"), point)
                if node.op == "call_function":
                    self._visit(node)

    def _visit(self, node: Node) -> None:
        reads = next((self._misshapen[part] for part in node.all_input_nodes if part in self._misshapen), None)
        if reads is not None:
            self.wrong[node] = reads
        if not _can_be_tried(node) or node in self._untellable:
            return
        try:
            found = _evaluate(node, self._values)
        except Exception as error:  # noqa: BLE001  whatever torch raises
            self._values[node] = None
            self.wrong.setdefault(node, f"torch refuses it ({shorten(first_line(error), 200)})")
            return
        difference = _difference(self._values[node], found)
        if difference is not None:
            self._misshapen[node] = difference
            self.wrong.setdefault(node, difference)
        if difference is not None or found is None:
            self._values[node] = found  # Otherwise what was captured has the strides of the device.


def _can_be_tried(node: Node) -> bool:
    """Whether a call can be tried: all but writes, and operators that hold graphs."""
    if isinstance(node.target, HigherOrderOperator):
        return False
    return not isinstance(node.target, OpOverload) or not schema_of(node.target).written


def _told(value: Any, point: _Point) -> Any:
    """A value as it was captured, at some sizes, without data; None where these do not tell it."""
    if isinstance(value, (list, tuple)):
        return [_told(leaf, point) for leaf in value]
    if isinstance(value, torch.SymInt):
        return _number(value, point)
    if not isinstance(value, torch.Tensor):
        return value
    shape = [_number(size, point) for size in value.shape]
    strides = [_number(stride, point) for stride in value.stride()] if value.layout is torch.strided else [None]
    if None in shape or None in strides:
        return None
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")  # type: ignore[arg-type]


def _number(size: int | torch.SymInt, point: _Point) -> int | None:
    if isinstance(size, int):
        return size
    found = size.node.expr.subs(point.sizes)
    return int(found) if found.is_number and found.is_integer else None


def _evaluate(node: Node, values: Mapping[Node, Any]) -> Any:
    """What a call gives; None where that is not known of what it reads."""
    if any(values[part] is None for part in node.all_input_nodes):
        return None
    target: Any = node.target
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    return target(*args, **({**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs))


def _difference(told: Any, found: Any) -> str | None:
    if isinstance(told, list) and isinstance(found, (list, tuple)):
        return next(filter(None, map(_difference, told, found)), None)
    if not isinstance(told, torch.Tensor) or not isinstance(found, torch.Tensor) or told.shape == found.shape:
        return None
    return f"it meets {_type(found)}, which torch captured as {_type(told)}"


def _type(value: torch.Tensor) -> str:
    return f"{SHORT_NAMES.get(value.dtype, value.dtype)}{list(value.shape)}"
