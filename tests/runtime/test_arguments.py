"""What a call may pass, and what the errors say: names, structures, dtypes, shapes, ranges and constants."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.export import Dim, export
from torch.fx.immutable_collections import immutable_dict, immutable_list

from intarsia.errors import ArgumentError
from intarsia.runtime.program import Program


class Model(torch.nn.Module):
    def forward(
        self, tokens: Any, weight: torch.Tensor, bias: Any = None, *, mask: Any = None, flag: bool = False
    ) -> Any:
        return tokens["ids"][0] + weight + mask["inner"]


@pytest.fixture(scope="module")
def program() -> Program:
    batch = Dim("batch", min=1, max=8)
    return Program(
        export(
            Model(),
            ({"ids": [torch.ones(2, 3)]}, torch.ones(2, 3)),
            {"mask": {"inner": torch.ones(3), "outer": torch.ones(1)}, "flag": True},
            dynamic_shapes={
                "tokens": {"ids": [{0: batch}]},
                "weight": {0: batch},
                "mask": {"inner": None, "outer": None},
                "flag": None,
            },
        )
    )


def call(**changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that fit, with some exchanged; an argument exchanged for `...` is left out."""
    values = {
        "tokens": {"ids": [torch.ones(2, 3)]},
        "weight": torch.ones(2, 3),
        "mask": {"inner": torch.ones(3), "outer": torch.ones(1)},
        "flag": True,
        **changes,
    }
    kept = {name: value for name, value in values.items() if value is not ...}
    return (), kept


FITTING = {
    "all by keyword": call(),
    "another order": ((), dict(reversed(call()[1].items()))),
    "first by position": ((call()[1]["tokens"],), {k: v for k, v in call()[1].items() if k != "tokens"}),
    "keys in another order": call(mask={"outer": torch.ones(1), "inner": torch.ones(3)}),
    "immutable containers": call(tokens=immutable_dict({"ids": immutable_list([torch.ones(2, 3)])})),
    "a parameter": call(weight=torch.nn.Parameter(torch.ones(2, 3))),
}


@pytest.mark.parametrize("case", FITTING)
def test_accepts(program: Program, case: str) -> None:
    args, kwargs = FITTING[case]
    assert torch.equal(program(*args, **kwargs), torch.full((2, 3), 3.0))


INNER = torch.ones(3)
MISFITS: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], str]] = {
    "missing": (call(weight=...), "input 'weight': found no value, expected every input .*tokens, weight, mask, flag"),
    "missing keyword": (call(mask=...), "input 'mask': found no value"),
    "extra": (call(bias=torch.ones(3)), "input 'bias': found a keyword that the program does not have.* Drop bias"),
    "misspelt": (call(mask=..., msak=INNER), "input 'msak': .*Did you mean 'mask' by 'msak'"),
    "twice": (((torch.ones(3),), call()[1]), "input 'tokens': found it by position and by keyword"),
    "too many": (((1, 2, 3), {}), r"call: found 3 positional arguments, expected 2\. Pass mask, flag by keyword"),
    "sparse": (
        call(weight=torch.ones(2, 3).to_sparse()),
        "input 'weight': found a torch.sparse_coo tensor, expected a torch.strided tensor",
    ),
    "jagged": (
        call(weight=torch.nested.as_nested_tensor([torch.ones(3)] * 2, layout=torch.jagged)),
        "input 'weight': found a nested tensor, expected a torch.strided tensor",
    ),
    "leaf for container": (call(tokens=INNER), "input 'tokens': found a Tensor, expected a dict"),
    "tuple for list": (call(tokens={"ids": (INNER,)}), r"""input "tokens\['ids'\]": found a tuple, expected a list"""),
    "another dict": (call(tokens=OrderedDict(ids=[INNER])), "found an OrderedDict, expected a dict"),
    "list too long": (call(tokens={"ids": [INNER] * 2}), r"""tokens\['ids'\]": found 2 entries, expected 1"""),
    "missing key": (
        call(mask={"inner": INNER}),
        "input 'mask': found no key 'outer', expected the keys 'inner', 'outer'",
    ),
    "misspelt key": (call(mask={"inner": INNER, "outr": INNER}), "no key 'outer' and key 'outr'.*Did you mean 'outer'"),
    "extra key": (call(mask={"inner": INNER, "outer": INNER, "x": 1}), "input 'mask': found key 'x'"),
    "container for leaf": (
        call(weight=[INNER]),
        r"input 'weight': found a value of type list, expected a tensor f32\[",
    ),
    "number for tensor": (call(weight=3), "input 'weight': found int 3, expected a tensor"),
    "None for tensor": (call(weight=None), "input 'weight': found None, expected a tensor"),
    "dtype": (call(weight=torch.ones(2, 3).half()), r"'weight': found dtype f16, expected f32.*\.to\(torch\.float32\)"),
    "device": (call(weight=torch.ones(2, 3, device="meta")), "'weight': found device meta, expected cpu"),
    "rank": (call(weight=torch.ones(3)), r"'weight': found 1 dimensions \(shape \[3\]\), expected 2, as in f32\["),
    "fixed size": (
        call(weight=torch.ones(2, 4)),
        r"'weight': found size 4 in dimension 1 \(shape \[2, 4\]\), expected 3",
    ),
    "nested": (
        call(mask={"inner": torch.ones(4), "outer": INNER[:1]}),
        r"""input "mask\['inner'\]": found size 4 in dimension 0""",
    ),
    "too large": (
        call(tokens={"ids": [torch.ones(9, 3)]}, weight=torch.ones(9, 3)),
        r"""tokens\['ids'\]\[0\]": found size 9 in dimension 0 .*, expected 1 to 8""",
    ),
    "too small": (
        call(tokens={"ids": [torch.ones(0, 3)]}, weight=torch.ones(0, 3)),
        "found size 0 in dimension 0 .*expected 1 to 8",
    ),
    "unequal": (
        call(weight=torch.ones(4, 3)),
        r"""input 'weight': found size 4 .*, expected 2, the same as dimension 0 of input "tokens\['ids'\]\[0\].""",
    ),
    "constant": (call(flag=False), "input 'flag': found bool False, expected True, the value that"),
    "constant of another type": (call(flag=1), "input 'flag': found int 1, expected True"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_refuses(program: Program, case: str) -> None:
    (args, kwargs), message = MISFITS[case]
    with pytest.raises(ArgumentError, match=message):
        program(*args, **kwargs)


def relation(first: Any, second: Any, sizes: tuple[int, int]) -> Program:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() + y.sum()

    args = tuple(torch.ones(size) for size in sizes)
    return Program(export(Sum(), args, dynamic_shapes=({0: first}, {0: second})))


d = Dim("d", min=1, max=8)


@pytest.mark.parametrize(
    ("dims", "traced", "fit", "misfit", "message"),
    [
        (
            (d, d),
            (4, 4),
            [(1, 1), (8, 8)],
            (3, 4),
            "'y': found size 4 .*expected 3, the same as dimension 0 of input 'x'",
        ),
        ((d, 2 * d), (4, 8), [(1, 2), (8, 16)], (3, 5), r"'y': found size 5 in dimension 0, expected 6, which is 2\*"),
        ((2 * d, d), (8, 4), [(2, 1), (16, 8)], (5, 3), "'x': found size 5 in dimension 0, expected 6"),
        ((d + 1, 2 * d), (5, 8), [(2, 2), (9, 16)], (5, 6), "'y': found size 6 in dimension 0, expected 8"),
        ((2 * d, 4 * d), (8, 16), [(2, 4), (16, 32)], (7, 16), r"'x': found size 7 .*a multiple of 2\."),
        ((2 * d + 1, 4 * d), (9, 16), [(3, 4)], (4, 8), r"'x': found size 4 .*of the form 2\*s\d+ \+ 1"),
        ((2 * d, 4 * d), (8, 16), [(2, 4)], (18, 36), "'x': found size 18 in dimension 0, expected 2 to 16"),
        ((Dim("a", min=3), Dim("b")), (4, 4), [(3, 0), (99, 9)], (2, 4), "found size 2 .*, expected 3 or more"),
        ((Dim.DYNAMIC, Dim.AUTO), (4, 5), [(0, 1), (1, 0), (9, 9)], None, ""),
    ],
)
def test_sizes_in_relation(
    dims: tuple[Any, Any], traced: tuple[int, int], fit: Any, misfit: tuple[int, int] | None, message: str
) -> None:
    program = relation(*dims, traced)
    for x, y in fit:
        assert program(torch.ones(x), torch.ones(y)) == x + y
    if misfit is not None:
        with pytest.raises(ArgumentError, match=message):
            program(*map(torch.ones, misfit))


def test_an_integer_may_be_dynamic() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n

    program = Program(export(Scale(), (torch.ones(2), 3), dynamic_shapes=(None, Dim.DYNAMIC)))
    assert program(torch.ones(2), 7).tolist() == [7.0, 7.0]
    with pytest.raises(ArgumentError, match=r"input 'n': found float 7\.0, expected an int"):
        program(torch.ones(2), 7.0)


@pytest.mark.parametrize(("value", "other"), [(None, 0), (3, 4), (2.5, 2), ("mean", "sum"), (True, 1)])
def test_a_constant_must_be_what_it_was(value: Any, other: Any) -> None:
    class Ignores(torch.nn.Module):
        def forward(self, x: torch.Tensor, option: Any) -> torch.Tensor:
            return x + 1

    program = Program(export(Ignores(), (torch.ones(2), value)))
    assert program(torch.ones(2), value).tolist() == [2.0, 2.0]
    assert program(option=value, x=torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(ArgumentError, match=re.escape(f"input 'option': found {type(other).__name__} {other!r}")):
        program(torch.ones(2), other)


def test_names_come_from_the_graph_when_the_model_does_not_tell_them() -> None:
    exported = export(Model(), ({"ids": [torch.ones(3)]}, torch.ones(3)), {"mask": {"inner": torch.ones(3)}})
    exported.module_call_graph[0].signature.forward_arg_names = None
    program = Program(exported)
    with pytest.raises(ArgumentError, match=r"""input "args\[0\]\['ids'\]\[0\]": found None"""):
        program({"ids": [None]}, torch.ones(3), mask={"inner": torch.ones(3)})
    with pytest.raises(ArgumentError, match="input 'weight': found None"):
        program({"ids": [torch.ones(3)]}, None, mask={"inner": torch.ones(3)})


def test_positional_arguments_of_any_number_have_names() -> None:
    class Variadic(torch.nn.Module):
        def forward(self, *xs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            return xs[0] + xs[1] + named["z"]

    program = Program(export(Variadic(), (torch.ones(2), torch.ones(2)), {"z": torch.ones(2)}))
    assert program(torch.ones(2), torch.ones(2), z=torch.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(ArgumentError, match="input 'xs_1': found None"):
        program(torch.ones(2), None, z=torch.ones(2))


Pair = namedtuple("Pair", ["first", "second"])
Other = namedtuple("Other", ["first", "second"])


@dataclass
class Options:
    scale: torch.Tensor
    shift: torch.Tensor | None = None


torch.export.register_dataclass(Options, serialized_type_name="intarsia.tests.Options")


class Registered(torch.nn.Module):
    def forward(self, pair: Any, options: Any) -> torch.Tensor:
        return pair.first * options.scale + pair.second


@pytest.mark.parametrize(
    ("pair", "options", "message"),
    [
        (Other(INNER, INNER), Options(INNER), "input 'pair': found an Other, expected a Pair"),
        ((INNER, INNER), Options(INNER), "input 'pair': found a tuple, expected a Pair"),
        (Pair(INNER, None), Options(INNER), r"input 'pair\.second': found None, expected a tensor"),
        (Pair(INNER, INNER), Options(INNER.double()), r"input 'options\.scale': found dtype f64"),
        (Pair(INNER, INNER), Options(INNER, INNER), "input 'options': found 2 entries, expected 1"),
        (
            Pair(INNER, INNER),
            Options(None, INNER),
            r"input 'options': found an Options of .*'shift'.*, expected an Options of",
        ),
        (Pair(INNER, INNER), {"scale": INNER}, "input 'options': found a dict, expected an Options"),
    ],
)
def test_registered_containers(pair: Any, options: Any, message: str) -> None:
    traced = Pair(torch.ones(3), torch.ones(3)), Options(torch.ones(3))  # torch takes one tensor for one input
    program = Program(export(Registered(), traced))
    assert program(Pair(INNER, INNER), Options(2 * INNER)).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(ArgumentError, match=message):
        program(pair, options)


def test_a_missing_value_that_the_export_fixed_is_told() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float | None) -> torch.Tensor:
            return x if scale is None else x * scale

    for scale in (None, 2.0):
        program = Program(torch.export.export(Scaled(), (torch.ones(2),), {"scale": scale}))
        with pytest.raises(ArgumentError, match=rf"Pass scale={scale}\.$"):
            program(torch.ones(2))
