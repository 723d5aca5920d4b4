"""State is known by identity: equal names, ties, views, kinds, persistence and awkward names."""

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
    fuse,
    hybrid,
    parameter,
    split,
    tensor,
)
from builders.laws import call, check, targets, through_file
from intarsia.errors import StateError
from intarsia.surgery import export

X, Y = tensor(1, 2, 4), tensor(2, 2, 4)
CALLS = [call(X), call(Y)]
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "PARAMETER": parameter,
    "BUFFER": Buffer,
    "BUFFER, not persistent": lambda value: Buffer(value, persistent=False),
    "CONSTANT_TENSOR": lambda value: value,
}


def scale(*names: str, **attributes: Any) -> GraphModule:
    """A partition that multiplies by each of its attributes in turn."""

    def fill(g: Draft) -> Any:
        value = g.placeholder("a")
        for name in names or attributes:
            value = g.op(aten.mul.Tensor, value, g.get_attr(name))
        return value

    return hybrid(fill, attributes)


def described(build: Callable[[], GraphModule], *args: torch.Tensor) -> Callable[[], GraphModule]:
    return lambda: describe(build(), args or (X,))


def storages(program: torch.export.ExportedProgram) -> int:
    held = [*program.state_dict.values(), *program.constants.values()]
    return len({value.untyped_storage().data_ptr() for value in held})


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_equal_names_stay_two_tensors(first: str, second: str) -> None:
    def build() -> GraphModule:
        return chain(scale(w=KINDS[first](tensor(5, 4))), scale(w=KINDS[second](tensor(6, 4))))

    program = check(described(build), CALLS, forms=["memory"])
    names = [*program.state_dict, *program.constants]
    assert sorted(names) == ["part_1.w", "w"]
    kinds = {spec.target: spec.kind.name for spec in program.graph_signature.input_specs if spec.target}
    assert kinds == {"w": first.split(",", maxsplit=1)[0], "part_1.w": second.split(",", maxsplit=1)[0]}
    flags = {s.target: s.persistent for s in program.graph_signature.input_specs if s.kind.name == "BUFFER"}
    assert all(
        flags[name] is ("not" not in kind) for name, kind in (("w", first), ("part_1.w", second)) if name in flags
    )


def test_the_root_is_the_first_to_choose_names() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            return g.op(aten.add.Tensor, g.part("part", g.placeholder("x")), g.get_attr("w"))

        return hybrid(top, {"w": parameter(tensor(5, 4)), "part": scale(w=parameter(tensor(6, 4)))})

    assert set(check(described(build), CALLS).state_dict) == {"w", "part.w"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tie_across_three_partitions_is_one_entry(kind: str) -> None:
    def build() -> GraphModule:
        tied = KINDS[kind](tensor(5, 4))
        return chain(scale(w=tied), scale(v=tied, w=parameter(tensor(7, 4))), scale(other=tied))

    program = check(described(build), CALLS)
    assert storages(program) == 2
    assert len(program.state_dict) + len(program.constants) == 2


def test_a_tie_survives_a_file_and_a_write() -> None:
    def build() -> GraphModule:
        tied = torch.zeros(4)

        def count(g: Draft) -> Any:
            a = g.placeholder("a")
            g.op(aten.add_.Tensor, g.get_attr("n"), 1.0)
            return g.op(aten.mul.Tensor, a, g.get_attr("m"))

        return chain(hybrid(count, {"n": Buffer(tied), "m": Buffer(tied)}), scale(k=Buffer(tied)))

    program = check(described(build), [*CALLS, *CALLS])
    assert targets(program, "BUFFER") == ["n"]
    assert storages(through_file(program)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_one_storage_stay_two_entries_of_one_storage(kind: str) -> None:
    def build() -> GraphModule:
        base = tensor(5, 10)
        return chain(scale(w=KINDS[kind](base[:4])), scale(v=KINDS[kind](base[3:7]), u=KINDS[kind](base[6:10])))

    program = check(described(build), CALLS)
    assert storages(program) == 1
    assert len(program.state_dict) + len(program.constants) == 3


def test_transposed_and_strided_state_keeps_its_strides() -> None:
    def build() -> GraphModule:
        def product(g: Draft) -> Any:
            return g.op(aten.mul.Tensor, g.op(aten.mm.default, g.placeholder("a"), g.get_attr("w")), g.get_attr("v"))

        return hybrid(product, {"w": parameter(tensor(5, 4, 4).T), "v": Buffer(tensor(6, 8)[::2])})

    program = check(described(build), CALLS)
    assert {name: tuple(value.stride()) for name, value in program.state_dict.items()} == {"w": (1, 4), "v": (2,)}


@pytest.mark.parametrize("kind", KINDS)
def test_state_at_the_root_is_passed_as_an_argument(kind: str) -> None:
    def build() -> GraphModule:
        def product(g: Draft) -> Any:
            w, a = g.inputs("w a")
            return g.op(aten.mul.Tensor, g.op(aten.mul.Tensor, a, w), g.get_attr("w"))

        def top(g: Draft) -> Any:
            x, w = g.placeholder("x"), g.get_attr("w")
            return g.part("two", w, g.part("one", w, x))

        parts = {"one": hybrid(product, {"w": Buffer(tensor(6, 4))}), "two": hybrid(product, {"w": tensor(7, 4)})}
        return hybrid(top, {"w": KINDS[kind](tensor(5, 4)), **parts})

    program = check(described(build), CALLS)
    assert {*program.state_dict, *program.constants} == {"w", "one.w", "two.w"}


NAMES = [
    ["a.b", "a_b", "a.b_", "a.b_1"],
    ["None_", "len", "print", "int"],
    ["x", "args", "kwargs", "forward_1"],
    ["größe", "ключ", "重み"],
    ["w", "p_w", "b_w", "c_w", "W"],
    ["0", "1.0", "_1_0"],
    ["add", "output", "getitem", "mul"],
]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
@pytest.mark.parametrize("kind", ["PARAMETER", "BUFFER", "CONSTANT_TENSOR"])
def test_awkward_names(names: list[str], kind: str) -> None:
    def build() -> GraphModule:
        def part() -> GraphModule:
            return scale(**{name: KINDS[kind](tensor(index, 4)) for index, name in enumerate(names)})

        return chain(part(), part())

    program = check(described(build), CALLS)
    assert len({*program.state_dict, *program.constants}) == 2 * len(names)
    assert set(names) <= {*program.state_dict, *program.constants}


def test_a_tensor_has_the_name_of_a_method_of_modules() -> None:
    def build() -> GraphModule:
        module = chain(scale(scale_1=tensor(5, 4)))
        module.part_0.type = tensor(6, 4)  # as assigning it does; torch would refuse to register it
        for node in module.part_0.graph.find_nodes(op="get_attr"):
            node.target = "type"
        module.part_0.recompile()
        return module

    program = export(build(), (tensor(1, 4),))
    assert [*program.constants] == ["part_0_type_1"]
    assert torch.equal(program.module()(tensor(2, 4)), build()(tensor(2, 4)))


def test_a_name_that_is_a_prefix_of_another() -> None:
    def build() -> GraphModule:
        return chain(
            scale(a=parameter(tensor(5, 4))),
            scale(**{"a.b": parameter(tensor(6, 4)), "a.b_": Buffer(tensor(7, 4))}),
            scale(**{"a.b.c": Buffer(tensor(8, 4))}),
        )

    program = check(described(build), CALLS)
    names = {*program.state_dict, *program.constants}
    assert len(names) == 4
    assert not any(other.startswith(f"{name}.") for name in names for other in names)


def test_a_state_has_the_name_of_another_partition() -> None:
    def build() -> GraphModule:
        def top(g: Draft) -> Any:
            return g.part("b", g.part("a", g.placeholder("x")))

        parts = {"a": scale(b=parameter(tensor(5, 4)), w=Buffer(tensor(6, 4))), "b": scale(w=Buffer(tensor(7, 4)))}
        return hybrid(top, parts)

    names = {*check(described(build), CALLS).state_dict}
    assert len(names) == 3
    assert {"b", "w"} <= names


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("PARAMETER", "BUFFER", "PARAMETER"),
        ("BUFFER", "BUFFER, not persistent", "BUFFER"),
        ("BUFFER, not persistent", "CONSTANT_TENSOR", "BUFFER, not persistent"),
        ("CONSTANT_TENSOR", "BUFFER", "BUFFER"),
    ],
)
def test_one_tensor_of_two_kinds_takes_the_stronger(one: str, two: str, expected: str) -> None:
    def build() -> GraphModule:
        value = parameter(tensor(5, 4)) if one == "PARAMETER" else tensor(5, 4)
        kinds = {"PARAMETER": lambda given: given, **{name: KINDS[name] for name in KINDS if name != "PARAMETER"}}
        return chain(scale(w=kinds[one](value)), scale(v=kinds[two](value)))

    program = check(described(build), CALLS, forms=["memory", "file"])
    (spec,) = [spec for spec in program.graph_signature.input_specs if spec.target]
    assert (spec.kind.name, spec.persistent) == {
        "PARAMETER": ("PARAMETER", None),
        "BUFFER": ("BUFFER", True),
        "BUFFER, not persistent": ("BUFFER", False),
    }[expected]


def test_state_that_nobody_needs_is_left_out() -> None:
    def build() -> GraphModule:
        def part(g: Draft) -> Any:
            a = g.placeholder("a")
            unused = g.op(aten.mul.Tensor, a, g.get_attr("dead"))
            g.get_attr("unread")
            return g.op(aten.mul.Tensor, a, g.get_attr("w")), unused

        def top(g: Draft) -> Any:
            return g.item(g.part("part", g.placeholder("x")), 0)

        attributes = {name: parameter(tensor(i, 4)) for i, name in enumerate(["w", "dead", "unread"])}
        return hybrid(top, {"part": hybrid(part, attributes)})

    assert set(check(described(build), CALLS).state_dict) == {"w"}


def test_parameters_keep_requires_grad() -> None:
    def build() -> GraphModule:
        return chain(scale(w=torch.nn.Parameter(tensor(5, 4)), v=parameter(tensor(6, 4))))

    program = check(described(build), CALLS)
    assert {name: value.requires_grad for name, value in program.state_dict.items()} == {"w": True, "v": False}


def test_the_state_is_the_very_tensors_of_the_hybrid() -> None:
    module = describe(chain(scale(w=parameter(tensor(5, 4))), scale(w=Buffer(tensor(6, 4)), k=tensor(7, 4))), (X,))
    program = export(module)
    assert program.state_dict["w"] is module.part_0.w
    assert program.state_dict["part_1.w"] is module.part_1.w
    assert program.constants["k"] is module.part_1.k


def test_a_missing_attribute_is_refused_by_path() -> None:
    module = chain(scale(w=parameter(tensor(5, 4))), scale(**{"block.w": parameter(tensor(6, 4))}))
    del module.part_1.block.w
    with pytest.raises(StateError, match=r"attribute 'part_1\.block\.w'.*no 'w'"):
        export(module, (X,))


@pytest.mark.parametrize("value", [3.0, "text", [tensor(5, 4)]], ids=["number", "string", "list"])
def test_an_attribute_of_another_kind_is_refused_by_path(value: Any) -> None:
    with pytest.raises(StateError, match=r"attribute 'part_0\.w'"):
        export(chain(scale(w=value)), (X,))


def test_a_tensor_subclass_is_refused_by_name() -> None:
    class Labelled(torch.Tensor):
        pass

    with pytest.raises(StateError, match=r"attribute 'part_0\.w'.*Labelled"):
        export(chain(scale(w=Buffer(tensor(5, 4).as_subclass(Labelled)))), (X,))
    with pytest.raises(StateError, match=r"attribute 'part_0\.w'.*Labelled"):
        export(chain(scale(w=torch.nn.Parameter(tensor(5, 4).as_subclass(Labelled)))), (X,))


class Sharing(torch.nn.Module):
    """Tied weights, a buffer of each persistence, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4, bias=False)
        self.two = torch.nn.Linear(4, 4)
        self.one.weight = self.two.weight = torch.nn.Parameter(tensor(5, 4, 4))
        self.two.bias = torch.nn.Parameter(tensor(6, 4))
        self.register_buffer("kept", tensor(7, 4))
        self.register_buffer("scratch", tensor(8, 4), persistent=False)
        self.table = tensor(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two(self.one(x).relu()) * self.kept
        return y * self.scratch - self.table.exp() + self.one.weight.sum()


@pytest.mark.parametrize("cut", CUTS)
def test_state_of_a_captured_model(cut: str) -> None:
    program = check(lambda: CUTS[cut](captured(Sharing(), (X,))), CALLS)
    assert storages(program) == 5
    assert {name.rpartition(".")[2] for name in targets(program, "PARAMETER")} == {"weight", "bias"}


@pytest.mark.parametrize("cut", [split, fuse])
def test_one_partition_of_all(cut: Any) -> None:
    program = check(lambda: cut(captured(Sharing(), (X,)), lambda _: 0), CALLS, forms=["memory"])
    assert {"two.weight", "two.bias"} <= {*program.state_dict} or {"one.weight", "two.bias"} <= {*program.state_dict}
