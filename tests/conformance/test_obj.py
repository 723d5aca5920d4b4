"""Script objects: one that several partitions read is one entry."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.fx import GraphModule

from builders.hybrids import Draft, aten, chain, hybrid, parameter, tensor
from builders.laws import call, check, targets

X, Y = tensor(1, 2, 4), tensor(2, 2, 4)


def packed(seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch gives quantized tensors up; nothing else in it is a script object
        weight = torch.quantize_per_tensor(tensor(seed, 4, 4), 0.05, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, tensor(seed + 1, 4))


def linear(g: Draft) -> Any:
    return g.op(torch.ops.quantized.linear_dynamic.default, g.placeholder("a"), g.get_attr("packed"))


def scale(g: Draft) -> Any:
    return g.op(aten.mul.Tensor, g.placeholder("a"), g.get_attr("w"))


def test_a_script_object_of_one_partition() -> None:
    def build() -> GraphModule:
        return chain(hybrid(linear, {"packed": packed(5)}), hybrid(scale, {"w": parameter(tensor(7, 4))}))

    program = check(build, [call(X), call(Y)], examples=call(X), forms=["memory", "file"])
    (name,) = targets(program, "CUSTOM_OBJ")
    assert isinstance(program.constants[name], torch.ScriptObject)


def test_one_script_object_in_three_partitions_and_another_of_its_name() -> None:
    def build() -> GraphModule:
        shared = packed(5)
        return chain(*[hybrid(linear, {"packed": value}) for value in (shared, packed(8), shared)])

    program = check(build, [call(X), call(Y)], examples=call(X), forms=["memory", "file"])
    assert targets(program, "CUSTOM_OBJ") == ["packed", "part_1.packed"]
