"""What ONNX Runtime is said to get wrong it still gets wrong; otherwise the entry should go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance import Calls, export, load_built

from intarsia.engines.nodes import operator_name
from intarsia.engines.onnxruntime import ONNXRuntimeBackend
from intarsia.engines.onnxruntime.faults import FAULTS, known_fault
from intarsia.errors import EngineBuildFailed

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
aten = torch.ops.aten
BACKEND = ONNXRuntimeBackend()

ODD = torch.tensor([[nan, -0.0, 0.0, inf], [-inf, 1.5, -2.5, 100.0], [-100.0, nan, 0.5, -0.5]])
NANS = torch.tensor([[1.0, nan, -1.0, 2.0, 0.5], [nan, 3.0, nan, -inf, inf]])
SMALL = torch.tensor([[-0.0, -1e-20, 1e-20, 0.3]])
WHOLE = torch.tensor([[7, -7, 3], [-1, 2, -2]])
IMAGE = torch.arange(96.0).reshape(1, 2, 6, 8).sin()
CUBE = torch.arange(512.0).reshape(1, 1, 8, 8, 8).sin()
EMPTY = torch.zeros(2, 0)
SCALAR = torch.tensor(2.0)
TWICE = torch.zeros(4000, dtype=torch.int64)
COUNTED = torch.arange(4000.0)
QUERY = torch.randn(2, 3, 4)
LOGITS, CLASSES = torch.randn(3, 5), torch.tensor([0, 4, 1])

# By operator: a call of it that is answered otherwise, and its inputs.
WRONG: Mapping[str, Case] = {
    "celu.default": (F.celu, (SMALL,)),
    "expm1.default": (torch.expm1, (SMALL,)),
    "frac.default": (torch.frac, (torch.tensor([-1.0, -0.0]),)),
    "log1p.default": (torch.log1p, (SMALL,)),
    "selu.default": (F.selu, (SMALL,)),
    "trunc.default": (torch.trunc, (torch.tensor([-0.3, -0.0]),)),
    "log_sigmoid.default": (aten.log_sigmoid, (ODD,)),
    "special_log_ndtr.default": (torch.special.log_ndtr, (ODD,)),
    "logaddexp.default": (torch.logaddexp, (ODD, ODD)),
    "logaddexp2.default": (torch.logaddexp2, (ODD * 10, ODD * 10)),
    "atan2.default": (torch.atan2, (ODD, ODD.flip(0))),
    "heaviside.default": (torch.heaviside, (ODD, ODD.flip(0))),
    "sign.default": (torch.sign, (ODD,)),
    "signbit.default": (torch.signbit, (ODD,)),
    "lerp.Tensor": (torch.lerp, (ODD, ODD.flip(0), ODD.flip(1))),
    "special_erfcx.default": (torch.special.erfcx, (ODD,)),
    "_native_batch_norm_legit_functional.default": (
        lambda a, w: aten._native_batch_norm_legit_functional(a, w, w, w, w, True, 0.1, 1e-5)[3:],
        (IMAGE, torch.rand(2)),
    ),
    "scatter_reduce.two": (lambda x, i: torch.zeros(3).scatter_reduce(0, i, x, "mean"), (COUNTED, TWICE)),
    "argmax.default": (lambda x: x.argmax(1), (ODD.flip(1),)),
    "argmin.default": (lambda x: x.argmin(1), (ODD.flip(1),)),
    "max.dim": (lambda x: x.max(1), (ODD,)),
    "min.dim": (lambda x: x.min(1), (ODD,)),
    "max_pool2d_with_indices.default": (lambda x: F.max_pool2d(x[None], 2, 1, return_indices=True), (NANS,)),
    "max_pool3d_with_indices.default": (
        lambda x: F.max_pool3d(x[None], 2, 1, return_indices=True), (torch.stack([NANS, NANS]),)
    ),
    "adaptive_max_pool1d.default": (lambda x: F.adaptive_max_pool1d(x, 2, return_indices=True), (ODD,)),
    "any.default": (lambda x: x.any(), (EMPTY,)),
    "any.dim": (lambda x: x.any(1), (EMPTY,)),
    "any.dims": (lambda x: aten.any.dims(x, [0, 1]), (EMPTY,)),
    "std.correction": (lambda x: x.std(1, correction=1), (EMPTY,)),
    "std.dim": (lambda x: aten.std.dim(x, [1]), (EMPTY,)),
    "std.default": (aten.std.default, (EMPTY,)),
    "std_mean.correction": (lambda x: aten.std_mean.correction(x, [1]), (EMPTY,)),
    "std_mean.default": (aten.std_mean.default, (EMPTY,)),
    "var.correction": (lambda x: x.var(1, correction=1), (EMPTY,)),
    "var.dim": (lambda x: aten.var.dim(x, [1]), (EMPTY,)),
    "var.default": (aten.var.default, (EMPTY,)),
    "var_mean.correction": (lambda x: aten.var_mean.correction(x, [1]), (EMPTY,)),
    "var_mean.default": (aten.var_mean.default, (EMPTY,)),
    "native_group_norm.default": (
        lambda x: aten.native_group_norm(x, None, None, 2, 2, 0, 1, 1e-5), (torch.zeros(2, 2, 0),)
    ),
    "mse_loss.default": (lambda x: F.mse_loss(x, x), (EMPTY,)),
    "nll_loss_forward.default": (lambda x, i: aten.nll_loss_forward(x, i, None, 1, -100), (LOGITS, CLASSES)),
    "floor_divide.default": (lambda x: x // 0.3, (ODD,)),
    "remainder.Scalar": (lambda x: x % 0.7, (ODD,)),
    "remainder.Tensor": (torch.remainder, (ODD, ODD.flip(1))),
    "div.Tensor_mode": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (ODD, ODD.flip(1))),
    "avg_pool2d.default": (lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5), (IMAGE,)),
    "avg_pool3d.default": (lambda x: F.avg_pool3d(x, 3, 2, divisor_override=5), (CUBE,)),
    "linalg_vector_norm.default": (lambda x: torch.linalg.vector_norm(x, inf, 1), (ODD,)),
    "pow.Tensor_Scalar": (lambda x: x**0.5, (ODD,)),
}  # fmt: skip

# By operator: a call that cannot be built.
REFUSED: Mapping[str, Case] = {
    "im2col.default": (lambda x: aten.im2col(x, [3, 2], [1, 1], [0, 0], [1, 1]), (IMAGE[0],)),
    "adaptive_max_pool2d.default": (lambda x: F.adaptive_max_pool2d(x[None], 2, return_indices=True), (ODD,)),
    "amax.default": (lambda x: x.amax(), (ODD,)),
    "amin.default": (lambda x: x.amin(), (ODD,)),
    "group_norm.default": (lambda x: F.group_norm(x, 1), (torch.zeros(0, 2, 3),)),
    "cross_entropy_loss.default": (F.cross_entropy, (LOGITS, LOGITS.softmax(1))),
    "rsub.Scalar": (lambda x: aten.rsub.Scalar(x, 0.5), (WHOLE,)),
    "cosine_similarity.default": (lambda x: F.cosine_similarity(x, x, 0), (SCALAR,)),
    "index.Tensor": (lambda x, i: x[i], (WHOLE, torch.tensor([0, -1], dtype=torch.int32))),
    "scaled_dot_product_attention.default": (lambda q: F.scaled_dot_product_attention(q, q, q), (QUERY,)),
}  # fmt: skip

UNSHOWN: Mapping[str, str] = {
    **dict.fromkeys(
        ("index_put.default", "scatter.src", "scatter.value", "scatter_add.default"),
        "ONNX does not say in which order equal positions are written: a right answer says nothing of the next",
    ),
    **dict.fromkeys(("argsort.default", "sort.default", "topk.default"), "nor does it say where NaN goes"),
    **dict.fromkeys(("max.default", "min.default"), "torch refuses a tensor without elements"),
    "fmod.Scalar": "integers that are divided by 0 end the process",
    "pad.default": "some of its modes and sizes were tried alone",
}


def _program(functions: Mapping[str, Case]) -> tuple[torch.export.ExportedProgram, list[torch.Tensor]]:
    """All calls in one program, and its inputs."""
    inputs = [value for _, given in functions.values() for value in given]

    def together(*args: torch.Tensor) -> list[torch.Tensor]:
        rest, results = iter(args), []
        for function, given in functions.values():
            results += _leaves(function(*(next(rest) for _ in given)))
        return results

    return export(Calls(together), inputs), inputs


def _leaves(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _is_same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Also the signs of zeros."""
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    close = torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return close and torch.equal(torch.signbit(found[expected == 0]), torch.signbit(expected[expected == 0]))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
def test_what_is_said_to_be_wrong_is_left_to_torch_and_is_wrong() -> None:
    program, inputs = _program(WRONG)
    faults = {operator_name(node) for node in program.graph.nodes if node.op == "call_function" and known_fault(node)}
    assert WRONG.keys() <= faults
    found = iter(load_built(BACKEND, BACKEND.build(program, {}))(inputs))
    right = []
    for name, (function, given) in WRONG.items():
        pairs = [(next(found), expected.contiguous()) for expected in _leaves(function(*given))]
        if all(_is_same(*pair) for pair in pairs):
            right.append(name)
    assert right == [], "the fault is gone, or does not show"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_said_not_to_be_built_is_left_to_torch_and_cannot_be(name: str) -> None:
    program, _ = _program({name: REFUSED[name]})
    nodes = [node for node in program.graph.nodes if operator_name(node) == name]
    assert nodes
    assert all(known_fault(node) for node in nodes)
    with pytest.raises(EngineBuildFailed):
        BACKEND.build(program, {})


def test_every_fault_is_tested() -> None:
    assert FAULTS.keys() == WRONG.keys() | REFUSED.keys() | UNSHOWN.keys()
