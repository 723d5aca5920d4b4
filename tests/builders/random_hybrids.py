"""Random hybrids: a plan that hypothesis draws, and the hybrid that a plan describes, the same one each time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx import GraphModule

from builders.hybrids import Buffer, aten, describe, hybrid, parameter, tensor

NAMES = ["x", "w", "add", "getitem", "part", "mul", "output", "p_w", "b_w", "add_1", "s0"]
"""Names that partitions, inputs and state share on purpose."""
UNARY = [aten.relu.default, aten.neg.default, aten.sin.default, aten.abs.default, aten.clone.default]
BINARY = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default]
WRITES = [aten.add_.Tensor, aten.mul_.Tensor, aten.copy_.default]


@dataclass(frozen=True)
class Step:
    """One call: the operator, and the values (by index) that it takes; `constants` follow them."""

    target: Any
    operands: tuple[int, ...]
    constants: tuple[Any, ...] = ()


@dataclass(frozen=True)
class State:
    """One tensor that the hybrid holds: its kind, and the tensor of which it is a tie or a view, if any."""

    kind: str
    base: int | None
    tied: bool


@dataclass(frozen=True)
class Plan:
    """A hybrid, as data.

    Attributes:
        count: Number of inputs.
        state: Tensors held.
        steps: Calls in order; values are numbered inputs first, then state, then the result of each step.
        cuts: Nested ranges of steps that become partitions.
        results: Values that the program returns, `None` and numbers among them.
        seed: Decides order of inputs and outputs of partitions, names, and structures.
        described: Whether the hybrid has metadata, and is exported without examples.
        dynamic: Whether the batch is dynamic.
    """

    count: int
    state: tuple[State, ...]
    steps: tuple[Step, ...]
    cuts: tuple[tuple[int, int], ...]
    results: tuple[Any, ...]
    seed: int
    described: bool
    dynamic: bool

    @property
    def dynamic_shapes(self) -> Any:
        """As `export` takes it, when the examples have to say it."""
        batch = torch.export.Dim("batch", min=2, max=8)
        return [{0: batch}] * self.count if self.dynamic and not self.described else None


@st.composite
def plans(draw: st.DrawFn, *, aliases: bool = True) -> Plan:
    """Plans of up to 14 steps; without `aliases` no two entries share memory, which torch cannot decompose."""
    count = draw(st.integers(1, 3))
    state = tuple(draw(_states(index, aliases=aliases)) for index in range(draw(st.integers(0, 4))))
    shapes = ["full"] * count + ["row"] * len(state)
    writable = [True] * count + [one.kind != "parameter" for one in _roots(state)]
    steps = []
    for _ in range(draw(st.integers(1, 14))):
        step, shape, may_write = draw(_steps(shapes, writable))
        steps.append(step)
        shapes.append(shape)
        writable.append(may_write)
    numbers = st.one_of(st.integers(0, len(shapes) - 1), st.sampled_from([None, "3", "2.5", "True"]))
    return Plan(
        count,
        state,
        tuple(steps),
        draw(_cuts(0, len(steps), depth=3)),
        tuple(draw(st.lists(numbers, min_size=1, max_size=5))),
        draw(st.integers(0, 2**16)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def _roots(state: tuple[State, ...]) -> list[State]:
    """For each state entry the one that owns its memory."""
    roots: list[State] = []
    for one in state:
        roots.append(one if one.base is None else roots[one.base])
    return roots


@st.composite
def _states(draw: st.DrawFn, index: int, *, aliases: bool) -> State:
    kind = draw(st.sampled_from(["parameter", "buffer", "scratch", "plain"]))
    base = draw(st.none() | st.integers(0, index - 1)) if index and aliases else None
    return State(kind, base, draw(st.booleans()))


@st.composite
def _steps(draw: st.DrawFn, shapes: list[str], writable: list[bool]) -> tuple[Step, str, bool]:
    """A step, the shape of its result, and whether that may be written: writes of parameters are left out."""
    kind = draw(st.sampled_from(["unary", "binary", "binary", "view", "write"]))
    first = draw(st.integers(0, len(shapes) - 1))
    alike = [i for i, shape in enumerate(shapes) if shape == shapes[first]]
    if kind == "unary":
        return Step(draw(st.sampled_from(UNARY)), (first,)), shapes[first], True
    if kind == "view":
        return draw(_views(first, shapes[first], writable[first]))
    if kind == "write" and any(writable):
        return draw(_write(shapes, writable))
    rows = [i for i, shape in enumerate(shapes) if shape == "row"] if shapes[first] == "full" else []
    second = draw(st.sampled_from(alike + rows))
    return Step(draw(st.sampled_from(BINARY)), (first, second)), shapes[first], True


@st.composite
def _views(draw: st.DrawFn, source: int, shape: str, may_write: bool) -> tuple[Step, str, bool]:
    if shape == "full":
        if draw(st.booleans()):
            return Step(aten.select.int, (source,), (0, draw(st.integers(0, 1)))), "row", may_write
        return Step(aten.reshape.default, (source,), ([-1],)), "flat", may_write
    if shape == "flat":
        return Step(aten.reshape.default, (source,), ([-1, 3],)), "full", may_write
    return Step(aten.slice.Tensor, (source,), (0, 0, 3)), "row", may_write


@st.composite
def _write(draw: st.DrawFn, shapes: list[str], writable: list[bool]) -> tuple[Step, str, bool]:
    target = draw(st.sampled_from([i for i, may in enumerate(writable) if may]))
    fitting = {"full": ("full", "row"), "row": ("row",), "flat": ("flat",)}[shapes[target]]
    value = draw(st.sampled_from([i for i, shape in enumerate(shapes) if shape in fitting]))
    return Step(draw(st.sampled_from(WRITES)), (target, value)), shapes[target], True


@st.composite
def _cuts(draw: st.DrawFn, start: int, end: int, depth: int) -> tuple[tuple[int, int], ...]:
    """Ranges, each inside of or apart from every other one, outer ones first."""
    if depth == 0 or start == end:
        return ()
    found: list[tuple[int, int]] = []
    while start < end:
        length = draw(st.integers(1, 5))
        stop = min(start + length, end)
        if draw(st.integers(0, 2)):
            found += [(start, stop), *draw(_cuts(start, stop, depth - 1))]
        start = stop
    return tuple(found)


def inputs(plan: Plan, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of a call; a dynamic batch has another size each time."""
    batch = 2 + index if plan.dynamic else 2
    return tuple(tensor(100 * index + i + plan.seed, batch, 3) for i in range(plan.count)), {}


def build(plan: Plan) -> GraphModule:
    """The hybrid of a plan, with new state of the same numbers."""
    module = _Builder(plan).build()
    if not plan.described:
        return module
    dynamic = {index: {0: "batch"} for index in range(plan.count)} if plan.dynamic else None
    return describe(module, inputs(plan, 0)[0], dynamic=dynamic)


@dataclass
class _Block:
    """A range of steps that becomes one graph, and the blocks inside it."""

    start: int
    end: int
    inner: list[_Block] = field(default_factory=list)


class _Builder:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)  # noqa: S311
        self.first = plan.count + len(plan.state)
        self.tensors = self._tensors()
        self.readers = [self._uses(index) for index in range(self.first + len(plan.steps))]

    def build(self) -> GraphModule:
        root = _Block(0, len(self.plan.steps))
        for start, end in self.plan.cuts:
            block = root
            while found := [inner for inner in block.inner if inner.start <= start and end <= inner.end]:
                block = found[0]
            block.inner.append(_Block(start, end))
        names = self.random.sample(NAMES, self.plan.count)
        return self._module(root, list(range(self.plan.count)), names, None)

    def _tensors(self) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for index, one in enumerate(self.plan.state):
            if one.base is None:
                made.append(parameter(tensor(index, 3)) if one.kind == "parameter" else tensor(index, 3))
            elif one.tied:
                made.append(made[one.base])
            else:
                made.append(made[one.base].detach()[:])
        return made

    def _uses(self, value: int) -> list[int]:
        """Steps that read a value; the end of the program counts as one more."""
        found = [index for index, step in enumerate(self.plan.steps) if value in step.operands]
        return [*found, len(self.plan.steps)] if value in self._returned() else found

    def _returned(self) -> list[int]:
        return [value for value in self.plan.results if isinstance(value, int)]

    def _module(self, block: _Block, given: list[int], names: list[str], results: list[int] | None) -> GraphModule:
        """The graph module of a block.

        Args:
            block: Its steps.
            given: Values of its placeholders.
            names: Their names.
            results: Values that it returns as a list; None for the program itself.
        """
        attributes: dict[str, Any] = {}
        taken: dict[int, str] = {}

        def fill(g: Any) -> Any:
            values: dict[int, Any] = {}
            for value, name in zip(given, names, strict=True):
                values[value] = g.placeholder(name)

            def get(value: int) -> Any:
                if value not in values or (self._is_state(value) and value not in given and self.random.random() < 0.3):
                    values[value] = g.get_attr(self._attribute(value, attributes, taken))
                return values[value]

            position = block.start
            while position < block.end:
                inner = next((b for b in block.inner if b.start == position), None)
                if inner is None:
                    step = self.plan.steps[position]
                    operands = [get(operand) for operand in step.operands]
                    values[self.first + position] = g.op(step.target, *operands, *step.constants)
                    position += 1
                    continue
                values |= self._call(g, inner, get, attributes, results or [])
                position = inner.end
            if results is None:
                return self._structure([get(v) if isinstance(v, int) else _number(v) for v in self.plan.results])
            return results_of([get(value) for value in results])

        def results_of(found: list[Any]) -> Any:
            return found[0] if len(found) == 1 and self.random.random() < 0.5 else tuple(found)

        return hybrid(fill, attributes)

    def _is_state(self, value: int) -> bool:
        return self.plan.count <= value < self.first

    def _attribute(self, value: int, attributes: dict[str, Any], taken: dict[int, str]) -> str:
        if value not in taken:
            name = self.random.choice([n for n in NAMES if n not in attributes])
            taken[value] = name
            attributes[name] = self._wrapped(value - self.plan.count)
        return taken[value]

    def _wrapped(self, index: int) -> Any:
        value = self.tensors[index]
        kind = self.plan.state[index].kind
        if isinstance(value, torch.nn.Parameter) or kind in ("plain", "parameter"):
            return value
        return Buffer(value, persistent=kind == "buffer")

    def _structure(self, leaves: list[Any]) -> Any:
        kind = self.random.randrange(4)
        if kind == 0:
            return tuple(leaves)
        if kind == 1:
            return {f"k{index}": leaf for index, leaf in enumerate(leaves)}
        return [leaves[0], {"rest": tuple(leaves[1:])}] if kind == 2 else leaves[0]

    def _call(self, g: Any, block: _Block, get: Any, attributes: dict[str, Any], wanted: list[int]) -> dict[int, Any]:
        """Call the partition of a block; gives the values that it returns, those that are `wanted` among them."""
        made = range(self.first + block.start, self.first + block.end)
        needed = {o for step in self.plan.steps[block.start : block.end] for o in step.operands if o not in made}
        given = [v for v in sorted(needed) if not self._is_state(v) or self.random.random() < 0.3]
        used = {v for v in made if v in wanted or any(use >= block.end for use in self.readers[v])}
        results = [v for v in made if v in used or self.random.random() < 0.2]
        self.random.shuffle(given)
        self.random.shuffle(results)
        placeholders = self.random.sample(NAMES, len(given)) if len(given) <= len(NAMES) else [f"v{i}" for i in given]
        module = self._module(block, given, placeholders, results)
        name = self.random.choice([n for n in NAMES if n not in attributes] or [f"block_{len(attributes)}"])
        attributes[name] = module
        split = self.random.randint(0, len(given))
        named = list(zip(placeholders, given, strict=True))[split:]
        self.random.shuffle(named)
        node = g.part(name, *[get(v) for v in given[:split]], **{key: get(value) for key, value in named})
        whole = module.graph.output_node().args[0]
        if not isinstance(whole, (tuple, list)):
            return {results[0]: node}
        order = list(enumerate(results))
        self.random.shuffle(order)
        return {value: g.item(node, index) for index, value in order}


def _number(value: Any) -> Any:
    return {None: None, "3": 3, "2.5": 2.5, "True": True}[value]
