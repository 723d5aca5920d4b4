"""Numbers that are easily lost: NaN, ties, wide integers, signs, halves."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance.case import Case
from tests.engines.conformance.shapes import DTYPES

torch.manual_seed(0)
_WIDE = torch.tensor([2**40 + 5, -(2**40) - 5, 2**31, -(2**31) - 1, 2**32, 2**53 + 2, 5, 0, -1])
# By name: functions of a tensor of 64-bit integers, most of which need more than 32 bits.
_WIDE_FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "casts": lambda x: (x.float(), x.bool(), x.int(), x.half().float(), x.to(torch.int8), x.double()),
    "comparisons": lambda x: (x == 5, x != x.flip(0), x < 7, x.ge(2**31), x > 2**40),
    "moves": lambda x: (x.view(3, 3).t(), torch.cat([x, x[2:4]]), x[torch.tensor([0, 2, -1])]),
    "where": lambda x: (torch.where(x > 0, x, 0 * x), x.masked_fill(x == 5, 2**35)),
    "arithmetic": lambda x: (x + 1, x * 3, x // 7, x % 7, -x, x - 2**33, x.abs(), x.clamp(-5, 2**33)),
    "reductions": lambda x: (
        x.sum(), x.view(3, 3).sum(1), x.amax(), x.argmax(), x.sort()[0], x.cumsum(0), x.prod(), x.view(3, 3).prod(1),
    ),
    "positions": lambda x: (
        x.float().argmax().unsqueeze(0) + x, x.float().argmax().masked_fill(x.float()[0] > 0, 2**35),
    ),
    "embedding": lambda x: F.embedding(x.clamp(0, 3), torch.arange(16).reshape(4, 4) * 2**33),
    "from floats": lambda x: (x.float() * 1e9).long(),
    "return": lambda x: x,
}  # fmt: skip

_ODD = torch.tensor(
    [
        [nan, 1.0, -2.0, 0.0, -0.0, inf, -inf, 0.5],
        [3.0, nan, 2.5, -2.5, 1e30, -1e30, 5.0, -4.0],
        [-0.5, 1.5, 2, -7, 7, 100, -100, 3.5],
    ]
)
_OTHER = torch.tensor(
    [
        [1.0, nan, 2.0, -0.0, 0.0, -inf, inf, 0.5],
        [nan, nan, -2.0, 2.0, 3.0, 0.3, 1.0, 1.0],
        [0.5, -1.5, 3, 2, -2, 7, -7, -0.5],
    ]
)
_ODD_CASES: dict[str, Case] = {
    "odd floats": Case(
        lambda x: (
            x.relu(), x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.sin(), x.cos(), x.tanh(), x.sigmoid(), x.abs(),
            x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.reciprocal(), x.erf(), x.expm1(), x.log1p(),
            x.atan(), x.isnan(), x.isinf(), x.isfinite(), x.square(), x.frac(), x.nan_to_num(), F.silu(x), F.elu(x),
            F.leaky_relu(x), F.softplus(x), F.hardshrink(x), F.logsigmoid(x), F.hardtanh(x), F.relu6(x),
        ),
        ((_ODD,),), tolerance=2e-5, odd=True,
    ),
    "odd floats, bounded": Case(
        lambda x, y: (
            x.clamp(-1, 1), x.clamp(min=0.0), x.clamp(max=0.0), torch.clamp(x, min=y), torch.maximum(x, y),
            torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y),
        ),
        ((_ODD, _OTHER),), odd=True,
    ),
    "odd floats, reduced": Case(
        lambda x: (
            x.amax(1), x.amin(0), x.max(), x.min(), *x.max(1), *x.min(1), x.argmax(1), x.argmin(1), x.sort(1)[0],
            x.topk(3)[0], x.sum(1), x.mean(1), x.prod(1), x.cumsum(1), x.logsumexp(1), x.var(1), x.any(1), x.all(1),
            x.softmax(1), x.log_softmax(1), x.cummax(1)[0], F.layer_norm(x, (8,)),
            torch.linalg.vector_norm(x, inf, 1), torch.linalg.vector_norm(x, 2, 1),
        ),
        ((_ODD,),), tolerance=2e-5, odd=True,
    ),
    "odd floats, pooled": Case(
        lambda x: (
            F.max_pool1d(x, 2), F.max_pool2d(x[None], 2, 1), F.adaptive_max_pool1d(x, 2), F.avg_pool1d(x, 2),
        ),
        ((_ODD,),), tolerance=2e-5, odd=True,
    ),
    "odd floats, divided": Case(
        lambda x, y: (
            x / y, x // 0.3, x % 0.7, x**0.5, x**2, 2**x, 1 / x, torch.remainder(x, y), x.fmod(y), torch.atan2(x, y),
            torch.logaddexp(x, y), torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"),
        ),
        ((_ODD, _OTHER),), tolerance=2e-5, odd=True,
    ),
    "odd floats, compared": Case(
        lambda x, y: (
            x == y, x != y, x < y, x >= 1, x.logical_not(), torch.where(x > y, x, y), x.masked_fill(x.isnan(), 3.0),
        ),
        ((_ODD, _OTHER),), odd=True,
    ),
    "odd floats, multiplied": Case(
        lambda x, y: (x @ y.t(), x[:, :4] @ torch.zeros(4, 2), x * 0, x + y, x - y, x * y, x - x),
        ((_ODD, _OTHER),), tolerance=2e-5, odd=True,
    ),
    "signs of zeros": Case(
        lambda x, y: (
            -x, x + y, x - y, x * y, x * -1.0, x / 3.0, x.abs(), x.sqrt(), x.floor(), x.ceil(), x.round(), x.trunc(),
            x.sin(), x.tan(), x.tanh(), x.atan(), x.asin(), x.erf(), x.expm1(), x.log1p(), torch.where(y > 0, x, y),
            torch.cat([x, y]), x.masked_fill(y > 0, -0.0), x.double(), 1.0 / (x * 1.0), torch.copysign(y, x),
        ),
        ((torch.tensor([0.0, -0.0, -0.4, 0.4, -0.0]), torch.tensor([1.0, 0.0, -0.0, -0.0, -0.0])),),
        tolerance=2e-6, odd=True, signs=True,
    ),
    "casts of odd floats": Case(
        lambda x, y: (
            x.bool(), x.half(), x.bfloat16(), x.double(), y.float(), y.half(), y.bfloat16(), y.bool(), x.half().bool(),
        ),
        ((_ODD, _ODD.double() * 1e300),), odd=True, signs=True,
    ),
    "attention to nothing": Case(
        lambda q, m: (
            F.scaled_dot_product_attention(q, q, q, m), F.scaled_dot_product_attention(q, q, q, m.float().log()),
        ),
        ((torch.randn(2, 3, 4, 8), torch.tensor([[True, True, False, False]] * 3 + [[False] * 4])),),
        tolerance=2e-5, odd=True,
    ),
}  # fmt: skip

_SMALL = torch.tensor([[7, -7, 3, -3, 0, 1], [100, -100, 8, -8, 2, -1]])
_DIVISORS = torch.tensor([[2, 2, -2, -2, 5, -1], [-3, 3, 3, -3, 7, 1]])


def _integer_arithmetic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x // 3, x // -3, x % 3, x % -3, torch.fmod(x, 3), torch.fmod(x, -3), torch.div(x, 3, rounding_mode="trunc"),
        torch.div(x, 3, rounding_mode="floor"), x // y, x % y, torch.fmod(x, y), torch.remainder(x, y),
        torch.div(x, y, rounding_mode="trunc"), torch.div(x, y, rounding_mode="floor"), x / 3, x / y,
        x + y, x - 3, 1 - x, x * 3, x * y, -x, x.abs(), x.sign(), x.square(), x**2, x @ y.t(),
        x * 0.5, x > 0.5, x + 0.5, x.clamp(-5, 5), x.clamp(min=1), torch.maximum(x, y), torch.minimum(x, y),
        torch.where(x > y, x, y), x.sum(), x.sum(1), x.prod(1), x.cumsum(1), x.amax(1), x.amin(), x.max(1)[0], x.argmax(1), x.argmin(0),
        x.sort(1)[0], x.any(1), x.all(1), x == 7, x != y, x < y, x.bool(),
    )  # fmt: skip


def _bits(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x & y, x | 5, x ^ y, ~x, x << 1, x >> 1, x << y.abs(), x >> y.abs()


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_TIES = torch.tensor([[1.0, 5, 5, 2, 1, 5], [3, 3, 3, 3, 3, 3], [-1, -1, 0, 0, -1, -1]])
_HALVES = torch.tensor([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 2.4999998, 8388609.0, 0.05, 0.25, -1234.5])

_PLAIN_CASES: dict[str, Case] = {
    **{f"integers beyond 32 bits: {name}": Case(each, ((_WIDE,),)) for name, each in _WIDE_FUNCTIONS.items()},
    **{
        f"integers of {str(dtype).removeprefix('torch.')}": Case(
            _integer_arithmetic, ((_SMALL.to(dtype), _DIVISORS.to(dtype)),), tolerance=1e-6
        )
        for dtype in _INTEGERS
    },
    "bits": Case(
        lambda x, y, a, b: (*_bits(x, y), *_bits(a, b)),
        ((_SMALL, _DIVISORS, _SMALL.to(torch.int32), _DIVISORS.to(torch.int32)),),
    ),
    "integers that wrap": Case(
        lambda x, y: (x + 1, x * 3, x - y, x.sum(), -x, y * y, y + y, y.sum()),
        ((torch.tensor([2**31 - 1, -(2**31), 5], dtype=torch.int32), torch.tensor([127, -128, 3], dtype=torch.int8)),),
    ),
    "integers that meet floats": Case(
        lambda x, i, d: (
            x + i, x * i, i / 2, x - d, d * i, torch.maximum(x, d), x == i, torch.where(i > 0, x, d), i * 2.5,
            i > 0.5, torch.cat([x, d]), i.add(x, alpha=2),
        ),
        ((torch.tensor([2.0, -7, 0.5]), torch.tensor([1, -2, 3]), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)),),
        tolerance=1e-7,
    ),
    "ties": Case(
        lambda x: (
            x.argmax(1), x.argmin(1), x.argmax(), x.argmin(0), *x.max(1), *x.min(1), x.topk(3)[0],
            x.topk(2, largest=False)[0], x.sort(1)[0], *x.sort(dim=1, stable=True),
            *x.sort(dim=1, descending=True, stable=True), x.argsort(dim=1, stable=True), x.amax(1), x.cummax(1)[0],
        ),
        ((_TIES,),),
    ),
    "halves are rounded to even": Case(
        lambda x: (x.round(), x.round(decimals=1), x.floor(), x.ceil(), x.trunc(), x.frac(), x.int(), x.long()),
        ((_HALVES,),), tolerance=1e-7,
    ),
    "numbers are rounded to even in the narrower dtypes": Case(
        lambda x, d: (x.half(), x.bfloat16(), x.half().float(), x.bfloat16().float(), d.float(), d.half()),
        ((
            torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65504.0, 1e-7, -1e-7, 0.1]),
            torch.tensor([1 + 2**-24, 1 + 3 * 2**-24, 1 + 2**-11 + 2**-40, 0.1], dtype=torch.float64),
        ),),
    ),
    "casts of negative numbers": Case(
        lambda x, i: (
            x.int(), x.long(), x.to(torch.int8), x.to(torch.int16), x.half(), x.bool(), i.float(), i.to(torch.int8),
            i.to(torch.int16), i.to(torch.uint8), i.int(), i.bool(), i.double(),
        ),
        ((torch.tensor([-2.75, -0.5, -77.9, 0.3, -0.0]), torch.tensor([-1, -300, 300, -77, 2**31 + 5])),),
    ),
    "doubles": Case(
        lambda x: (
            x * 0.1, x.exp(), x.softmax(1), F.layer_norm(x, (3,)), x @ x.t(), x.var(1), F.gelu(x), x.erf(), x + 1e-9,
            torch.softmax(x.float(), 1, dtype=torch.float64), x.new_full((2, 2), 0.1), F.linear(x, x), x.sum(1), x / 3,
            x.sin(), x.log1p(), x.sort(1)[0], x > 0.1, x.clamp(-0.1, 0.1), x.float(), x.mean(), x.tanh(), x.sqrt(),
        ),
        ((torch.linspace(-3, 3, 6, dtype=torch.float64).reshape(2, 3) * 1.123456789,),), tolerance=1e-12,
    ),
    "quotients just below a whole number": Case(
        lambda x, y: (
            x // y, x // 0.1, torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"), x % y,
            x % 0.1, torch.remainder(x, -0.1), torch.fmod(x, y), torch.fmod(x, 0.1),
        ),
        ((torch.tensor([1.0, 0.7, 6.0, -1.0, 1e30, -1e30]), torch.tensor([0.1, 0.1, 0.1, 0.1, 3.0, 0.3])),),
        tolerance=1e-6,
    ),
    "long sums": Case(
        lambda x, y: (x.sum(1), x.mean(), x.cumsum(1)[:, -1], y.sum(1), x.var(1), (x @ x.t()) / 4096),
        ((torch.rand(3, 4096) + 1, torch.full((2, 2048), 0.1)),), tolerance=1e-4,
    ),
}  # fmt: skip


def _computes(dtype: torch.dtype) -> Case:
    x = torch.linspace(-3, 3, 24).reshape(2, 12).to(dtype)
    return Case(
        lambda x: (torch.tanh(x) * 2 + x, x.sum(1), x @ x.t(), x.softmax(1), x.mean(1), x.exp(), x.sigmoid()),
        ((x,),), tolerance=20 * torch.finfo(dtype).eps,
    )  # fmt: skip


def _casts(dtype: torch.dtype) -> Case:
    values = [0, 1, 2, 77, 100] if not dtype.is_floating_point else [0.0, 1.5, 2.75, 77.0, 100.0]
    targets = [target for target in DTYPES if target is not dtype and not target.is_complex]
    return Case(lambda x: tuple(x.to(target) for target in targets), ((torch.tensor(values).to(dtype),),))


def value_cases() -> dict[str, Case]:
    """Cases of numbers."""
    floats = [dtype for dtype in DTYPES if dtype.is_floating_point and dtype.itemsize > 1]
    real = [dtype for dtype in DTYPES if not dtype.is_complex]
    return {
        **_PLAIN_CASES,
        **_ODD_CASES,
        **{f"computes in {str(dtype).removeprefix('torch.')}": _computes(dtype) for dtype in floats},
        **{f"casts of {str(dtype).removeprefix('torch.')}": _casts(dtype) for dtype in real},
    }
