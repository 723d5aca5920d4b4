"""Writes to state and inputs: every one is declared, none is lost, and later readers see what eager code would see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from builders.hybrids import (
    CUTS,
    Buffer,
    Draft,
    aten,
    captured,
    chain,
    describe,
    hybrid,
    parameter,
    split,
    tensor,
)
from builders.laws import FORMS, call, check, operators, state_of, targets
from intarsia.surgery import export

X, Y = tensor(1, 2, 3), tensor(2, 2, 3)
CALLS = [call(X), call(Y), call(X)]

LIBRARY = torch.library.Library("intarsia_tests", "DEF")
LIBRARY.define("accumulate(Tensor(a!) total, Tensor x) -> Tensor")
LIBRARY.define("store(Tensor(a!) slot, Tensor x) -> ()")


def accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return x * 2


def store(slot: torch.Tensor, x: torch.Tensor) -> None:
    slot.copy_(x)


LIBRARY.impl("accumulate", accumulate, "CompositeExplicitAutograd")
LIBRARY.impl("store", store, "CompositeExplicitAutograd")
CUSTOM = torch.ops.intarsia_tests


def read(g: Draft) -> tuple[Any, Any]:
    return g.placeholder("a"), g.get_attr("s")


# Bodies of a partition that takes `a` and holds a buffer `s` of shape [2, 3].


def in_place(g: Draft) -> Any:
    a, s = read(g)
    return g.op(aten.mul.Tensor, g.op(aten.add_.Tensor, s, a), 2.0)


def copied_whole(g: Draft) -> Any:
    a, s = read(g)
    new = g.op(aten.add.Tensor, s, a)
    g.op(aten.copy_.default, s, new)
    return g.op(aten.mul.Tensor, new, 2.0)


def copied_and_read_again(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.add.Tensor, s, a))
    return g.op(aten.mul.Tensor, s, s)


def copied_and_returned(g: Draft) -> Any:
    a, s = read(g)
    return g.op(aten.copy_.default, s, g.op(aten.exp.default, a))


def copied_then_state_returned(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.sub.Tensor, s, a))
    return s


def read_before_and_after(g: Draft) -> Any:
    a, s = read(g)
    before = g.op(aten.exp.default, s)
    g.op(aten.copy_.default, s, a)
    return g.op(aten.sub.Tensor, before, s)


def copied_twice(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.exp.default, a))
    between = g.op(aten.neg.default, s)
    g.op(aten.copy_.default, s, g.op(aten.add.Tensor, s, between))
    return g.op(aten.add.Tensor, s, between)


def copied_twice_unread(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.exp.default, a))
    g.op(aten.copy_.default, s, g.op(aten.neg.default, a))
    return g.op(aten.neg.default, a)


def copied_through_its_own_result(g: Draft) -> Any:
    a, s = read(g)
    first = g.op(aten.copy_.default, s, g.op(aten.exp.default, a))
    second = g.op(aten.copy_.default, first, g.op(aten.add.Tensor, first, 1.0))
    return g.op(aten.mul.Tensor, second, g.op(aten.add.Tensor, first, s))


def input_copied(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, a)
    return g.op(aten.mul.Tensor, a, 2.0)


def copied_to_itself(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, s)
    return g.op(aten.mul.Tensor, a, s)


def broadcast_copied(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.sum.dim_IntList, a, [0]))
    return g.op(aten.mul.Tensor, a, s)


def cast_copied(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten._to_copy.default, a, dtype=torch.float64))
    return g.op(aten.mul.Tensor, a, s)


def transposed_copied(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.t.default, g.op(aten.reshape.default, g.op(aten.exp.default, a), [3, 2])))
    return g.op(aten.mul.Tensor, a, s)


def written_through_a_view(g: Draft) -> Any:
    a, s = read(g)
    row = g.op(aten.select.int, s, 0, 1)
    g.op(aten.copy_.default, row, g.op(aten.select.int, a, 0, 0))
    return g.op(aten.mul.Tensor, s, a)


def written_through_a_view_of_a_view(g: Draft) -> Any:
    a, s = read(g)
    flat = g.op(aten.view.default, s, [6])
    g.op(aten.mul_.Tensor, g.op(aten.slice.Tensor, flat, 0, 1, 5, 2), 0.5)
    return g.op(aten.add.Tensor, g.op(aten.view.default, flat, [2, 3]), a)


def view_before_write(g: Draft) -> Any:
    a, s = read(g)
    view = g.op(aten.view.default, s, [3, 2])
    g.op(aten.copy_.default, s, a)
    return g.op(aten.exp.default, view)


def view_of_input_before_write(g: Draft) -> Any:
    a, s = read(g)
    view = g.op(aten.view.default, s, [3, 2])
    g.op(aten.copy_.default, s, g.op(aten.exp.default, a))
    return view, g.op(aten.view.default, s, [6])


def indexed_put(g: Draft) -> Any:
    a, s = read(g)
    index = g.op(aten.arange.default, 1, device=torch.device("cpu"))
    g.op(aten.index_put_.default, s, [index], g.op(aten.slice.Tensor, a, 0, 0, 1), True)
    return g.op(aten.mul.Tensor, s, a)


def filled(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.fill_.Scalar, g.op(aten.select.int, s, 1, 0), 7.0)
    g.op(aten.zero_.default, g.op(aten.select.int, s, 1, 2))
    return g.op(aten.mul.Tensor, s, a)


def by_a_custom_operator(g: Draft) -> Any:
    a, s = read(g)
    return g.op(aten.add.Tensor, g.op(CUSTOM.accumulate.default, s, a), s)


def by_a_custom_operator_of_no_result(g: Draft) -> Any:
    a, s = read(g)
    g.op(CUSTOM.store.default, s, a)
    return g.op(aten.mul.Tensor, s, 2.0)


def into_an_out_argument(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.add.out, a, a, out=s)
    return g.op(aten.mul.Tensor, s, 2.0)


def write_only(g: Draft) -> Any:
    a, s = read(g)
    g.op(aten.copy_.default, s, g.op(aten.exp.default, a))
    return g.op(aten.neg.default, a)


def intermediate(g: Draft) -> Any:
    a, s = read(g)
    made = g.op(aten.mul.Tensor, a, s)
    view = g.op(aten.view.default, made, [6])
    g.op(aten.add_.Tensor, view, 10.0)
    return g.op(aten.relu.default, made)


def intermediate_copied(g: Draft) -> Any:
    a, s = read(g)
    made = g.op(aten.mul.Tensor, a, s)
    g.op(aten.copy_.default, made, g.op(aten.exp.default, a))
    return g.op(aten.neg.default, made)


def intermediate_and_state(g: Draft) -> Any:
    a, s = read(g)
    made = g.op(aten.mul.Tensor, a, s)
    g.op(aten.copy_.default, s, made)
    g.op(aten.add_.Tensor, made, 1.0)
    return made, s


WHOLE = [
    copied_whole,
    copied_and_read_again,
    copied_then_state_returned,
    read_before_and_after,
    input_copied,
    broadcast_copied,
    cast_copied,
    copied_and_returned,
    copied_twice,
    copied_twice_unread,
    copied_through_its_own_result,
    transposed_copied,
    write_only,
]
"""Writes of whole values: the signature can declare them (ATEN)."""
PARTIAL = [
    in_place,
    written_through_a_view,
    written_through_a_view_of_a_view,
    view_before_write,
    view_of_input_before_write,
    indexed_put,
    filled,
    by_a_custom_operator,
    by_a_custom_operator_of_no_result,
    into_an_out_argument,
]
"""Other writes of state: the graph keeps them (TRAINING)."""
NO_STATE = [intermediate, intermediate_copied]
"""Writes that state does not see."""


def name(body: Any) -> str:
    return str(body.__name__)


def holding(body: Callable[[Draft], Any], kind: Callable[[torch.Tensor], Any] = Buffer) -> GraphModule:
    return hybrid(body, {"s": kind(tensor(5, 2, 3))})


def once(body: Callable[[Draft], Any], kind: Callable[[torch.Tensor], Any] = Buffer) -> Callable[[], GraphModule]:
    return lambda: describe(chain(holding(body, kind)), (X,))


@pytest.mark.parametrize("body", WHOLE, ids=name)
def test_a_whole_write_is_declared(body: Any) -> None:
    program = check(once(body), CALLS)
    assert program.dialect == "ATEN"
    assert targets(program, "BUFFER_MUTATION") == ["s"]
    assert aten.copy_.default not in operators(program)


@pytest.mark.parametrize("body", PARTIAL, ids=name)
def test_any_other_write_stays_in_the_graph(body: Any) -> None:
    program = check(once(body), CALLS)
    assert program.dialect == "TRAINING"
    assert targets(program.run_decompositions({}), "BUFFER_MUTATION") == ["s"]


@pytest.mark.parametrize("body", NO_STATE, ids=name)
def test_a_write_of_an_intermediate_is_no_mutation(body: Any) -> None:
    assert targets(check(once(body), CALLS).run_decompositions({}), "BUFFER_MUTATION") == []


def test_a_value_that_is_copied_and_then_written_is_not_the_state() -> None:
    check(once(intermediate_and_state), CALLS)


def test_a_copy_of_a_result_of_a_copy_to_the_same_tensor() -> None:
    def body(g: Draft) -> Any:
        a, s = read(g)
        g.op(aten.copy_.default, s, g.op(aten.copy_.default, s, g.op(aten.exp.default, a)))
        return g.op(aten.mul.Tensor, a, s)

    check(once(body), CALLS)


def test_a_copy_of_a_tensor_to_itself() -> None:
    check(once(copied_to_itself), CALLS)


@pytest.mark.parametrize(
    "kind", [lambda t: Buffer(t, persistent=False), lambda t: t, parameter], ids=["scratch", "plain", "parameter"]
)
@pytest.mark.parametrize("body", [copied_whole, in_place, written_through_a_view], ids=name)
def test_writes_of_every_kind_of_state(body: Any, kind: Any) -> None:
    # a parameter that is written cannot be decomposed by torch, which knows no such mutation in training programs
    is_parameter = kind is parameter
    program = check(once(body, kind), CALLS, forms=["memory", "file"] if is_parameter else FORMS)
    if not is_parameter:
        assert program.state_dict == {}
        assert [spec.persistent for spec in program.graph_signature.input_specs if spec.target] == [False]


def test_writes_without_metadata() -> None:
    for body in (copied_whole, in_place, written_through_a_view):
        check(lambda body=body: chain(holding(body)), CALLS, examples=CALLS[0], forms=["memory", "file"])


@pytest.mark.parametrize("first", [in_place, copied_whole, view_before_write], ids=name)
@pytest.mark.parametrize("second", [in_place, copied_and_read_again, written_through_a_view], ids=name)
def test_two_partitions_write_one_buffer(first: Any, second: Any) -> None:
    def build() -> GraphModule:
        shared = Buffer(tensor(5, 2, 3))
        made = hybrid(first, {"s": shared}), hybrid(second, {"s": shared})
        return describe(_chain_of_tensors(*made), (X,))

    program = check(build, CALLS)
    assert targets(program.run_decompositions({}), "BUFFER_MUTATION") == ["s"]


def _chain_of_tensors(*parts: GraphModule) -> GraphModule:
    def fill(g: Draft) -> Any:
        value = g.placeholder("x")
        for index in range(len(parts)):
            value = g.op(aten.reshape.default, g.part(f"part_{index}", value), [2, 3])
        return value

    return hybrid(fill, {f"part_{index}": part for index, part in enumerate(parts)})


def test_one_partition_that_writes_is_called_twice() -> None:
    for body in (in_place, copied_whole):
        shared = lambda body=body: holding(body)  # noqa: E731

        def build(shared: Any = shared) -> GraphModule:
            part = shared()
            return describe(chain(part, part), (X,))

        program = check(build, CALLS)
        assert targets(program.run_decompositions({}), "BUFFER_MUTATION") == ["s"]


@pytest.mark.parametrize("whole", [True, False])
def test_two_buffers_are_swapped(whole: bool) -> None:
    def swap(g: Draft) -> Any:
        a = g.placeholder("a")
        one, two = g.get_attr("one"), g.get_attr("two")
        kept = g.op(aten.clone.default, one)
        g.op(aten.copy_.default, one, two)
        g.op(aten.copy_.default, two, kept)
        if not whole:
            g.op(aten.add_.Tensor, two, 1.0)
        return g.op(aten.sub.Tensor, one, a)

    def build() -> GraphModule:
        return describe(chain(hybrid(swap, {"one": Buffer(tensor(5, 2, 3)), "two": Buffer(tensor(6, 2, 3))})), (X,))

    program = check(build, CALLS)
    assert program.dialect == ("ATEN" if whole else "TRAINING")
    assert set(targets(program.run_decompositions({}), "BUFFER_MUTATION")) == {"one", "two"}


def test_one_value_is_written_to_two_buffers() -> None:
    def both(g: Draft) -> Any:
        value = g.op(aten.exp.default, g.placeholder("a"))
        g.op(aten.copy_.default, g.get_attr("one"), value)
        g.op(aten.copy_.default, g.get_attr("two"), value)
        return value

    def build() -> GraphModule:
        return describe(chain(hybrid(both, {"one": Buffer(tensor(5, 2, 3)), "two": Buffer(tensor(6, 2, 3))})), (X,))

    check(build, CALLS)


@pytest.mark.parametrize("inputs_too", [False, True])
def test_one_value_is_written_twice_and_not_returned(inputs_too: bool) -> None:
    def both(g: Draft) -> Any:
        a, one, two = g.placeholder("a"), g.get_attr("one"), g.get_attr("two")
        g.op(aten.copy_.default, one, g.op(aten.exp.default, a))
        g.op(aten.copy_.default, two, one)
        if inputs_too:
            g.op(aten.copy_.default, a, two)
        return g.op(aten.neg.default, g.get_attr("three"))

    def build() -> GraphModule:
        held = {name: Buffer(tensor(5 + index, 2, 3)) for index, name in enumerate(("one", "two", "three"))}
        return describe(chain(hybrid(both, held)), (X,))

    check(build, CALLS)


def test_a_buffer_takes_a_view_of_another() -> None:
    def rotate(g: Draft) -> Any:
        a, one, two = g.placeholder("a"), g.get_attr("one"), g.get_attr("two")
        g.op(aten.copy_.default, two, g.op(aten.view.default, one, [2, 3]))
        g.op(aten.copy_.default, one, g.op(aten.view.default, a, [6]))
        return g.op(aten.sub.Tensor, two, a)

    def build() -> GraphModule:
        return describe(chain(hybrid(rotate, {"one": Buffer(tensor(5, 6)), "two": Buffer(tensor(6, 2, 3))})), (X,))

    check(build, CALLS)


def test_a_dead_partition_that_writes_is_kept() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            g.part("writer", x)
            g.part("pure", x)
            return g.op(aten.neg.default, x)

        pure = hybrid(lambda g: g.op(aten.exp.default, g.placeholder("a")))
        return describe(hybrid(top, {"writer": holding(in_place), "pure": pure}), (X,))

    program = check(build, CALLS)
    assert aten.add_.Tensor in operators(program)
    assert aten.exp.default not in operators(program)


@pytest.mark.parametrize("depth", [1, 4])
def test_a_nested_partition_without_results_writes(depth: int) -> None:
    def quiet(g: Draft) -> Any:
        a, s = read(g)
        g.op(aten.copy_.default, s, g.op(aten.add.Tensor, s, a))

    def build() -> GraphModule:
        module = hybrid(quiet, {"s": Buffer(tensor(5, 2, 3))})
        for _ in range(depth):
            inner = module

            def outer(g: Draft) -> None:
                g.part("inner", g.placeholder("a"))

            module = hybrid(outer, {"inner": inner})

        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            g.part("part", x)
            return (x,)

        return describe(hybrid(top, {"part": module}), (X,))

    assert targets(check(build, CALLS), "BUFFER_MUTATION") == ["s"]


INPUT_WRITES: dict[str, Callable[[Draft, Any, Any], Any]] = {
    "in place": lambda g, a, b: g.op(aten.add_.Tensor, a, b),
    "copy": lambda g, a, b: g.op(aten.copy_.default, a, g.op(aten.exp.default, b)),
    "copy of the other": lambda g, a, b: g.op(aten.copy_.default, a, b),
    "view": lambda g, a, b: g.op(aten.zero_.default, g.op(aten.select.int, a, 0, 1)),
    "both": lambda g, a, b: (g.op(aten.add_.Tensor, a, b), g.op(aten.copy_.default, b, a)),
    "swap": lambda g, a, b: [
        kept := g.op(aten.clone.default, a),
        g.op(aten.copy_.default, a, b),
        g.op(aten.copy_.default, b, kept),
    ],
}


@pytest.mark.parametrize("write", INPUT_WRITES)
@pytest.mark.parametrize("returned", [True, False])
def test_writes_of_inputs(write: str, returned: bool) -> None:
    def build() -> GraphModule:
        def first(g: Draft) -> Any:
            a, b = g.inputs("a b")
            INPUT_WRITES[write](g, a, b)
            return g.op(aten.neg.default, b)

        def top(g: Draft) -> Any:
            x, y = g.inputs("x y")
            value = g.part("two", x, g.part("one", x, y))
            return (value, x, y) if returned else value

        second = hybrid(lambda g: g.op(aten.mul.Tensor, *g.inputs("a b")))
        return describe(hybrid(top, {"one": hybrid(first), "two": second}), (X, Y))

    program = check(build, [call(X, Y), call(Y, X)])
    declared = set(targets(program.run_decompositions({}), "USER_INPUT_MUTATION"))
    assert declared == ({"x", "y"} if write in ("both", "swap") else {"x"})


@pytest.mark.parametrize("kind", [parameter, Buffer])
def test_a_written_input_has_the_name_of_a_state(kind: Any) -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            w, y = g.inputs("w y")
            g.op(aten.copy_.default, w, g.op(aten.exp.default, y))
            return g.op(aten.mul.Tensor, w, g.get_attr("w"))

        return describe(hybrid(top, {"w": kind(tensor(5, 2, 3))}), (X, Y))

    program = check(build, [call(X, Y), call(Y, X)])
    assert targets(program, "USER_INPUT_MUTATION") == ["w"]
    assert targets(program, "BUFFER_MUTATION") == []


def test_an_input_and_a_buffer_are_written() -> None:
    def build() -> GraphModule:
        def part(g: Draft) -> Any:
            a, s = read(g)
            g.op(aten.copy_.default, s, g.op(aten.add.Tensor, s, a))
            g.op(aten.copy_.default, a, g.op(aten.exp.default, s))
            return g.op(aten.mul.Tensor, a, s)

        return describe(chain(holding(part)), (X,))

    program = check(build, CALLS)
    assert targets(program, "BUFFER_MUTATION") == ["s"]
    assert targets(program, "USER_INPUT_MUTATION") == ["x"]


@pytest.mark.parametrize("body", [in_place, copied_and_read_again, write_only], ids=name)
@pytest.mark.parametrize("alias", ["tied", "whole", "overlapping"])
def test_a_written_tensor_that_another_entry_aliases(body: Any, alias: str) -> None:
    """Torch cannot decompose a write into one of two entries of one storage; a tie is one entry."""

    def build() -> GraphModule:
        base = tensor(5, 3, 3)
        written = base[:2]
        other = {"tied": written, "whole": base, "overlapping": base[1:]}[alias]

        def reader(g: Draft) -> Any:
            total = g.op(aten.sum.dim_IntList, g.get_attr("other"), [0])
            return g.op(aten.mul.Tensor, g.placeholder("a"), total)

        readers = [hybrid(reader, {"other": Buffer(other)}) for _ in range(2)]
        return describe(chain(readers[0], hybrid(body, {"s": Buffer(written)}), readers[1]), (X,))

    check(build, CALLS, forms=FORMS if alias == "tied" else ["memory", "file"])


class Counting(torch.nn.Module):
    """Functional and partial writes, a counter, a cache, and an input that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", tensor(5, 4, 3))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", tensor(6, 2, 3), persistent=False)

    def forward(self, x: torch.Tensor, carry: torch.Tensor) -> Any:
        self.step.add_(1)
        self.cache[1:3] = x * self.step
        shown = self.cache.sum(0) + self.last
        self.last.copy_(x)
        carry.mul_(2).add_(x)
        return {"shown": shown - self.last, "step": self.step + 1, "carry": carry.sin()}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("decompose", [True, False], ids=["functional", "in place"])
def test_a_captured_model_that_writes(cut: str, decompose: bool) -> None:
    calls = [call(X, Y), call(Y, X), call(X, X.clone())]
    program = check(lambda: CUTS[cut](captured(Counting(), (X, Y), decompose=decompose)), calls)
    declared = program if decompose else program.run_decompositions({})
    assert set(targets(declared, "BUFFER_MUTATION")) == {"cache", "step", "last"}
    assert targets(declared, "USER_INPUT_MUTATION") == ["carry"]


class Stepping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.n.add_(x.sum(0))
        return x * self.n


@pytest.mark.parametrize("cut", [split])
def test_a_write_inside_a_no_grad_region(cut: Any) -> None:
    check(lambda: cut(captured(Stepping(), (X,), decompose=False), lambda index: index), CALLS)


def test_state_of_the_hybrid_is_what_the_program_writes() -> None:
    module = describe(chain(holding(copied_whole)), (X,))
    before = state_of(module)["part_0.s"].clone()
    program = export(module)
    assert torch.equal(state_of(module)["part_0.s"], before)
    program.module()(X)
    assert torch.equal(state_of(module)["part_0.s"], before + X)


def test_random_numbers_keep_their_order() -> None:
    def noise(g: Draft) -> Any:
        a = g.placeholder("a")
        g.op(aten.rand.default, [3], device=torch.device("cpu"))
        return g.op(aten.mul.Tensor, a, g.op(aten.rand.default, [3], device=torch.device("cpu")))

    module = describe(chain(hybrid(noise), hybrid(noise)), (X,))
    program = export(module)
    torch.manual_seed(3)
    wanted = module(X)
    torch.manual_seed(3)
    assert torch.equal(program.module()(X), wanted)
