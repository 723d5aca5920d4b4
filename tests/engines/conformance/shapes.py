"""Moves, layouts, sizes and state."""

from __future__ import annotations

from typing import Any

import torch
from tests.engines.conformance.case import Case
from torch.export import Dim

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
)  # fmt: skip
COMMON_DTYPES = (torch.float32, torch.bool, torch.int32)


def _sample(dtype: torch.dtype) -> torch.Tensor:
    """Tensor [2, 3] of a dtype, with the values that are easily lost."""
    if dtype is torch.bool:
        return torch.tensor([[True, False, True], [False, False, True]])
    if dtype.is_complex:
        return torch.tensor([[1 + 2j, -1j, 0], [3, 4, 5]], dtype=dtype)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return torch.tensor([[limits.min, limits.max, 0], [1, 2, 77]], dtype=dtype)
    if dtype.itemsize == 1:
        return torch.tensor([[1.0, -2.0, 0.5], [0.0, 4.0, 8.0]]).to(dtype)
    return torch.tensor([[torch.finfo(dtype).max, float("inf"), float("nan")], [-0.0, 0.1, -3.5]]).to(dtype)


def outputs_of_many_kinds(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values that are computed, inputs, views, and each of them twice."""
    z = x + y
    return y, x, z, y, x, z, x * 2 + y, torch.relu(x), x.view(2, -1)


def _views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y.t(), y[1:], y.view(-1), y.permute(1, 0)[::2], y.unsqueeze(0).expand(3, 4, 5), y[0, 0]


def _layouts() -> list[torch.Tensor]:
    base = torch.arange(120.0).reshape(4, 5, 6)
    strided = base[1:4:2, 1:, ::3]
    layouts = [
        strided.clone(), strided, base.permute(0, 2, 1)[:2, :4, :2], torch.ones(1, 1, 2).expand(2, 4, 2),
        torch.arange(40.0).as_strided((2, 4, 2), (2, 3, 1)), torch.arange(17.0)[1:].view(2, 4, 2),
        torch.view_as_complex(torch.randn(2, 4, 2, 2)).conj().imag, torch.randn(2, 4, 2, requires_grad=True),
    ]  # fmt: skip
    with torch.inference_mode():
        layouts.append(torch.randn(2, 4, 2))
    return layouts


class State(torch.nn.Module):
    """State of every kind: registered or not, strided, repeated, tied, empty, of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(300, 4).t())
        self.square = torch.nn.Parameter(torch.randn(20, 20))
        self.tied = self.square
        self.register_buffer("scale", torch.randn(600).bfloat16())
        self.register_buffer("hidden", torch.arange(2000) % 3 == 0, persistent=False)
        self.register_buffer("count", torch.arange(600) * 2**33)
        self.register_buffer("part", torch.randn(40, 40)[3:9, ::2])
        self.register_buffer("repeated", torch.randn(1, 700).expand(3, 700))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.plain = torch.randn(600).half()
        self.number = torch.randn(())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ self.weight
        return (
            product, product[:, :20] @ self.square @ self.tied * self.number, self.scale + x[0, 0].bfloat16(), self.hidden.logical_not(),
            self.part * x[0, 0], self.repeated - x[0, 0], torch.cat([self.nothing, x[:, :3]]), self.count.view(2, -1),
            self.plain.view(2, -1), x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
        )  # fmt: skip


def _corners(low: int, high: int) -> Case:
    """Sizes at both ends of their ranges."""
    weight = torch.randn(6, 4)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.relu(x @ weight) @ y
        return z, z.t(), torch.cat([x, x]), y.sum(), x.mean(1)

    dims = ({0: Dim(f"rows_{low}_{high}", min=low, max=high)}, {1: Dim(f"more_{low}_{high}", min=1, max=9)})
    sizes = [(high - 1, 5), *((n, m) for n in (high, low, max(low, 1), high) for m in (1, 9, 2))]
    calls = tuple((torch.randn(n, 6), torch.randn(4, m)) for n, m in sizes)
    return Case(function, calls, dims, 1e-5, required=True)


def _sizes_inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns, width = x.shape
    flat = x.reshape(rows * columns, width)
    return torch.relu(flat).view(rows, columns, 2, width // 2).transpose(1, 2), flat + 1


def _sizes_worked_out(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    b, t, _ = x.shape
    product = torch.relu(x.reshape(b * t, 8)) + 1
    difference = torch.relu(x[:, : t - 1] * 2).reshape(b * (t - 1), 8) + 1
    quotient = torch.relu(x.view(b, t // 2, 2, 8)) * 2
    return product, difference, quotient, torch.relu(x).tile(b + t, 1, 1) + 1


def _square(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x @ y, x.t() + y, x.sum(1) * y, torch.cat([x, y[None]]), x[:, :1] - y


def _dynamic() -> dict[str, Case]:
    rows, columns = Dim("inside_rows", min=1, max=9), Dim("inside_columns", min=1, max=9)
    b, t, n, m = Dim("b", min=1, max=7), Dim("t", min=3, max=5), Dim("n", min=0, max=7), Dim("m", min=0, max=5)
    return {
        **{f"sizes from {low} to {high}": _corners(low, high) for low, high in [(1, 64), (0, 8), (2, 5)]},
        "sizes worked out inside": Case(
            _sizes_inside,
            tuple((torch.randn(n, m, 8),) for n, m in [(3, 4), (1, 1), (9, 1), (1, 9), (9, 9)]),
            ({0: rows, 1: columns},),
            required=True,
        ),
        "arithmetic on sizes": Case(
            _sizes_worked_out,
            tuple((torch.randn(b, t, 8),) for b, t in [(3, 8), (1, 6), (7, 10), (7, 6)]),
            ({0: b, 1: 2 * t},),
            required=True,
        ),
        "one size in several places": Case(
            _square,
            tuple((torch.randn(n, n), torch.randn(n)) for n in (3, 7, 1, 2, 0)),
            ({0: n, 1: n}, {0: n}),
            1e-5,
            required=True,
        ),
        "reductions of no rows": Case(
            lambda x, flags: (
                x.sum(0),
                x.prod(0),
                flags.any(0),
                flags.all(0),
                x.softmax(0),
                x.cumsum(0),
                x.sum(),
                flags.any(),
                x.amax(1),
                x.mean(1),
                x.var(1),
                flags.any(1),
                x.max(1)[0],
                x.argmax(1),
                x.sort(1)[0],
                x.softmax(1),
            ),
            tuple((x := torch.randn(m, 4), x > 0) for m in (3, 5, 1, 0)),
            ({0: m}, {0: m}),
            1e-5,
        ),
    }


def _empties() -> dict[str, Case]:
    return {
        f"shape {shape}": Case(
            lambda x, flags: (x * 2, torch.relu(x), torch.where(flags, x, x + 1), flags, x.sum()),
            ((x := torch.ones(shape), x > 0),),
            required=True,
        )
        for shape in [(), (0,), (0, 3), (2, 0, 3), (1, 1)]
    }


def shape_cases() -> dict[str, Case]:
    """Cases of moves, layouts, sizes and state."""
    unused: list[Any] = [torch.zeros(2, dtype=torch.bfloat16), torch.zeros((), dtype=torch.bool), torch.zeros(0, 3)]
    return {
        **{
            f"moves of {str(dtype).removeprefix('torch.')}": Case(
                lambda x, y: (x.t(), y[:, 1:], torch.cat([x.t(), y.t()])),
                ((_sample(dtype), _sample(dtype)),),
                required=dtype in COMMON_DTYPES,
                signs=True,
            )
            for dtype in DTYPES
        },
        **_empties(),
        **_dynamic(),
        "products over nothing": Case(
            lambda a, b, c: (a @ b, torch.cat([c, c])),
            ((torch.ones(3, 0), torch.ones(0, 2), torch.ones(0, 4)),),
        ),
        "inputs of any layout": Case(
            lambda x: (x + 1, x.reshape(8, 2)), tuple((layout,) for layout in _layouts()), required=True
        ),
        "unused inputs": Case(
            lambda a, x, b, y, c: x - 2 * y,
            ((unused[0], torch.randn(3), unused[1], torch.randn(3), unused[2]),),
            required=True,
        ),
        "inputs and outputs returned twice": Case(
            outputs_of_many_kinds, ((torch.randn(4), torch.randn(4)),), required=True
        ),
        "many outputs in order": Case(
            lambda x: tuple(x + i for i in reversed(range(40))), ((torch.randn(3),),), required=True
        ),
        "outputs that were views": Case(_views, ((torch.randn(4, 5),),), required=True),
        "state": Case(State().eval(), ((torch.randn(2, 4),),), tolerance=1e-4),
    }
