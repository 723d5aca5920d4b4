"""What the methods of a `.pte` do, read from ExecuTorch's file without ExecuTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from intarsia.formats.pte.flatbuffer import Table

# Fields of ExecuTorch's tables by their numbers in program.fbs, identifier "ET12", and what its unions may hold.
_EXECUTION_PLAN, _SEGMENTS, _CONSTANTS, _MUTABLE, _NAMED = 1, 4, 5, 6, 7
_NAME, _VALUES, _OUTPUTS, _CHAINS, _OPERATORS, _DELEGATES = 0, 2, 4, 5, 6, 7
_SCALAR_TYPE, _SIZES = 0, 2
_TENSOR, _STRING, _KERNEL_CALL, _DELEGATE_CALL = 5, 6, 1, 2
_SCALARS = {
    0: "u8", 1: "i8", 2: "i16", 3: "i32", 4: "i64", 5: "f16", 6: "f32", 7: "f64", 11: "b8", 15: "bf16",
    23: "f8e5m2", 24: "f8e4m3fn", 27: "u16", 28: "u32", 29: "u64",
}  # fmt: skip


class Plan(NamedTuple):
    """What a method does.

    Attributes:
        outputs: Dtype and largest shape of each output ("f32[64, 4]"); empty for what is no tensor.
        calls: Kernel ("aten::relu.out") or delegate ("delegate XnnpackBackend") -> number of calls, the most first.
        text: The text that it returns, where it returns a constant one.
    """

    outputs: tuple[str, ...]
    calls: Mapping[str, int]
    text: str | None


class Content(NamedTuple):
    """A run of bytes that a program refers to.

    Attributes:
        start: Where it lies among the segments.
        size_bytes: Its size.
    """

    start: int
    size_bytes: int


def read_plans(program: memoryview) -> dict[str, Plan]:
    """The methods of a program, by name.

    Raises:
        ValueError: It is no program.
    """
    return {plan.text(_NAME): _read_plan(plan) for plan in Table.root(program).tables(_EXECUTION_PLAN)}


def read_contents(program: memoryview) -> dict[str, Content]:
    """What stands in the segments of a program: weights, initial values of state, and what delegates are made of.

    Raises:
        ValueError: It is no program.
    """
    root = Table.root(program)
    segments = [Content(one.number(0, "<Q"), one.number(1, "<Q")) for one in root.tables(_SEGMENTS)]
    return {name: segments[index] for name, index in _named_segments(root) if index < len(segments)}


def _named_segments(root: Table) -> Iterator[tuple[str, int]]:
    constants = root.table(_CONSTANTS)
    if constants and constants.numbers(1, "<Q"):
        yield "weights", constants.number(0)
    for mutable in root.tables(_MUTABLE):
        yield "initial state", mutable.number(0)
    for named in root.tables(_NAMED):
        yield f"data {named.text(0)}", named.number(1)
    for plan in root.tables(_EXECUTION_PLAN):
        for number, delegate in enumerate(plan.tables(_DELEGATES)):
            processed = delegate.table(1)
            if processed and processed.number(0, "<b"):
                yield f"{plan.text(_NAME)}, delegate {number} ({delegate.text(0)})", processed.number(1)


def _read_plan(plan: Table) -> Plan:
    values = plan.tables(_VALUES)
    outputs = [_at(values, index) for index in plan.numbers(_OUTPUTS)]
    texts = [text for value in outputs if (text := _member(value, _STRING))]
    return Plan(
        tuple(_type(_member(value, _TENSOR)) for value in outputs),
        dict(Counter(_calls(plan)).most_common()),
        texts[0].text(0) if len(texts) == len(outputs) == 1 else None,
    )


def _calls(plan: Table) -> Iterator[str]:
    operators, delegates = plan.tables(_OPERATORS), plan.tables(_DELEGATES)
    for chain in plan.tables(_CHAINS):
        for instruction in chain.tables(2):
            kernel, delegate = (_member(instruction, kind) for kind in (_KERNEL_CALL, _DELEGATE_CALL))
            if kernel:
                operator = _at(operators, kernel.number(0, "<i"))
                yield ".".join(filter(None, (operator.text(0), operator.text(1))))
            if delegate:
                yield f"delegate {_at(delegates, delegate.number(0, '<i')).text(0)}"


def _type(tensor: Table | None) -> str:
    if tensor is None:
        return ""
    scalar = tensor.number(_SCALAR_TYPE, "<b")
    return f"{_SCALARS.get(scalar, f'type {scalar}')}[{', '.join(map(str, tensor.numbers(_SIZES)))}]"


def _member(table: Table, kind: int) -> Table | None:
    """What a table that holds one of several kinds holds, where it is of this kind."""
    return table.table(1) if table.number(0, "<B") == kind else None


def _at(tables: list[Table], index: int) -> Table:
    if not 0 <= index < len(tables):
        message = f"it refers to element {index} of {len(tables)}"
        raise ValueError(message)
    return tables[index]
