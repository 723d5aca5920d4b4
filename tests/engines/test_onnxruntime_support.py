"""What ONNX Runtime takes it computes as torch does; hybrids with the rest in torch answer like the model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance import Calls, assert_same, export, load_built, reasons_against
from tests.engines.test_openvino_support import LEFT, TAKEN, Case
from torch.export import Dim

import intarsia
from intarsia.engines.nodes import operator_name
from intarsia.engines.onnxruntime import ONNXRuntimeBackend
from intarsia.errors import PositionError

BACKEND = ONNXRuntimeBackend()
ODD = torch.tensor(
    [
        [nan, 1.0, -2.0, 0.0, -0.0, inf, -inf, 0.5],
        [3.0, nan, 2.5, -2.5, 1e30, -1e30, 5.0, -4.0],
        [-0.5, 1.5, 2, -7, 7, 100, -100, 3.5],
    ]
)
OTHER = torch.tensor(
    [
        [1.0, nan, 2.0, -0.0, 0.0, -inf, inf, 0.5],
        [nan, nan, -2.0, 2.0, 3.0, 0.3, 1.0, 1.0],
        [0.5, -1.5, 3, 2, -2, 7, -7, -0.5],
    ]
)
WHOLE = torch.tensor([[2**40 + 5, -7, 3], [0, 8, -(2**40) - 5]])

# They return what `compile` refuses, or draw random numbers.
UNUSABLE = {"max.dim", "min.dim", "topk.default", "scaled_dot_product_attention.default"}
CASES: dict[str, Case] = {
    **TAKEN,
    **{name: case for name, (_, case) in LEFT.items() if name not in UNUSABLE},
    "odd floats": (
        lambda x: (
            x.relu(), x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.sin(), x.tanh(), x.sigmoid(), x.abs(), x.floor(),
            x.round(), x.trunc(), x.sign(), x.reciprocal(), x.erf(), x.expm1(), x.log1p(), x.isnan(), x.isinf(),
            x.square(), x.frac(), F.silu(x), F.elu(x), F.leaky_relu(x), F.softplus(x), F.hardshrink(x),
            F.logsigmoid(x), x.clamp(-1, 1), x.clamp(min=0.0), x.clamp(max=0.0), x.softmax(1), x.nan_to_num(),
        ),
        (ODD,),
    ),
    "odd floats, reduced": (
        lambda x: (
            x.amax(1), x.amin(0), x.max(), x.min(), *x.max(1), *x.min(1), x.argmax(1), x.argmin(1), *x.sort(1),
            *x.topk(3), x.sum(1), x.mean(1), x.prod(1), x.cumsum(1), x.logsumexp(1), x.var(1), x.any(1), x.all(1),
            torch.linalg.vector_norm(x, inf, 1), torch.linalg.vector_norm(x, 2, 1), F.max_pool1d(x, 2),
            F.max_pool2d(x[None], 2, 1), F.adaptive_max_pool1d(x, 2), F.layer_norm(x, (8,)),
        ),
        (ODD,),
    ),
    "odd floats, divided": (
        lambda x, y: (
            x / y, x // 0.3, x % 0.7, x**0.5, x**2, 2**x, 1 / x, torch.remainder(x, y), x.fmod(y), torch.atan2(x, y),
            torch.logaddexp(x, y), torch.maximum(x, y), torch.minimum(x, y), x == y, x != y, x < y, x >= 1,
            torch.where(x > y, x, y), torch.clamp(x, min=y), torch.div(x, y, rounding_mode="floor"),
        ),
        (ODD, OTHER),
    ),
    "casts of odd floats": (lambda x: (x.bool(), x.half(), x.bfloat16(), x.double()), (ODD,)),
    "whole numbers": (
        lambda x: (
            x + x.flip(1), x - 3, 1 - x, x * 3, -x, x.abs(), x.sum(), x.sum(1), x.prod(1), x.amax(1), x.amin(),
            x.max(1)[0], x.argmax(1), x.clamp(-1, 5), x.clamp(min=1), x // 3, x // -3, x % 3, x % -3, torch.fmod(x, 3),
            torch.div(x, 3, rounding_mode="trunc"), torch.div(x, 3, rounding_mode="floor"), x / 3, x**2, x.cumsum(1),
            x.sort(1)[0], x & x.flip(1), x | 5, x ^ x.flip(1), ~x, x << 1, x >> 1, x.sign(), x.square(), x @ x.t(),
            x * 0.5, x > 0.5, x + 0.5, torch.maximum(x, x.flip(1)),
        ),
        (WHOLE,),
    ),
    "whole numbers beyond 53 bits": (
        lambda x: (
            x.sum(), x.sum(0), x.sum(1), x.prod(1), x.cumsum(1), x @ x.t(), torch.einsum("ij->i", x), x.max(),
            x.amin(1), x.int().sum(), x.int().sum(1), x.square(),
        ),
        (torch.tensor([[2**53 + 1, 2, 2], [3, 2**61 + 1, -(2**60)]]),),
    ),
    "mixed numbers": (
        lambda x, i, d: (x + i, x * i, i / 2, x - d, d * i, torch.maximum(x, d), x == i, torch.where(i > 0, x, d)),
        (ODD[2, :3], torch.tensor([1, -2, 3]), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)),
    ),
    "doubles": (
        lambda x: (
            x * 0.1, x.exp(), x.softmax(1), F.layer_norm(x, (3,)), x @ x.t(), x.var(1), F.gelu(x), x.erf(), x + 1e-9,
            torch.softmax(x.float(), 1, dtype=torch.float64), x.new_full((2, 2), 0.1), F.linear(x, x),
        ),
        (torch.linspace(-3, 3, 6, dtype=torch.float64).reshape(2, 3) * 1.123456789,),
    ),
    "odd doubles": (
        lambda x: (x.softmax(0), x.log_softmax(0)),
        (torch.tensor([0, 1, inf, -inf, nan, 3, 4, 5, 1e300, 2, 3, 4, 5, 6], dtype=torch.float64),),
    ),
    "halves": (lambda x: (x + x, x.tanh(), x @ x.t(), x.t(), torch.cat([x, x])), (ODD[2:].half(),)),
    "nothing": (
        lambda x: (
            x.sum(), x.sum(0), x.mean(), x.softmax(1), x.prod(), x.logsumexp(1), torch.relu(x),
            F.group_norm(x[:, :, None], 1), x.any(), x.all(), x.any(0), x.all(0), (x > 0).any(), (x > 0).any(0),
        ),
        (torch.zeros(0, 3),),
    ),
    "no axes": (
        lambda x: (x.amax(), x.max(), x.softmax(0), x.sum(), x.cumsum(0), x.sort()[0], x.argmax(), x.unsqueeze(0)),
        (torch.tensor(2.0),),
    ),
}  # fmt: skip


def _compile(function: Callable[..., Any], inputs: Sequence[torch.Tensor], dims: Any = None) -> torch.fx.GraphModule:
    return intarsia.compile(Calls(function), tuple(inputs), dynamic_shapes=dims, backend="onnxruntime")


# Each of these groups is compared in one hybrid: what takes long is to make one.
_GROUPS: dict[str, list[str]] = {
    "what OpenVINO takes": list(TAKEN),
    "what OpenVINO leaves": sorted(LEFT.keys() - UNUSABLE),
}
_GROUPS |= {name: [name] for name in CASES if name not in TAKEN and name not in LEFT}


@pytest.mark.parametrize("group", _GROUPS)
def test_a_hybrid_answers_like_torch(group: str) -> None:
    cases = [CASES[name] for name in _GROUPS[group]]
    inputs = [value for _, given in cases for value in given]

    def together(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(args)
        return tuple(one for function, given in cases for one in _listed(function(*(next(rest) for _ in given))))

    hybrid = _compile(together, inputs)
    coverage = intarsia.coverage(hybrid)
    assert coverage.failed == (), "supports said that it can be built"
    assert [one for one in coverage.placements if "could not build" in one.reason] == []
    with torch.no_grad():
        found = iter(hybrid(*inputs))
        for name, (function, given) in zip(_GROUPS[group], cases, strict=True):
            expected = [one.contiguous() for one in _listed(function(*given))]
            print(name)  # noqa: T201 - pytest shows it where the next line fails
            tolerance = 1e-12 if name == "doubles" else 2e-5
            assert_same([next(found).contiguous() for _ in expected], expected, tolerance)


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]


REASONS: dict[str, tuple[str, Case]] = {
    "complex": ("does not compute in c64", (torch.abs, (torch.randn(3, dtype=torch.complex64),))),
    "random": ("random", (torch.bernoulli, (torch.rand(3),))),
    "data-dependent": ("depends on data", (lambda a: a[a > 0], (ODD,))),
    "no tensor in": ("no tensor among", (lambda a: torch.full((3,), 2.0) + a, (torch.randn(3),))),
    "unknown": ("not known to torch's exporter", (torch.erfinv, (torch.rand(3),))),
    "half": ("does not compute it in f16", (torch.tanh, (torch.rand(3).half(),))),
    "quotient": ("by a constant", (lambda a: a // a, (torch.tensor([2**63 - 1, -1]),))),
    "dtype of a softmax": ("precision", (lambda a: torch.softmax(a, 0, dtype=torch.float64), (torch.rand(3),))),
    "writing": ("any order", (lambda a, i: a.scatter(0, i, a), (torch.rand(3), torch.tensor([0, 0, 1])))),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str) -> None:
    phrase, (function, inputs) = REASONS[name]
    reasons = reasons_against(BACKEND, export(Calls(function), inputs))
    assert any(phrase in reason for reason in reasons), reasons


def test_what_draws_random_numbers_is_left_to_torch() -> None:
    draws = [
        torch.ops.aten.normal_functional, torch.ops.aten.exponential,
        lambda x: F.dropout(x, 0.5, training=True), torch.rand_like, torch.randn_like,
        lambda x: torch.multinomial(x, 2), lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    ]  # fmt: skip
    for function in draws:
        assert reasons_against(BACKEND, export(Calls(function), (torch.rand(1, 2, 3, 4)[0, 0] + 0.1,)))


READS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, int]]] = {
    "embedding": (lambda a, i: F.embedding(i, a), (0, 2)),
    "index_select": (lambda a, i: a.index_select(1, i), (0, 3)),
    "gather": (lambda a, i: a.gather(1, i.view(1, 2).expand(3, 2)), (0, 3)),
    "index": (lambda a, i: a[i], (-3, 2)),
}


@pytest.mark.parametrize("name", READS)
def test_positions_outside_of_a_tensor_are_refused(name: str) -> None:
    function, (lowest, highest) = READS[name]
    table, index = torch.randn(3, 4), torch.tensor([lowest, highest])
    program = export(
        Calls(function), (table, index), ({0: Dim("rows", min=1, max=9)} if name == "index" else None, None)
    )
    assert reasons_against(BACKEND, program) == []
    engine = load_built(BACKEND, BACKEND.build(program, {}))
    assert_same(engine([table, index]), function(table, index))
    # A size that varies is not known beforehand.
    known = rf"engine input '1': found index {{}}, which is out of bounds .*, expected {lowest} to {highest}"
    message = "ONNX Runtime engine: found position {}, expected " if name == "index" else known
    for wrong in (lowest - 1, highest + 1, -(2**40), 2**40):
        with pytest.raises(PositionError, match=message.format(wrong)):
            engine([table, torch.tensor([0, wrong])])
    assert_same(engine([table, index]), function(table, index))


def test_a_mean_of_nothing_is_not_a_number() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean(), x.mean(0), x.mean(0, keepdim=True), x.mean(1), x[:, :0].mean(1)

    program = export(Calls(function), (torch.ones(3, 4),), ({0: Dim("rows", min=0, max=9)},))
    assert reasons_against(BACKEND, program) == []
    engine = load_built(BACKEND, BACKEND.build(program, {}))
    for rows in (0, 1, 9):
        x = torch.rand(rows, 4)
        assert_same(engine([x]), function(x), 1e-6)


def test_what_is_no_operator() -> None:
    program = export(Calls(lambda a: a.max(0)[0]), (ODD,), ({0: Dim("rows", min=1, max=9)},))
    placeholder, *_, output = program.graph.nodes
    assert BACKEND.supports(placeholder) == "is no operator"
    assert BACKEND.supports(output) == "is no operator"
    assert BACKEND.supports(torch.fx.Graph().call_function(print)) == "is no ATen operator"
    elements = [node for node in program.graph.nodes if node.target is operator.getitem]
    assert [BACKEND.supports(node) for node in elements] == ["ONNX Runtime does not find NaN"]
    assert {operator_name(node.args[0]) for node in elements} == {"max.dim"}
