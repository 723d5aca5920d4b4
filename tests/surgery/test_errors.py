"""Every error of the exporter: it names the subject, what was found, what was expected and the cure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from builders.hybrids import Draft, aten, describe, hybrid, tensor
from intarsia.errors import ConventionError, HybridError, IntarsiaError, StateError
from intarsia.surgery import export, ledger, limits, retrace


def identity(g: Draft) -> Any:
    return g.op(aten.relu.default, g.placeholder("a"))


def calls_part(*args: str, **kwargs: str) -> Callable[[Draft], Any]:
    def fill(g: Draft) -> Any:
        placed = {name: g.placeholder(name) for name in dict.fromkeys([*args, *kwargs.values()])}
        return g.part("part", *(placed[name] for name in args), **{key: placed[n] for key, n in kwargs.items()})

    return fill


def refusal(error: type[IntarsiaError], module: Any, *args: Any, **kwargs: Any) -> IntarsiaError:
    with pytest.raises(error) as caught:
        export(module, *args, **kwargs)
    assert caught.value.fix
    return caught.value


def test_what_is_no_graph_module_is_refused() -> None:
    error = refusal(HybridError, torch.nn.Linear(2, 2))
    assert str(error) == (
        "argument 'hybrid': found a Linear, expected a torch.fx.GraphModule. "
        "Compile the model first (intarsia.compile), or trace it to a GraphModule."
    )


def test_a_script_module_is_refused_by_the_name_of_its_call() -> None:
    with warnings.catch_warnings():  # torch deprecates tracing, from 2.14 on under another category
        warnings.simplefilter("ignore")
        scripted = torch.jit.trace(torch.nn.ReLU(), torch.ones(2))
    error = refusal(HybridError, hybrid(calls_part("x"), {"part": scripted}), (tensor(1, 2),))
    assert error.subject == "partition 'part'"
    assert error.node == "part"


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_module_that_cannot_be_traced_is_refused_by_the_name_of_its_call() -> None:
    error = refusal(HybridError, hybrid(calls_part("x"), {"part": Branching()}), (tensor(1, 2),))
    assert error.subject == "partition 'part'"
    assert "Branching" in error.found


@pytest.mark.parametrize(
    ("fill", "found"),
    [
        (calls_part("x", "y"), "2 positional values and keywords []"),
        (calls_part(), "0 positional values and keywords []"),
        (calls_part("x", b="y"), "1 positional values and keywords ['b']"),
    ],
)
def test_a_call_that_does_not_fit_its_partition_is_refused(fill: Callable[[Draft], Any], found: str) -> None:
    module = hybrid(fill, {"part": hybrid(identity)})
    error = refusal(HybridError, module, tuple(tensor(1, 2) for _ in module.graph.find_nodes(op="placeholder")))
    assert found in error.found
    assert error.expected == "one value for each of (a)"


def test_an_element_that_a_partition_does_not_return_is_refused() -> None:
    def fill(g: Draft) -> Any:
        return g.item(g.part("part", g.placeholder("x")), 2)

    def pair(g: Draft) -> Any:
        a = g.placeholder("a")
        return g.op(aten.relu.default, a), a

    error = refusal(HybridError, hybrid(fill, {"part": hybrid(pair)}), (tensor(1, 2),))
    assert (error.found, error.expected) == ("element 2", "one of the 2 that its partition returns")


@pytest.mark.parametrize(
    ("limit", "subject"), [("MAX_DEPTH", "partition 'part'"), ("MAX_NODES", "node 'part/relu_default'")]
)
def test_a_limit_is_refused_by_name(limit: str, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, limit, 0)
    module = hybrid(calls_part("x"), {"part": hybrid(identity)})
    assert refusal(HybridError, module, (tensor(1, 2),)).subject == subject


def test_too_many_symbols_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SYMBOLS", 0)
    shapes = {"a": {0: torch.export.Dim("d")}}
    error = refusal(HybridError, hybrid(identity), (tensor(1, 4),), dynamic_shapes=shapes)
    assert error.found == "1 symbols"


def test_an_operator_that_refuses_its_inputs_is_named_with_its_partition() -> None:
    def product(g: Draft) -> Any:
        a = g.placeholder("a")
        return g.op(aten.mm.default, a, a)

    error = refusal(HybridError, hybrid(calls_part("x"), {"part": hybrid(product)}), (tensor(1, 2, 3),))
    assert error.subject == "node 'part/mm_default'"


def test_a_missing_attribute_is_named_with_its_path() -> None:
    def read(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("layer.w"))

    error = refusal(StateError, hybrid(calls_part("x"), {"part": hybrid(read)}), (tensor(1, 2),))
    assert error.subject == "attribute 'part.layer.w'"


class Wrapped(torch.Tensor):
    """A tensor subclass."""


def test_a_tensor_subclass_is_refused_by_name() -> None:
    def read(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w"))

    module = hybrid(read, {"w": tensor(1, 2).as_subclass(Wrapped)})
    error = refusal(StateError, module, (tensor(1, 2),))
    assert error.subject == "attribute 'w'"
    assert "Wrapped" in error.found


def test_an_input_without_metadata_and_example_is_named() -> None:
    error = refusal(ConventionError, hybrid(identity))
    assert error.subject == "input 'a'"


@pytest.mark.parametrize(
    ("example", "found"),
    [
        (tensor(1, 3), "shape [3]"),
        (tensor(1, 2, dtype=torch.float64), "torch.float64 of shape [2]"),
        (tensor(1, 2, 1), "torch.float32 of shape [2, 1]"),
        (1.5, "a float"),
    ],
)
def test_an_example_that_contradicts_the_metadata_is_refused(example: Any, found: str) -> None:
    error = refusal(ConventionError, describe(hybrid(identity), (tensor(1, 2),)), (example,))
    assert error.found == found
    assert error.expected == "torch.float32 of shape [2]"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((tensor(1, 2), tensor(1, 2)), {}), ((), {"b": tensor(1, 2)}), ((tensor(1, 2),), {"a": tensor(1, 2)})],
)
def test_examples_that_are_not_the_inputs_are_refused(args: Any, kwargs: Any) -> None:
    error = refusal(ConventionError, hybrid(identity), args, kwargs)
    assert error.expected == "values for a"


def test_args_must_be_a_tuple() -> None:
    assert refusal(ConventionError, hybrid(identity), tensor(1, 2)).subject == "argument 'args'"


@pytest.mark.parametrize(
    ("dynamic_shapes", "found"),
    [
        ({"b": {0: torch.export.Dim("d")}}, "arguments ['b']"),
        (({}, {}), "2 entries"),
        (3, "a int"),
        ({"a": [{0: torch.export.Dim("d")}, None, None]}, None),
    ],
)
def test_dynamic_shapes_that_do_not_fit_are_refused(dynamic_shapes: Any, found: str | None) -> None:
    if found is None:
        nested = ([tensor(1, 2), tensor(2, 2)],)
        summed = hybrid(lambda g: g.op(aten.cat.default, g.placeholder("a")))
        error = refusal(ConventionError, summed, nested, dynamic_shapes=dynamic_shapes)
    else:
        error = refusal(ConventionError, hybrid(identity), (tensor(1, 2),), dynamic_shapes=dynamic_shapes)
        assert error.found == found
    assert error.subject.startswith("argument 'dynamic_shapes'")


def test_a_retrace_needs_example_inputs() -> None:
    with pytest.raises(ConventionError, match="found no example inputs"):
        retrace(hybrid(identity))


def test_a_program_of_another_tool_has_no_ledger() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(ConventionError, match="ledger: found none"):
        ledger(program)
