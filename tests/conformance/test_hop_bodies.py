"""Bodies of higher-order operators that read state, call partitions, hold other bodies, and write."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._export.verifier import SpecViolationError
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.strict_mode import strict_mode_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

import intarsia
from builders.hybrids import Buffer, Draft, aten, chain, describe, hybrid, parameter, strip, tensor
from builders.laws import call, check, printed, targets
from intarsia.core.op import RUN_ENGINE
from intarsia.errors import EngineError, HybridError, MutationError
from intarsia.report.program import describe_program
from intarsia.surgery import export, ledger

cond = torch.ops.higher_order.cond
invoke_subgraph = torch.ops.higher_order.invoke_subgraph

X = tensor(1, 4, 4)
CALLS = [call(X), call(X.abs()), call(-X.abs()), call(X)]


def is_positive(g: Draft, x: Node) -> Node:
    return g.op(aten.gt.Scalar, g.op(aten.sum.default, x), 0.0)


def fill_combining(g: Draft) -> Any:
    """Takes one operand, and reads `w` and `b`."""
    x = g.placeholder("x")
    return (g.op(aten.add.Tensor, g.op(aten.mul.Tensor, x, g.get_attr("w")), g.get_attr("b")),)


def combining(seed: int, kind: Callable[[torch.Tensor], Any] = parameter) -> GraphModule:
    return hybrid(fill_combining, {"w": kind(tensor(seed, 4, 4)), "b": kind(tensor(seed + 1, 4, 4))})


def branching(g: Draft, x: Node) -> Any:
    return g.item(g.op(cond, is_positive(g, x), g.get_attr("one"), g.get_attr("other"), (x,)), 0)


def looping(g: Draft, x: Node) -> Any:
    zero = g.op(aten.zeros.default, [], dtype=torch.int64)
    return g.item(g.op(while_loop_op, g.get_attr("going"), g.get_attr("step"), (zero, x), ()), 1)


def scanning(g: Draft, x: Node) -> Any:
    first = g.op(aten.select.int, x, 0, 0)
    made = g.op(scan_op, g.get_attr("step"), [first], [x], ())
    return g.item(made, 0), g.item(made, 1)


def associating(g: Draft, x: Node) -> Any:
    return g.item(g.op(associative_scan_op, g.get_attr("step"), [x], ()), 0)


def mapping(g: Draft, x: Node) -> Any:
    return g.item(g.op(map_impl, g.get_attr("step"), [x], []), 0)


def without_gradients(g: Draft, x: Node) -> Any:
    return g.item(g.op(wrap_with_set_grad_enabled, False, g.get_attr("one"), x), 0)


def in_low_precision(g: Draft, x: Node) -> Any:
    return g.item(g.op(wrap_with_autocast, "cpu", torch.bfloat16, True, None, g.get_attr("one"), x), 0)


def invoking(g: Draft, x: Node) -> Any:
    first = g.item(g.op(invoke_subgraph, g.get_attr("one"), "one", x), 0)
    return g.item(g.op(invoke_subgraph, g.get_attr("one"), "one", first), 0)


def strictly(g: Draft, x: Node) -> Any:
    return g.item(g.op(strict_mode_op, g.get_attr("one"), (x,)), 0)


def fill_going(g: Draft) -> Any:
    count, x = g.inputs("count x")
    limited = g.op(aten.lt.Tensor, g.op(aten.mul.Tensor, count, 1.0), g.get_attr("limit"))
    return g.op(aten.logical_and.default, limited, g.op(aten.lt.Scalar, g.op(aten.sum.default, x), 1e6))


def fill_step(g: Draft) -> Any:
    count, x = g.inputs("count x")
    return g.op(aten.add.Tensor, count, 1), g.op(aten.add.Tensor, g.op(aten.sin.default, x), g.get_attr("w"))


def fill_row_step(g: Draft) -> Any:
    carry, row = g.inputs("carry row")
    new = g.op(aten.add.Tensor, g.op(aten.mul.Tensor, carry, g.get_attr("w")), row)
    return new, g.op(aten.sin.default, new)


def fill_pair(g: Draft) -> Any:
    a, b = g.inputs("a b")
    return (g.op(aten.add.Tensor, g.op(aten.mul.Tensor, a, g.get_attr("w")), b),)


def fill_row(g: Draft) -> Any:
    return (g.op(aten.sin.default, g.op(aten.mul.Tensor, g.placeholder("row"), g.get_attr("w"))),)


ROW = tensor(7, 4)
OPERATORS: dict[str, tuple[Callable[[Draft, Node], Any], Callable[[], dict[str, Any]]]] = {
    "cond": (branching, lambda: {"one": combining(2), "other": combining(4, Buffer)}),
    "while_loop": (
        looping,
        lambda: {
            "going": hybrid(fill_going, {"limit": Buffer(torch.tensor(3.0))}),
            "step": hybrid(fill_step, {"w": parameter(tensor(5, 4, 4))}),
        },
    ),
    "scan": (scanning, lambda: {"step": hybrid(fill_row_step, {"w": parameter(ROW)})}),
    "associative_scan": (associating, lambda: {"step": hybrid(fill_pair, {"w": parameter(torch.ones(4))})}),
    "map": (mapping, lambda: {"step": hybrid(fill_row, {"w": ROW.clone()})}),
    "set_grad": (without_gradients, lambda: {"one": combining(2)}),
    "autocast": (in_low_precision, lambda: {"one": combining(2)}),
    "invoke_subgraph": (invoking, lambda: {"one": combining(2)}),
    "strict_mode": (strictly, lambda: {"one": combining(2)}),
}


def around(calling: Callable[[Draft, Node], Any], bodies: dict[str, Any]) -> GraphModule:
    def top(g: Draft) -> Any:
        return calling(g, g.op(aten.neg.default, g.placeholder("x")))

    return hybrid(top, bodies)


def inside(calling: Callable[[Draft, Node], Any], bodies: dict[str, Any]) -> GraphModule:
    """The call stands in a partition, the bodies in the parent, which passes them in; `x` has another use."""

    def top(g: Draft) -> Any:
        x = g.placeholder("x")
        return g.part("part", x, *map(g.get_attr, bodies))

    class Passing(Draft):
        def get_attr(self, name: str, *_: Any) -> Node:  # type: ignore[override]
            return self.find_nodes(op="placeholder", target=name)[0]

    draft = Passing()
    x = draft.inputs(" ".join(["x", *bodies]))[0]
    draft.output(calling(draft, x))
    part = hybrid(lambda g: g.placeholder("x"))
    part.graph = draft
    return hybrid(top, {"part": part, **bodies})


@pytest.mark.parametrize("place", [around, inside], ids=["in the parent", "in a partition"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_body_reads_state(name: str, place: Callable[..., GraphModule]) -> None:
    calling, bodies = OPERATORS[name]
    program = check(lambda: place(calling, bodies()), CALLS, examples=CALLS[0])
    assert_flat(program)


def assert_flat(program: ExportedProgram) -> None:
    """Bodies read nothing but their operands, and call no partition."""
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue  # torch makes it when it puts the state of a program back
        assert not module.graph.find_nodes(op="call_module")
        for node in module.graph.find_nodes(op="get_attr"):
            assert isinstance(module.get_submodule(str(node.target)), GraphModule)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_body_reads_state_in_a_hybrid_with_metadata(name: str) -> None:
    calling, bodies = OPERATORS[name]
    check(lambda: describe(around(calling, bodies()), (X,)), CALLS, forms=["memory"])


def test_state_of_two_bodies_and_the_root_under_one_name() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x = g.op(aten.mul.Tensor, g.placeholder("x"), g.get_attr("w"))
            return g.op(aten.add.Tensor, branching(g, x), g.get_attr("b"))

        own = {"w": parameter(tensor(8, 4, 4)), "b": Buffer(tensor(9, 4, 4))}
        return hybrid(top, {**own, "one": combining(2), "other": combining(4, Buffer)})

    program = check(build, CALLS, examples=CALLS[0])
    assert targets(program, "PARAMETER") == ["w", "one.w", "one.b"]
    assert targets(program, "BUFFER") == ["b", "other.w", "other.b"]


def test_state_tied_between_bodies_and_root_is_one_operand() -> None:
    tied = tensor(8, 4, 4)

    def build() -> GraphModule:
        w = parameter(tied.clone())
        bodies = {name: hybrid(fill_combining, {"w": w, "b": w}) for name in ("one", "other")}
        return hybrid(
            lambda g: branching(g, g.op(aten.mul.Tensor, g.placeholder("x"), g.get_attr("w"))), {"w": w, **bodies}
        )

    program = check(build, CALLS, examples=CALLS[0])
    assert targets(program, "PARAMETER") == ["w"]
    (node,) = program.graph.find_nodes(op="call_function", target=cond)
    assert [operand.name for operand in node.args[3]] == ["mul_tensor", "p_w"]


@pytest.mark.parametrize("returned", ["all", "the last"])
@pytest.mark.parametrize("kind", [Buffer, torch.clone])
def test_a_body_reads_what_the_root_has_written(kind: Any, returned: str) -> None:
    """Before the write, after it, and after the next one: each call of one body sees what is there by then."""

    def build() -> GraphModule:
        held = kind(tensor(8, 4, 4))
        one = hybrid(fill_combining, {"w": held, "b": held})

        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            results = [branching(g, x)]
            for factor in (2.0, 3.0):
                g.op(aten.copy_.default, g.get_attr("w"), g.op(aten.mul.Tensor, results[-1], factor))
                results.append(branching(g, x))
            return tuple(results) if returned == "all" else results[-1]

        return hybrid(top, {"one": one, "other": combining(4), "w": held})

    program = check(build, CALLS, examples=CALLS[0])
    assert len(program.graph_signature.buffers_to_mutate) == (returned == "the last")
    assert len(list(program.graph_module.children())) == 2


def test_a_body_has_another_name_than_state() -> None:
    """State of one partition, a body of another, and a body inside of that one are all called `one`."""

    def fill_inner(g: Draft) -> Any:
        return (without_gradients(g, g.placeholder("x")),)

    def build() -> GraphModule:
        first = hybrid(
            lambda g: g.op(aten.mul.Tensor, g.placeholder("x"), g.get_attr("one")), {"one": Buffer(tensor(5, 4))}
        )
        second = around(without_gradients, {"one": hybrid(fill_inner, {"one": combining(2)})})
        return chain(first, second)

    program = check(build, CALLS, examples=CALLS[0])
    assert targets(program, "BUFFER") == ["one"]


def test_a_body_calls_partitions_that_read_state() -> None:
    """Nested, called twice, of several results, an ordinary module among them."""

    class Ordinary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.linear.weight = torch.nn.Parameter(tensor(11, 4, 4))
            self.linear.bias = torch.nn.Parameter(tensor(12, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x)).view(-1).reshape(4, 4)

    def pair(g: Draft) -> Any:
        y, x = g.inputs("y x")
        total = g.op(aten.sub.Tensor, x, g.op(aten.mul.Tensor, y, g.get_attr("w")))
        return {"total": total, "rest": [y, g.part("deep", total)]}

    def calling(g: Draft) -> Any:
        x = g.placeholder("x")
        first = g.part("pair", x, g.part("ordinary", x))
        second = g.part("pair", g.item(first, "total"), g.item(g.item(first, "rest"), 1))
        return (g.item(second, "total"),)

    def build() -> GraphModule:
        deep = hybrid(lambda g: g.item(g.part("part", g.placeholder("x")), 0), {"part": combining(6)})
        parts = {"pair": hybrid(pair, {"w": Buffer(tensor(5, 4, 4)), "deep": deep}), "ordinary": Ordinary()}
        return around(branching, {"one": hybrid(calling, parts), "other": combining(4)})

    program = check(build, CALLS, examples=CALLS[0])
    assert_flat(program)
    account = ledger(program)
    partitions = {entry.subject for entry in account.select("partition")}
    assert {"cond/body_0/ordinary", "cond/body_0/pair", "cond/body_0/pair_1/deep/part"} <= partitions
    images = {entry.subject: entry.image for entry in account.select("node")}
    assert images["cond/body_0/pair/sub_tensor"] == "one_body.sub_tensor"


def test_partitions_nest_in_a_body_to_any_depth() -> None:
    def build() -> GraphModule:
        part = combining(2)
        for _ in range(400):
            part = hybrid(lambda g: (g.item(g.part("part", g.placeholder("x")), 0),), {"part": part})
        return around(without_gradients, {"one": part})

    program = export(strip(build()), (X,))
    (body,) = program.graph_module.children()
    assert [node.target for node in body.graph.nodes if node.op == "call_function"] == [
        aten.mul.Tensor,
        aten.add.Tensor,
    ]
    torch.testing.assert_close(program.module()(X), combining(2)(-X)[0], rtol=0, atol=0)


def test_an_ordinary_module_is_a_body() -> None:
    class Scale(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(tensor(seed, 4, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.relu(x) * self.w,)

    check(lambda: around(branching, {"one": Scale(2), "other": Scale(3)}), CALLS, examples=CALLS[0])


def fill_nested(g: Draft) -> Any:
    return (g.op(aten.mul.Tensor, branching(g, g.op(aten.neg.default, g.placeholder("x"))), g.get_attr("w")),)


def nested(seed: int) -> GraphModule:
    attributes = {"one": combining(seed), "other": combining(seed + 2, Buffer), "w": parameter(tensor(seed + 4, 4, 4))}
    return hybrid(fill_nested, attributes)


def test_bodies_in_bodies() -> None:
    def build() -> GraphModule:
        return around(branching, {"one": nested(2), "other": nested(12)})

    program = check(build, CALLS, examples=CALLS[0])
    assert_flat(program)
    assert ledger(program).select("node", "kept")[-1].image is not None
    assert "one_body.other.add_tensor" in {entry.image for entry in ledger(program).entries}


@pytest.mark.parametrize("outer", ["scan", "while_loop", "map"])
def test_a_branch_in_a_loop(outer: str) -> None:
    def branch(g: Draft, x: Node) -> Any:
        return g.item(g.op(cond, is_positive(g, x), g.get_attr("one"), g.get_attr("other"), (x,)), 0)

    def row(seed: int) -> GraphModule:
        return hybrid(fill_combining, {"w": parameter(tensor(seed, 4)), "b": Buffer(tensor(seed + 1, 4))})

    def row_step(g: Draft) -> Any:
        carry, item = g.inputs("carry row")
        new = branch(g, g.op(aten.add.Tensor, carry, item))
        return new, g.op(aten.sin.default, new)

    def step(g: Draft) -> Any:
        count, x = g.inputs("count x")
        return g.op(aten.add.Tensor, count, 1), branch(g, g.op(aten.sin.default, x))

    def mapped(g: Draft) -> Any:
        return (branch(g, g.placeholder("row")),)

    def build() -> GraphModule:
        calling, bodies = OPERATORS[outer]
        fill = {"scan": row_step, "while_loop": step, "map": mapped}[outer]
        branches = (
            {"one": combining(2), "other": combining(4)} if outer == "while_loop" else {"one": row(2), "other": row(4)}
        )
        return around(calling, {**bodies(), "step": hybrid(fill, branches)})

    assert_flat(check(build, CALLS, examples=CALLS[0]))


def test_too_many_bodies_inside_one_another_are_refused() -> None:
    body = combining(2)
    for _ in range(25):
        body = hybrid(lambda g: (without_gradients(g, g.placeholder("x")),), {"one": body})
    with pytest.raises(HybridError, match=r"body '.*': found 21 bodies inside one another, expected at most 20"):
        export(around(without_gradients, {"one": body}), (X,))


def fill_counting(g: Draft) -> Any:
    x = g.placeholder("x")
    g.op(aten.add_.Tensor, g.get_attr("n"), 1.0)
    return (g.op(aten.mul.Tensor, x, g.get_attr("n")),)


def fill_counting_step(g: Draft) -> Any:
    count, x = g.inputs("count x")
    g.op(aten.copy_.default, g.get_attr("n"), g.op(aten.add.Tensor, g.get_attr("n"), x))
    return g.op(aten.add.Tensor, count, 1), g.op(aten.sin.default, g.get_attr("n"))


def fill_counting_row_step(g: Draft) -> Any:
    carry, row = g.inputs("carry row")
    g.op(aten.add_.Tensor, g.get_attr("n"), 1.0)
    new = g.op(aten.mul.Tensor, g.op(aten.add.Tensor, carry, row), g.get_attr("n"))
    return new, g.op(aten.sin.default, new)


def fill_writing_operand(g: Draft) -> Any:
    x = g.placeholder("x")
    return (g.op(aten.mul.Tensor, g.op(aten.add_.Tensor, x, 1.0), 2.0),)


def fill_writing_partition(g: Draft) -> Any:
    g.part("writer", g.placeholder("x"))
    return (g.op(aten.mul.Tensor, g.find_nodes(op="placeholder")[0], 2.0),)


def counting(fill: Callable[[Draft], Any] = fill_counting, *shape: int) -> GraphModule:
    return hybrid(fill, {"n": Buffer(tensor(5, *(shape or (4, 4))))})


def calling_writer() -> GraphModule:
    return hybrid(fill_writing_partition, {"writer": counting()})


WRITING: dict[str, tuple[Callable[[Draft, Node], Any], Callable[[], dict[str, Any]], bool]] = {
    "cond": (branching, lambda: {"one": counting(), "other": combining(4)}, False),
    "cond, in a partition": (branching, lambda: {"one": calling_writer(), "other": combining(4)}, False),
    "cond, an operand": (branching, lambda: {"one": hybrid(fill_writing_operand), "other": combining(4)}, False),
    "while_loop": (looping, lambda: {**OPERATORS["while_loop"][1](), "step": counting(fill_counting_step)}, False),
    "scan": (scanning, lambda: {"step": counting(fill_counting_row_step, 4)}, False),
    "map": (mapping, lambda: {"step": counting(fill_counting, 4)}, False),
    "invoke_subgraph": (invoking, lambda: {"one": counting()}, False),
    "set_grad": (without_gradients, lambda: {"one": counting()}, True),
    "set_grad, in a partition": (without_gradients, lambda: {"one": calling_writer()}, True),
    "set_grad, an operand": (without_gradients, lambda: {"one": hybrid(fill_writing_operand)}, True),
    "autocast": (in_low_precision, lambda: {"one": counting()}, True),
}
"""Calls whose bodies write, and whether every torch can decompose them; newer ones can decompose more."""


@pytest.mark.parametrize("name", WRITING)
def test_a_body_writes(name: str) -> None:
    """In memory and from a file; torch decomposes it rightly or refuses, and loses nothing."""
    calling, bodies, decomposes = WRITING[name]

    def build() -> GraphModule:
        return hybrid(lambda g: calling(g, g.placeholder("x")), bodies())

    program = check(build, CALLS, examples=CALLS[0], forms=["memory", "file"])
    assert program.verifiers[0].dialect == "TRAINING"
    (written,) = ledger(program).select("mutation", "kept")
    assert written.subject == ("x" if "operand" in name else "n")
    try:
        export(build(), (X,)).run_decompositions({})
    except (RuntimeError, SpecViolationError) as refusal:
        if decomposes or not re.search(r"modifying the input|is not functional", str(refusal)):
            raise
    else:
        check(build, CALLS, examples=CALLS[0], forms=["decomposed"])


def test_a_write_that_torch_would_lose_is_refused() -> None:
    with pytest.raises(MutationError, match=r"node 'strict_mode': found a body that writes %b_n in place"):
        export(around(strictly, {"one": counting()}), (X,))


def test_a_write_in_a_body_stays_though_nobody_uses_what_the_body_returns() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            g.op(wrap_with_set_grad_enabled, False, g.get_attr("one"), x)
            return g.op(aten.neg.default, x)

        return hybrid(top, {"one": calling_writer()})

    check(build, CALLS, examples=CALLS[0])


def test_the_bodies_of_the_program_are_its_own() -> None:
    """What torch and later passes do to them leaves the hybrid as it was."""
    module = around(branching, {"one": nested(2), "other": nested(12)})
    before = printed(module)
    program = export(module, (X,))
    for held in list(program.graph_module.modules()):
        assert held not in set(module.modules())
    program.module()
    program.run_decompositions({})
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                node.meta.clear()
                if node.op == "call_function":
                    node.name = f"changed_{node.name}"
            part.recompile()
    assert printed(module) == before


def test_calls_share_a_body_that_takes_the_same() -> None:
    """One copy for a body, however many calls run it, unless they are given other state."""
    bodies = {name: combining(seed) for name, seed in (("one", 2), ("other", 4), ("third", 6))}

    def top(g: Draft) -> Any:
        x = g.placeholder("x")
        for name in ("other", "other", "third", "third"):
            x = g.item(g.op(cond, is_positive(g, x), g.get_attr("one"), g.get_attr(name), (x,)), 0)
        return x

    program = export(hybrid(top, bodies), (X,))
    names = sorted(name for name, _ in program.graph_module.named_children())
    assert names == ["one", "one_1", "other_body", "third_body"]
    check(lambda: hybrid(top, bodies), CALLS, examples=CALLS[0], forms=["memory"])


def test_one_body_for_operands_of_two_shapes() -> None:
    """What a Python call in the body becomes depends on the shape; calls of one shape share a copy all the same."""

    def fill_scaling(g: Draft) -> Any:
        x = g.placeholder("x")
        return (g.op(operator.mul, g.op(torch.relu, x), g.call_method("numel", (x,))),)

    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            x = g.placeholder("x")
            row = g.op(aten.select.int, x, 0, 0)
            return tuple(without_gradients(g, value) for value in (x, row, row, x))

        return hybrid(top, {"one": hybrid(fill_scaling)})

    program = check(build, CALLS, examples=CALLS[0])
    assert len(list(program.graph_module.children())) == 2


def test_an_operator_that_takes_no_more_operands_refuses_state() -> None:
    from torch._higher_order_ops.hints_wrap import hints_wrapper

    def top(g: Draft) -> Any:
        return g.item(g.op(hints_wrapper, g.get_attr("one"), (g.placeholder("x"),), {}, hints={}), 0)

    with pytest.raises(HybridError, match=r"body 'one' of node 'hints_wrapper': found that it reads 'one.w' \(%w\)"):
        export(hybrid(top, {"one": combining(2)}), (X,))


def test_verify_tells_that_the_retrace_of_such_a_body_is_wrong() -> None:
    """Torch 2.13 leaves state that a branch reads in the branch, as fake tensors."""
    module = describe(around(branching, OPERATORS["cond"][1]()), (X,))
    result = intarsia.verify(module, inputs=CALLS)
    assert result.ok
    assert "a fake tensor, which has no values" in str(result)


def test_engines_that_only_bodies_run(tmp_path: Path) -> None:
    pytest.importorskip("openvino")

    model = torch.nn.Linear(4, 4)
    model.weight, model.bias = parameter(tensor(2, 4, 4)), parameter(tensor(3, 4))
    compiled = intarsia.compile(model.eval(), (X,))

    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            return (g.part("part", g.placeholder("x")),)

        def fill_outer(g: Draft) -> Any:
            return (without_gradients(g, g.placeholder("x")),)

        outer = hybrid(fill_outer, {"one": hybrid(fill, {"part": compiled})})
        return around(branching, {"one": outer, "other": combining(4)})

    program = check(build, CALLS, examples=CALLS[0])
    assert_flat(program)
    assert [entry.subject for entry in ledger(program).select("engine")] == [
        "cond/body_0/wrap_with_set_grad_enabled/body_0/part/openvino_0"
    ]
    path = tmp_path / "program.pt2"
    intarsia.save(program, path)
    loaded = intarsia.load(path)
    assert loaded.manifest is not None
    assert [engine.name for engine in loaded.manifest.engines] == ["openvino_0"]
    assert [engine.name for engine in describe_program(program).engines] == ["openvino_0"]
    reference = build()
    for args, _ in CALLS:
        assert torch.equal(loaded(*args), reference(*args))
    assert intarsia.verify(program, inputs=CALLS).ok


def test_a_damaged_engine_of_a_body_is_not_saved(tmp_path: Path) -> None:
    engine = torch.zeros(64, dtype=torch.uint8)

    def fill(g: Draft) -> Any:
        run = g.op(RUN_ENGINE, [g.placeholder("x")], g.get_attr("engine"), "(f32[4, 4]) -> (f32[4, 4])")
        return (g.item(run, 0),)

    program = export(around(branching, {"one": hybrid(fill, {"engine": engine}), "other": combining(4)}), (X,))
    with pytest.raises(EngineError, match=r"engine container.*constant 'engine'"):
        intarsia.save(program, tmp_path / "program.pt2")
