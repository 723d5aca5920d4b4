"""Every dtype and every odd shape, as input, as state and as a written value."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from builders.hybrids import Buffer, Draft, aten, chain, describe, hybrid, parameter, tensor
from builders.laws import call, check

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    made = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    return (made % 3 - (0 if dtype in (torch.uint8, torch.bool) else 1)).to(dtype)


def described(fill: Any, state: dict[str, Any], *examples: torch.Tensor) -> Any:
    return lambda: describe(chain(hybrid(fill, copy.deepcopy(state))), examples)


@pytest.mark.parametrize("kind", [parameter, Buffer, lambda value: value], ids=["parameter", "buffer", "plain"])
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
def test_a_dtype_as_input_and_state(dtype: torch.dtype, kind: Any) -> None:
    def fill(g: Draft) -> Any:
        a, w = g.placeholder("a"), g.get_attr("w")
        both = g.op(aten.logical_xor.default if dtype is torch.bool else aten.add.Tensor, a, w)
        wide = torch.complex128 if dtype.is_complex else torch.float32
        return both, g.op(aten.ne.Tensor, both, w), g.op(aten._to_copy.default, both, dtype=wide), w

    x = numbers(dtype, 2, 3)
    build = described(fill, {"w": kind(numbers(dtype, 3))}, x)
    check(build, [call(x), call(x.flip(0))], forms=["memory", "file"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_a_dtype_that_is_written(dtype: torch.dtype) -> None:
    def fill(g: Draft) -> Any:
        a, s = g.placeholder("a"), g.get_attr("s")
        g.op(aten.copy_.default, s, g.op(aten.flip.default, a, [0]))
        return g.op(aten.eq.Tensor, s, a)

    x = numbers(dtype, 2, 3)
    check(described(fill, {"s": Buffer(numbers(dtype, 2, 3))}, x), [call(x), call(x.flip(1))])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("written", [False, True])
def test_an_odd_shape(shape: tuple[int, ...], written: bool) -> None:
    def fill(g: Draft) -> Any:
        a, w = g.placeholder("a"), g.get_attr("w")
        total = g.op(aten.add.Tensor, a, w)
        if written:
            g.op(aten.copy_.default, w, total)
        return total, g.op(aten.sum.default, total)

    x = tensor(1, *shape)
    check(described(fill, {"w": Buffer(tensor(2, *shape))}, x), [call(x), call(tensor(3, *shape))])


def test_a_frozen_integer_parameter_beside_a_trained_one() -> None:
    def fill(g: Draft) -> Any:
        scaled = g.op(
            aten.mul.Tensor, g.op(aten._to_copy.default, g.get_attr("w8"), dtype=torch.float32), g.get_attr("scale")
        )
        return g.op(aten.add.Tensor, g.op(aten.mm.default, g.placeholder("a"), scaled), g.get_attr("bias"))

    state = {
        "w8": parameter(numbers(torch.int8, 4, 3)),
        "scale": parameter(torch.tensor(0.1)),
        "bias": torch.nn.Parameter(tensor(6, 3)),
    }
    program = check(described(fill, state, tensor(1, 2, 4)), [call(tensor(1, 2, 4))])
    flags = {name: (value.dtype, value.requires_grad) for name, value in program.state_dict.items()}
    assert flags == {
        "w8": (torch.int8, False),
        "scale": (torch.float32, False),
        "bias": (torch.float32, True),
    }


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[::2], lambda x: x[:, 1:], lambda x: x[:1].expand(4, 4), lambda x: x.flip(0)],
    ids=["transposed", "strided", "offset", "expanded", "flipped"],
)
def test_inputs_and_state_that_are_not_contiguous(view: Any) -> None:
    def fill(g: Draft) -> Any:
        a = g.placeholder("a")
        return g.op(aten.mul.Tensor, a, g.get_attr("w")), g.op(
            aten.sum.dim_IntList, g.op(aten.reshape.default, a, [-1, 1]), [1]
        )

    x = view(tensor(1, 4, 4))

    def build() -> GraphModule:
        return describe(chain(hybrid(fill, {"w": Buffer(view(tensor(2, 4, 4)))})), (x,))

    check(build, [call(x), call(view(tensor(3, 4, 4)))], forms=["memory", "file"])


def test_values_that_compare_unequal_to_themselves() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    check(described(lambda g: g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w")), {"w": odd}, odd), [call(odd)])


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 1e-45, 2**60, -0.0, 1j], ids=str)
def test_odd_numbers_in_a_graph(value: Any) -> None:
    def fill(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("a"), value)

    check(described(fill, {}, tensor(1, 3)), [call(tensor(1, 3))], forms=["memory"])
