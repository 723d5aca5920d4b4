"""Operators of many kinds, in f32 for the most part: such as most backends take, and such as some library gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance.case import Arguments, Case

torch.manual_seed(0)
_ATTENTION = F.scaled_dot_product_attention
_CUBE, _IMAGE = torch.randn(3, 4, 5), torch.randn(2, 6, 9, 10)
_TRUTHS = (_CUBE > 0, _CUBE > 0.3)
_BACKWARDS = torch.tensor([-1, 0, -2])
_MASK = torch.tensor([[i >= j for j in range(5)] for i in range(7)])

Call = tuple[Callable[..., Any], Arguments]

COMMON: dict[str, Call] = {
    "products": (
        lambda a, b, w, c: (
            F.linear(a, w, c), F.linear(a, w), a @ b.transpose(1, 2), a @ b[0].t(), a[0, 0] @ b[0].t(),
            torch.einsum("bij,bkj->bik", a, b),
        ),
        (_CUBE, torch.randn(3, 6, 5), torch.randn(7, 5), torch.randn(7)),
    ),
    "norms": (
        lambda a, w: (
            F.layer_norm(a, (10,)), F.layer_norm(a, (9, 10), eps=1e-3), F.group_norm(a, 3), F.instance_norm(a),
            F.batch_norm(a, w.abs(), w.abs() + 1, w, w), F.rms_norm(a, (10,)),
        ),
        (_IMAGE, torch.randn(6)),
    ),
    "convolutions": (
        lambda a, w, b: (
            F.conv2d(a, w, b), F.conv2d(a, w, None, stride=2, padding=1), F.conv2d(a, w, b, dilation=2, padding=(1, 2)),
            F.conv2d(a, w, padding="same"), F.conv1d(a[:, :, 0], w[:, :, 0], b, padding=1),
            F.conv3d(a[:, :, None], w[:, :, None]), F.conv2d(a, w[:, :3], groups=2),
        ),
        (_IMAGE, torch.randn(4, 6, 3, 3), torch.randn(4)),
    ),
    "transposed convolutions": (
        lambda a, w: (
            F.conv_transpose2d(a, w, stride=2, padding=1, output_padding=1),
            F.conv_transpose1d(a[:, :, 0], w[:, :, 0]),
        ),
        (_IMAGE, torch.randn(6, 4, 3, 3)),
    ),
    "pools": (
        lambda a: (
            F.max_pool2d(a, 3, 2, 1), F.max_pool1d(a[0], 2), F.avg_pool2d(a, 3, 2, 1, count_include_pad=False),
            F.avg_pool1d(a[0], 3, 2), F.adaptive_avg_pool2d(a, 1), F.adaptive_avg_pool2d(a, (3, 5)),
            F.adaptive_avg_pool2d(a.mT, 1), F.adaptive_avg_pool2d(a[0].permute(1, 2, 0), 1),
            F.adaptive_avg_pool1d(a[0, :, :, :1], 1), F.adaptive_avg_pool1d(a[0].mT, 2),
            F.adaptive_avg_pool2d(a.permute(0, 3, 1, 2), (1, 2)),
            F.adaptive_max_pool2d(a, 2), F.adaptive_avg_pool1d(a[0], 2),
            *F.max_pool2d(a, 2, return_indices=True),
        ),
        (_IMAGE,),
    ),
    "resizing": (
        lambda a: (
            F.interpolate(a, scale_factor=2), F.interpolate(a, (7, 13)), F.pixel_shuffle(a[:, :4], 2),
            F.interpolate(a, scale_factor=2, mode="bilinear"), F.interpolate(a, scale_factor=2, mode="bicubic"),
            F.interpolate(a, (7, 13), mode="bilinear", align_corners=True),
        ),
        (_IMAGE,),
    ),
    "activations": (
        lambda a: (
            F.elu(a), F.selu(a), F.celu(a, 0.7), F.leaky_relu(a, 0.2), F.relu6(a), F.silu(a), F.mish(a),
            F.hardswish(a), F.glu(a[:, :, :4]), F.softplus(a, 2.0, 1.0), F.hardshrink(a),
            F.threshold(a, 0.1, 20.0), F.gelu(a), F.gelu(a, approximate="tanh"), F.softshrink(a),
            F.prelu(a, torch.tensor([0.2])), a.softmax(1), F.log_softmax(a, -1),
        ),
        (_CUBE,),
    ),
    "elementwise": (
        lambda a: (
            a.square(), a.atan(), a.expm1(), a.diff(), torch.add(a, a, alpha=2),
            torch.rsub(a, a, alpha=3), a**2, 2**a, a**-1, a.clamp(-0.5, 0.5), 1 - a,
        ),
        (_CUBE,),
    ),
    "attention": (
        lambda q, k, m: (
            _ATTENTION(q, k, k), _ATTENTION(q, k, k, m), _ATTENTION(q, k, k, m.float()), _ATTENTION(q, k, k, scale=0.3),
            _ATTENTION(q, k, k, is_causal=True), _ATTENTION(q, q, q, is_causal=True),
            # Rows that may look at nothing.
            _ATTENTION(q, k, k, ~m), _ATTENTION(q, k, k, (~m).float().log()),
            _ATTENTION(q[0], k[0], k[0], ~m), _ATTENTION(q, k, k, (~m)[:, :1]),
        ),
        (torch.randn(2, 3, 7, 8), torch.randn(2, 3, 5, 8), _MASK),
    ),
    "masks": (
        lambda a, m: (
            torch.where(m, a, 1.0), torch.where(m, 2.0, a), torch.where(m, a, a * 2), a.masked_fill(m, -1e9),
            a.masked_fill(m, float("-inf")).softmax(-1),
        ),
        (_CUBE, (_CUBE > 0.5) & torch.tensor([True, True, True, True, False])),
    ),
    "logic": (
        lambda a, b: (
            a & b, a | b, a ^ b, torch.logical_and(a, b), ~a,
            a.any(), a.all(), a.any(1), a.all(1), a.logical_not(), a == b, a != b,
        ),
        _TRUTHS,
    ),
    "reductions": (
        lambda a: (
            a.mean(), a.mean(1), a.sum((0, 1)), a.prod(1), a.amax((0, 1)), a.logsumexp(1), a.std(1), a.var(0),
            F.normalize(a, dim=1), F.cosine_similarity(a, a + 1), a.cumsum(1), a.max(), a.std((0, 1), unbiased=False),
        ),
        (_CUBE,),
    ),
    "positions": (
        lambda a, ties: (a.argmax(1), a.argmin(), *a.max(1), *a.topk(2), *a.sort(1), ties.argmax(), ties.argmin(0)),
        (_CUBE, torch.tensor([1.0, 5, 5, 2, 1, 5])),
    ),
    "indexing": (
        lambda a, i, j, w: (
            a[i], a[:, i], a[:, j[:, None]], a.index_select(1, j), F.embedding(j, w), a[-1], a[:, ::2],
            a.gather(1, j.view(1, 3, 1).expand(3, 3, 5)), torch.index_put(a, (a > 0,), torch.tensor(2.0)),
        ),
        (_CUBE, torch.tensor([-1, 0, 2]), torch.tensor([1, 0, 2], dtype=torch.int32), torch.randn(5, 3)),
    ),
    "moves": (
        lambda a: (
            a.view(12, 5), *a.chunk(2, 1), a[:, :1].squeeze(), a.mT, a.tile(2), F.pad(a, (1, 2)), a.roll(1, 0),
            a.split([1, 3], 1)[1], a.flip(0, 2), a.repeat(2, 1, 1), torch.stack([a, a]), a.unbind()[1],
        ),
        (_CUBE,),
    ),
    "mixed precision": (
        lambda a, b: (a + b, torch.cat([a, b]), b.float() * a, a @ b.float().mT),
        (_CUBE, _CUBE.half()),
    ),
}  # fmt: skip
"""Functions by what they are, and what they are called with."""

PECULIAR: dict[str, Call] = {
    "_native_batch_norm_legit_functional.default": (
        lambda a, w: torch.ops.aten._native_batch_norm_legit_functional(a, w, w, w, w, True, 0.1, 1e-5)[3:],
        (_IMAGE, torch.rand(6)),
    ),
    "_unsafe_index.Tensor": (lambda a, i: torch.ops.aten._unsafe_index(a, [i, i]), (_CUBE, _BACKWARDS)),
    "adaptive_avg_pool1d.default": (lambda a: F.adaptive_avg_pool1d(a.mT, 1), (_CUBE,)),
    "adaptive_avg_pool2d.default": (
        lambda a: F.adaptive_avg_pool2d(a, 1),
        (_IMAGE.contiguous(memory_format=torch.channels_last),),
    ),
    "amax.default": (lambda a: a.amax(), (_CUBE,)),
    "amin.default": (lambda a: a.amin(), (_CUBE,)),
    "as_strided.default": (lambda a: a.as_strided((2, 3), (1, 2)), (_CUBE,)),
    "as_strided_copy.default": (lambda a: torch.as_strided_copy(a, (2, 3), (1, 2)), (_CUBE,)),
    "avg_pool1d.default": (lambda a: F.avg_pool1d(a[0], 3, 2, 1, ceil_mode=True), (_IMAGE,)),
    "avg_pool2d.default": (lambda a: F.avg_pool2d(a, 3, 2, divisor_override=5), (_IMAGE,)),
    "avg_pool3d.default": (
        lambda a: F.avg_pool3d(a, (6, 3, 4), (2, 3, 2), (3, 1, 0), count_include_pad=False, divisor_override=2),
        (torch.randn(1, 1, 7, 5, 7),),
    ),
    "cumsum.default": (lambda a: a.cumsum(0), (torch.ones(600, dtype=torch.bfloat16),)),
    "div.Tensor_mode": (lambda a: torch.div(a, 0.1, rounding_mode="floor"), (torch.tensor([1.0, 0.7]),)),
    "einsum.default": (lambda a: torch.einsum("bii->bi", a[:, :4, :4]), (_CUBE,)),
    "fmod.Scalar": (lambda a: torch.fmod(a, 0.1), (torch.tensor([1.0]),)),
    "fmod.Tensor": (torch.fmod, (torch.tensor([1.0]), torch.tensor([0.1]))),
    "gather.default": (lambda a, i: a.gather(0, i), (_CUBE, torch.zeros(2, 2, 5, dtype=torch.int64))),
    "index.Tensor": (lambda a, i: a[i, i], (_CUBE, _BACKWARDS)),
    "index_put.default": (
        lambda a, i: torch.index_put(a, (i,), a, accumulate=True),
        (_CUBE, torch.tensor([-1, 2, -1])),
    ),
    "linalg_vector_norm.default": (lambda a: torch.linalg.vector_norm(a, 0, 1), (_CUBE,)),
    "log_sigmoid_forward.default": (lambda a: torch.ops.aten.log_sigmoid_forward(a)[0], (torch.tensor([-100.0]),)),
    "log1p.default": (torch.log1p, (torch.tensor([0.01], dtype=torch.bfloat16),)),
    "max.dim": (lambda a: a.max(0), (torch.tensor(2.0),)),
    "max_pool2d_with_indices.default": (lambda a: F.max_pool2d(a, 3, return_indices=True), (_IMAGE.bfloat16(),)),
    "max_pool3d_with_indices.default": (lambda a: F.max_pool3d(a, 3, return_indices=True), (_IMAGE.bfloat16(),)),
    "min.dim": (lambda a: a.min(0), (torch.tensor(2.0),)),
    "pad.default": (lambda a: F.pad(a, (1, 2), mode="reflect"), (_CUBE,)),
    "scaled_dot_product_attention.default": (lambda q: _ATTENTION(q, q, q, dropout_p=0.5), (_IMAGE,)),
    "split.Tensor": (lambda a: a.split(3, 1), (_CUBE,)),
    "std.correction": (lambda a: a.std(1, correction=2), (_CUBE,)),
    "topk.default": (lambda a: a.topk(1), (torch.tensor(2.0),)),
    "var.correction": (torch.ops.aten.var.correction, (_CUBE,)),
    "var_mean.correction": (torch.ops.aten.var_mean.correction, (_CUBE,)),
}
"""Functions by the operator that a library gets wrong in them, with these arguments or with any."""


def operator_cases() -> dict[str, Case]:
    """Cases of operators."""
    calls = COMMON | {f"{name}, peculiar": call for name, call in PECULIAR.items()}
    return {name: Case(function, (inputs,), tolerance=2e-5) for name, (function, inputs) in calls.items()}
