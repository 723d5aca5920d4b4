"""What OpenVINO takes it computes as torch does; what it gets wrong stays in torch, with the reason."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance import Calls, assert_same, export
from tests.engines.conformance.operators import COMMON, PECULIAR
from torch.export import Dim

from intarsia.engines.nodes import operator_name
from intarsia.engines.openvino import OpenVINOBackend
from intarsia.engines.openvino.faults import FAULTS
from intarsia.engines.openvino.table import ADDED, is_listed
from intarsia.errors import EngineBuildFailed

BACKEND = OpenVINOBackend()
ATTENTION = F.scaled_dot_product_attention
torch.manual_seed(0)
CUBE, IMAGE = torch.randn(3, 4, 5), torch.randn(2, 6, 9, 10)
MASK = torch.tensor([[i >= j for j in range(5)] for i in range(7)])

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

TAKEN: dict[str, Case] = COMMON
PHRASES = {
    "_native_batch_norm_legit_functional.default": "does not convert",
    "_unsafe_index.Tensor": "several axes",
    "adaptive_avg_pool1d.default": "side by side",
    "adaptive_avg_pool2d.default": "side by side",
    "amax.default": "without axes",
    "amin.default": "without axes",
    "as_strided.default": "does not convert",
    "as_strided_copy.default": "does not convert",
    "avg_pool1d.default": "outside",
    "avg_pool2d.default": "divisor",
    "avg_pool3d.default": "borders",
    "cumsum.default": "bf16",
    "div.Tensor_mode": "quotients",
    "einsum.default": "diagonals",
    "fmod.Scalar": "quotients",
    "fmod.Tensor": "quotients",
    "gather.default": "other sizes",
    "index.Tensor": "several axes",
    "index_put.default": "accumulates",
    "linalg_vector_norm.default": "order 0",
    "log_sigmoid_forward.default": "overflows",
    "log1p.default": "rounds",
    "max.dim": "without axes",
    "max_pool2d_with_indices.default": "in f32 only",
    "max_pool3d_with_indices.default": "in f32 only",
    "min.dim": "without axes",
    "pad.default": "wrong elements",
    "scaled_dot_product_attention.default": "drops",
    "split.Tensor": "equal parts",
    "std.correction": "correction",
    "topk.default": "without axes",
    "var.correction": "correction",
    "var_mean.correction": "correction",
}
LEFT: dict[str, tuple[str, Case]] = {name: (phrase, PECULIAR[name]) for name, phrase in PHRASES.items()}

REASONS: dict[str, tuple[str, Case]] = {
    "double": ("does not compute in f64", (torch.sin, (CUBE.double(),))),
    "complex": ("does not compute in c64", (torch.abs, (torch.randn(3, dtype=torch.complex64),))),
    "random": ("random", (torch.bernoulli, (torch.rand(3),))),
    "data-dependent": ("depends on data", (lambda a: a[a > 0], (CUBE,))),
    "no tensor in": ("no tensor among", (lambda a: torch.full((3,), 2.0) + a, (torch.randn(3),))),
    "pool beyond the border": (
        "partly outside",
        (lambda a: F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), (torch.randn(1, 1, 4, 4),)),
    ),
    "inner product": ("inner products", (lambda a: torch.einsum("bij,bij", a, a), (CUBE,))),
    "grouped heads": ("groups heads", (lambda q: ATTENTION(q, q[:, :3], q[:, :3], enable_gqa=True), (IMAGE,))),
    "overflow": ("not known to OpenVINO", (F.logsigmoid, (torch.tensor([-100.0]),))),
    "unknown": ("not known to OpenVINO", (torch.erfinv, (CUBE,))),
    "wide product": ("integer arithmetic", (lambda a: a * 3, (torch.tensor([2**40]),))),
    "floor division": ("integer arithmetic", (lambda a: a // 2, (torch.tensor([2**31 - 1], dtype=torch.int32),))),
    "narrow product": ("integer arithmetic", (lambda a: a @ a, (torch.full((2, 2), 100, dtype=torch.int8),))),
    "wide comparison": ("64-bit integers in 32 bits", (lambda a: a == 5, (torch.tensor([2**32 + 5]),))),
    "wide view": ("64-bit integers in 32 bits", (lambda a: a.view(1, 1), (torch.tensor([2**32 + 5]),))),
    "fraction": ("with a fraction", (lambda a: a < 0.5, (torch.tensor([0, 1], dtype=torch.int32),))),
    "nan to bool": ("casts NaN", (lambda a: a.bool(), (torch.tensor([float("nan")]),))),
    "float to wide": ("64-bit integers in 32 bits", (lambda a: a.long(), (torch.tensor([1e12]),))),
    "to half": ("does not round to f16", (lambda a: a.half(), (CUBE,))),
    "integers for a mask": ("integer arithmetic", (lambda a: a & a, (torch.tensor([3]),))),
    "writing at positions": ("does not check", (lambda a, i: a.index_copy(0, i, a), (CUBE, torch.tensor([0, 2, 1])))),
    "writing one number where a mask of the rows says": (
        "by masks only",
        (lambda a, m: torch.index_put(a, (m,), a.new_zeros(())), (CUBE, CUBE[:, 0, 0] > 0)),
    ),
    "writing numbers where a mask says": (
        "by masks only",
        (lambda a, m, v: torch.index_put(a, (m,), v), (CUBE, CUBE.amax((1, 2), keepdim=True) == CUBE, torch.ones(3))),
    ),
    "writing where a u8 mask says": ("u8 mask", (lambda a, m: torch.index_put(a, (m,), a), (CUBE, MASK[2, :3].byte()))),
    "reading at computed positions": (
        "an engine computes",
        (lambda a, w: F.embedding(a.argmax(1), w), (CUBE, torch.randn(4, 2))),
    ),
    "a recurrent layer without dropout": (
        "not known to OpenVINO",
        (
            lambda x, h, w: torch.ops.aten.rnn_tanh.input(x, h, [w, w], False, 1, 0.0, True, False, False)[0],
            (torch.randn(3, 1, 2), torch.randn(1, 1, 2), torch.randn(2, 2)),
        ),
    ),
    "a recurrent layer in evaluation mode": (
        "not known to OpenVINO",
        (
            lambda x, h, w: torch.ops.aten.rnn_tanh.input(x, h, [w, w] * 2, False, 2, 0.5, False, False, False)[0],
            (torch.randn(3, 1, 2), torch.randn(2, 1, 2), torch.randn(2, 2)),
        ),
    ),
    "a recurrent layer with dropout": (
        "draws random numbers",
        (
            lambda x, h, w: torch.ops.aten.rnn_tanh.input(x, h, [w, w] * 2, False, 2, 0.5, True, False, False)[0],
            (torch.randn(3, 1, 2), torch.randn(2, 1, 2), torch.randn(2, 2)),
        ),
    ),
    "empty list": ("empty list", (lambda a: a.expand([]), (torch.tensor(1.0),))),
}


@cache
def _taken(name: str) -> torch.export.ExportedProgram:
    function, inputs = TAKEN[name]
    return export(Calls(function), inputs)


def _operators(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [node for node in nodes if node.target is not operator.getitem]


@pytest.mark.parametrize("name", TAKEN)
def test_common_operators_are_taken(name: str) -> None:
    """The suite that every backend passes sees that they are computed as torch does."""
    reasons = [(operator_name(node), BACKEND.supports(node)) for node in _operators(_taken(name))]
    assert [refused for refused in reasons if refused[1] is not None] == []


def test_every_addition_is_tested() -> None:
    operators = [node for name in TAKEN for node in _operators(_taken(name))]
    tested = {operator_name(node) for node in operators if not is_listed(node)}
    assert tested == ADDED


def _build_and_run(program: torch.export.ExportedProgram, inputs: Sequence[Any]) -> list[torch.Tensor]:
    built = BACKEND.build(program, {})
    return BACKEND.load(memoryview(built.payload), built.options)(inputs)


@pytest.mark.parametrize("name", LEFT)
def test_what_openvino_gets_wrong_is_left_to_torch(name: str) -> None:
    phrase, (function, inputs) = LEFT[name]
    program = export(Calls(function), inputs)
    reasons = [BACKEND.supports(node) or "" for node in _operators(program) if operator_name(node) == name]
    assert reasons, [operator_name(node) for node in _operators(program)]
    assert all(phrase in reason for reason in reasons)
    with pytest.raises(Exception, match=r".+"):  # an error or another result: else the fault is gone
        assert_same(_build_and_run(program, inputs), function(*inputs), 1e-3)


def test_every_fault_is_tested() -> None:
    assert FAULTS.keys() == LEFT.keys() | {"expand.default"} | CONSTANTS.keys()


CONSTANTS = {
    "new_full.default": lambda a, sizes: a.new_full(sizes, 2.0),
    "new_ones.default": lambda a, sizes: a.new_ones(sizes),
    "new_zeros.default": lambda a, sizes: a.new_zeros(sizes),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_tensor_of_a_symbolic_size(name: str) -> None:
    function, sizes = CONSTANTS[name], ({0: Dim("rows", min=1, max=9)},)
    for dynamic in (sizes, None):
        program = export(Calls(lambda a: a + function(a, (a.shape[0], 1))), (torch.randn(3, 4),), dynamic)
        reasons = {operator_name(node): BACKEND.supports(node) for node in _operators(program)}
        assert (reasons[name] or "").startswith("OpenVINO does not convert it with a symbolic size") is bool(dynamic)
        if dynamic:
            with pytest.raises(EngineBuildFailed):  # else the fault is gone
                BACKEND.build(program, {})


def test_arithmetic_on_sizes() -> None:
    shape = torch.fx.Graph()
    x = shape.placeholder("x")
    program = export(Calls(lambda a: a.view(a.shape[0] * 2 + 1 - 1, -1)), (torch.randn(3, 4),), ({0: Dim("b", min=2)},))
    size = program.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0]
    x.meta["val"] = size
    taken = [shape.call_function(target, (x, 2)) for target in (operator.mul, operator.add, operator.floordiv)]
    others = [shape.call_function(target, (x, 2)) for target in (operator.mod, operator.pow, torch.sym_max)]
    for node in (*taken, *others):
        node.meta["val"] = size
    assert [BACKEND.supports(node) for node in taken] == [None, None, None]
    assert {BACKEND.supports(node) for node in others} == {"OpenVINO does not compute a size so"}
    taken[0].meta["val"] = torch.empty(2)
    assert BACKEND.supports(taken[0]) == "is no ATen operator"


def test_minus_one_beside_a_symbolic_size() -> None:
    program = export(
        Calls(lambda a, b: a.expand(b.shape[0], -1) + b), (torch.randn(1, 4), torch.randn(3, 4)),
        (None, {0: Dim("rows", min=1, max=9)}),
    )  # fmt: skip
    reasons = {operator_name(node): BACKEND.supports(node) for node in _operators(program)}
    assert "symbolic size" in (reasons["expand.default"] or "")
    assert reasons["add.Tensor"] is None


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str) -> None:
    phrase, (function, inputs) = REASONS[name]
    reasons = [BACKEND.supports(node) for node in _operators(export(Calls(function), inputs))]
    assert any(phrase in (reason or "") for reason in reasons), reasons


def test_what_is_no_operator() -> None:
    program = export(Calls(lambda a: a.max(0)[0]), (CUBE,), ({0: Dim("rows", min=1, max=9)},))
    placeholder, *_, output = program.graph.nodes
    assert BACKEND.supports(placeholder) == "is no operator"
    assert BACKEND.supports(output) == "is no operator"
    graph = torch.fx.Graph()
    assert BACKEND.supports(graph.call_function(print)) == "is no ATen operator"
    size = graph.call_function(torch.ops.aten.sym_size.int, (graph.placeholder("x"), 0))
    size.meta["val"] = 3
    assert BACKEND.supports(size) == "returns something else than tensors"


def test_an_element_follows_its_operator() -> None:
    program = export(Calls(lambda a: (a.max(1), a.double().max(1))), (CUBE,))
    elements = [node for node in program.graph.nodes if node.target is operator.getitem]
    assert [BACKEND.supports(node) is None for node in elements] == [True, True, False, False]


def test_an_operator_that_writes_is_left_to_torch() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    node = graph.call_function(torch.ops.aten.add_.Tensor, (x, x))
    node.meta["val"] = torch.empty(3)
    assert BACKEND.supports(node) == "writes its arguments"


class Looks(torch.nn.Module):
    """Reads and writes at positions that are a buffer, an input, or both, in one tensor."""

    def __init__(self, positions: list[int]) -> None:
        super().__init__()
        self.register_buffer("positions", torch.tensor(positions))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = x.index_copy(0, self.positions, x[:2] * 2), x.scatter(0, self.positions[:, None], 7.0)
        return *kept, F.embedding(self.positions.expand(3, -1), table), table[self.positions]


def _reasons_in(program: torch.export.ExportedProgram) -> dict[str, str | None]:
    module = program.module(check_guards=False)
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and "copy_." not in str(node.target)]
    return {operator_name(node): BACKEND.supports(node) for node in nodes}


def test_constant_positions_in_range_are_taken() -> None:
    model, inputs = Looks([2, 0]), (torch.randn(3, 4), torch.randn(5, 4))
    program = export(model, inputs)
    reasons = _reasons_in(program)
    assert [reasons[name] for name in ("index_copy.default", "scatter.value", "embedding.default", "index.Tensor")] == [
        None,
        None,
        None,
        None,
    ]
    built = BACKEND.build(program, {})
    assert "positions" not in built.options
    assert_same(BACKEND.load(memoryview(built.payload), built.options)(inputs), model(*inputs))


@pytest.mark.parametrize("positions", [[2, 3], [-1, 0], [0, 2**32]])
def test_constant_positions_out_of_range_are_left_to_torch(positions: list[int]) -> None:
    reasons = _reasons_in(export(Looks(positions), (torch.randn(3, 4), torch.randn(3, 4))))
    for name in ("index_copy.default", "scatter.value"):
        assert reasons[name] == "writes at positions, which OpenVINO does not check"


def test_state_that_is_written_is_no_constant() -> None:
    class Moving(Looks):
        def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = super().forward(x, table)
            self.positions.copy_(self.positions.flip(0))
            return results

    reasons = _reasons_in(export(Moving([2, 0]), (torch.randn(3, 4), torch.randn(5, 4))))
    assert reasons["index_copy.default"] == "writes at positions, which OpenVINO does not check"


def test_positions_along_a_dynamic_size_are_left_to_torch() -> None:
    rows = {0: Dim("rows", min=2, max=9)}
    program = export(Calls(lambda a, i: a[i]), (CUBE, torch.tensor([0, 1])), (rows, None))
    assert _reasons_in(program)["index.Tensor"] == (
        "reads at positions along a dynamic size, which OpenVINO does not check"
    )


READS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, int]]] = {
    "embedding": (lambda a, i: F.embedding(i, a[:, :, 0]), (0, 2)),
    "index_select": (lambda a, i: a.index_select(1, i), (0, 3)),
    "gather": (lambda a, i: a.gather(2, i.view(1, 1, 2).expand(3, 4, 2)), (0, 4)),
    "index": (lambda a, i: a[i], (-3, 2)),
    "index, narrow": (lambda a, i: a[:, i.view(2, 1).long()], (-4, 3)),
}


@pytest.mark.parametrize("name", READS)
def test_positions_to_read_at_are_checked_before_each_call(name: str) -> None:
    function, (lowest, highest) = READS[name]
    index = torch.tensor([lowest, highest], dtype=torch.int32 if "narrow" in name else torch.int64)
    program = export(Calls(function), (CUBE, index))
    built = BACKEND.build(program, {})
    assert built.source is not None
    assert {BACKEND.supports(node) for node in _operators(program)} <= {
        None,
        "OpenVINO keeps 64-bit integers in 32 bits",
    }
    for engine in (
        BACKEND.load(memoryview(built.payload), built.options),
        BACKEND.rebuild(memoryview(built.source), built.options),
    ):
        assert_same(engine([CUBE, index]), function(CUBE, index))
        for wrong in (lowest - 1, highest + 1, -(2**31), 2**31 - 1):
            bad = torch.tensor([0, wrong]).to(index.dtype)
            with pytest.raises(
                IndexError, match=rf"^engine input '\w+': found index {wrong}, .* expected {lowest} to "
            ):
                engine([CUBE, bad])


def test_no_positions_are_in_range() -> None:
    program = export(Calls(lambda a, i: a[i]), (CUBE, torch.zeros(0, dtype=torch.int64)))
    built = BACKEND.build(program, {})
    inputs = CUBE, torch.zeros(0, dtype=torch.int64)
    assert BACKEND.load(memoryview(built.payload), built.options)(inputs)[0].shape == (0, 4, 5)


def test_positions_computed_inside_are_refused() -> None:
    program = export(Calls(lambda a, w: F.embedding(a.argmax(1), w)), (CUBE, torch.randn(4, 2)))
    with pytest.raises(EngineBuildFailed, match=r"positions of %embedding .* computed inside of the engine"):
        BACKEND.build(program, {})
