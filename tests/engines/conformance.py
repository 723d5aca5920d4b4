"""What every backend must do. Subclass `BackendConformance` in a test module and name the backend.

A backend may leave an operator or a dtype to torch, by `supports`; what it takes, it must compute as torch does.
"""

from __future__ import annotations

import gc
import io
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch.export import Dim

from intarsia.core.backend import Backend, BuiltEngine, Engine
from intarsia.core.container import EngineContainer, pack_engine
from intarsia.core.op import run_engine
from intarsia.core.registry import find_backend
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineError, EngineUnavailable

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
)  # fmt: skip
WIDE = torch.tensor([2**40 + 5, -(2**40) - 5, 2**31, -(2**31) - 1, 2**32, 2**53 + 2, 5, 0, -1])
# By name: functions of a tensor of 64-bit integers, most of which need more than 32 bits.
WIDE_FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "to float": lambda x: x.float(),
    "to bool": lambda x: x.bool(),
    "to int": lambda x: x.int(),
    "to half": lambda x: (x.half().float(), x.to(torch.int8)),
    "equal": lambda x: x == 5,
    "differ": lambda x: x != x.flip(0),
    "order": lambda x: (x < 7, x.ge(2**31), x > 2**40),
    "view": lambda x: x.view(3, 3).t(),
    "join": lambda x: torch.cat([x, x[2:4]]),
    "index": lambda x: x[torch.tensor([0, 2, -1])],
    "where": lambda x: torch.where(x > 0, x, 0 * x),
    "add": lambda x: x + 1,
    "multiply": lambda x: x * 3,
    "divide": lambda x: x // 7,
    "remainder": lambda x: x % 7,
    "negate": lambda x: -x,
    "reduce": lambda x: (x.sum(), x.amax(), x.argmax(), x.sort()[0]),
    "add to a position": lambda x: x.float().argmax().unsqueeze(0) + x,
    "fill": lambda x: x.masked_fill(x == 5, 2**35),
    "fill a position": lambda x: x.float().argmax().masked_fill(x.float()[0] > 0, 2**35),
    "embed": lambda x: torch.nn.functional.embedding(x.clamp(0, 3), torch.arange(16).reshape(4, 4) * 2**33),
    "from float": lambda x: (x.float() * 1e9).long(),
    "return": lambda x: x,
}
RUN = torch.ops.intarsia.run_engine.default


class Calls(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def export(module: torch.nn.Module, args: Sequence[torch.Tensor], dims: Any = None) -> torch.export.ExportedProgram:
    """A partition, as the build loop makes it: an exported program with all its weights."""
    if isinstance(module, Calls) and dims is not None:
        dims = (dims,)
    with torch.no_grad():
        program = torch.export.export(module, tuple(args), dynamic_shapes=dims).run_decompositions({})
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        program.graph.erase_node(node)
    return program


def reasons_against(backend: Backend, program: torch.export.ExportedProgram) -> list[str]:
    """Why the backend leaves operators of the program to torch; empty when it takes all."""
    operators = [node for node in program.graph.nodes if node.op == "call_function"]
    sizes = [node for node in operators if not isinstance(node.meta["val"], torch.Tensor | tuple | list)]
    reasons = [backend.supports(node) for node in operators if node not in sizes]
    return [reason for reason in reasons if reason is not None]


def signature_of(program: torch.export.ExportedProgram) -> str:
    """The signature that the build loop gives a partition."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature
    inputs = [values[name] for name in names.user_inputs]
    return str(EngineSignature.from_values(inputs, [values[name] for name in names.user_outputs]))


def load_built(backend: Backend, built: BuiltEngine) -> Engine:
    """The engine of what a backend has built: of its payload, or of its source where there is none."""
    if built.payload is not None:
        return backend.load(memoryview(built.payload), built.options)
    assert built.source is not None, "neither a payload nor a source"
    return backend.rebuild(memoryview(built.source), built.options)


def assert_same(actual: Sequence[torch.Tensor], expected: Any, tolerance: float = 0.0) -> None:
    """Same number of outputs, shapes, dtypes, values; contiguous."""
    wanted = list(expected) if isinstance(expected, tuple | list) else [expected]
    assert [(t.shape, t.dtype) for t in actual] == [(t.shape, t.dtype) for t in wanted]
    assert all(tensor.is_contiguous() for tensor in actual)
    for got, want in zip(actual, wanted, strict=True):
        torch.testing.assert_close(got, want.contiguous(), rtol=tolerance, atol=tolerance, equal_nan=True)


def sample(dtype: torch.dtype) -> torch.Tensor:
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


LARGE = 1 << 20


def outputs_of_many_kinds(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values that are computed, inputs, views, and each of them twice."""
    z = x + y
    return y, x, z, y, x, z, x * 2 + y, torch.relu(x), x.view(2, -1)


class BackendConformance:
    """The suite; `name` is the backend's, `library` the module that it needs, `extra` what installs it.

    `extra` is None where intarsia itself needs the library.
    Where a build takes seconds, `one_build` is true: functions of fixed shapes are then compared by the last test, in
    one engine.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    extra: ClassVar[str | None]
    one_build: ClassVar[bool] = False

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        pytest.importorskip(cls.library)
        return find_backend(cls.name)

    @pytest.fixture(scope="class")
    @classmethod
    def put_off(cls) -> list[_Case]:
        """What the last test compares."""
        return []

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, backend: Backend) -> tuple[torch.nn.Module, torch.export.ExportedProgram, BuiltEngine]:
        """A layer for inputs f32[2, 64], as program and as engine."""
        module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU()).eval()
        program = export(module, (torch.ones(2, 64),))
        return module, program, backend.build(program, {})

    @pytest.fixture(scope="class")
    @classmethod
    def large(cls, backend: Backend) -> tuple[torch.export.ExportedProgram, BuiltEngine]:
        """Outputs of many kinds, of inputs that are large enough for memory to matter, as program and as engine."""
        program = export(Calls(outputs_of_many_kinds), (torch.zeros(LARGE), torch.zeros(LARGE)))
        return program, backend.build(program, {})

    @pytest.fixture
    def engine_of(self, backend: Backend) -> Callable[..., torch.Tensor]:
        """Build a program into the constant that a graph holds."""
        return lambda program: self.constant(program, backend.build(program, {}))

    def constant(self, program: torch.export.ExportedProgram, built: BuiltEngine) -> torch.Tensor:
        """An engine as the constant that a graph holds."""
        data = pack_engine(built, name="engine_7", backend=self.name, signature=signature_of(program))
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    @pytest.fixture
    def check(
        self,
        backend: Backend,
        engine_of: Callable[..., torch.Tensor],
        put_off: list[_Case],
        request: pytest.FixtureRequest,
    ) -> Callable[..., bool]:
        """Compare an engine of a function with the function itself; False when the backend leaves it to torch."""

        def compare(
            function: Callable[..., Any],
            *args: torch.Tensor,
            dims: Any = None,
            calls: Sequence[tuple[torch.Tensor, ...]] = (),
            tolerance: float = 0.0,
        ) -> bool:
            program = export(Calls(function), args, dims)
            if reasons_against(backend, program):
                return False
            if self.one_build and dims is None:
                put_off.append(_Case(request.node.name, function, [args, *calls], tolerance))
                return True
            engine, signature = engine_of(program), signature_of(program)
            for inputs in [args, *calls]:
                assert_same(RUN(list(inputs), engine, signature), function(*inputs), tolerance)
            return True

        return compare

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_moves_every_dtype(self, check: Any, dtype: torch.dtype) -> None:
        taken = check(lambda x, y: (x.t(), y[:, 1:], torch.cat([x.t(), y.t()])), sample(dtype), sample(dtype))
        assert taken or dtype not in {torch.float32, torch.bool, torch.int32}, "a common dtype is left to torch"

    @pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point], ids=str)
    def test_computes_in_every_float(self, check: Any, dtype: torch.dtype) -> None:
        x = torch.linspace(-3, 3, 24).reshape(2, 12).to(dtype)
        if dtype.itemsize > 1:
            tolerance = 20 * torch.finfo(dtype).eps
            check(lambda x: (torch.tanh(x) * 2 + x, x.sum(1), x @ x.t()), x, tolerance=tolerance)

    @pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if not dtype.is_complex], ids=str)
    def test_casts_as_torch(self, backend: Backend, check: Any, dtype: torch.dtype) -> None:
        values = [0, 1, 2, 77, 100] if not dtype.is_floating_point else [0.0, 1.5, 2.75, 77.0, 100.0]
        x = torch.tensor(values).to(dtype)
        targets = [t for t in DTYPES if t is not dtype and not t.is_complex]
        casts = export(Calls(lambda x: tuple(x.to(target) for target in targets)), (x,))
        nodes = casts.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default)
        taken = [node.meta["val"].dtype for node in nodes if backend.supports(node) is None]
        assert not taken or check(lambda x: tuple(x.to(target) for target in taken), x)

    @pytest.mark.parametrize("name", WIDE_FUNCTIONS)
    def test_values_beyond_32_bits(self, check: Any, name: str) -> None:
        check(WIDE_FUNCTIONS[name], WIDE)

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 3), (1, 1)], ids=str)
    def test_no_axes_and_no_elements(self, check: Any, shape: tuple[int, ...]) -> None:
        x = torch.ones(shape)
        assert check(lambda x, flags: (x * 2, torch.relu(x), torch.where(flags, x, x + 1), flags, x.sum()), x, x > 0)

    def test_products_over_nothing(self, check: Any) -> None:
        check(lambda a, b, c: (a @ b, torch.cat([c, c])), torch.ones(3, 0), torch.ones(0, 2), torch.ones(0, 4))

    def test_inputs_of_any_layout(self, check: Any) -> None:
        base = torch.arange(120.0).reshape(4, 5, 6)
        strided = base[1:4:2, 1:, ::3]
        layouts = [
            strided.clone(), strided, base.permute(0, 2, 1)[:2, :4, :2], torch.ones(1, 1, 2).expand(2, 4, 2),
            torch.arange(40.0).as_strided((2, 4, 2), (2, 3, 1)), torch.arange(17.0)[1:].view(2, 4, 2),
            torch.view_as_complex(torch.randn(2, 4, 2, 2)).conj().imag, torch.randn(2, 4, 2, requires_grad=True),
        ]  # fmt: skip
        with torch.inference_mode():
            layouts.append(torch.randn(2, 4, 2))
        with torch.no_grad():
            assert check(lambda x: (x + 1, x.reshape(8, 2)), layouts[0], calls=[(x,) for x in layouts])

    def test_runs_in_inference_mode(self, small: Any) -> None:
        module, program, built = small
        engine, signature = self.constant(program, built), signature_of(program)
        with torch.inference_mode():
            x = torch.randn(2, 64)
            assert_same(RUN([x], engine, signature), module(x), 1e-5)
        x = torch.randn(2, 64)
        with torch.no_grad():
            assert_same(RUN([x], engine, signature), module(x), 1e-5)

    @pytest.mark.parametrize(("low", "high"), [(1, 64), (0, 8), (2, 5)])
    def test_dynamic_shapes_at_their_corners(self, check: Any, low: int, high: int) -> None:
        weight = torch.randn(6, 4)
        dims = ({0: Dim("rows", min=low, max=high)}, {1: Dim("more", min=1, max=9)})
        calls = [(torch.randn(n, 6), torch.randn(4, m)) for n in (high, low, max(low, 1), high) for m in (1, 9, 2)]

        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.relu(x @ weight) @ y
            return z, z.t(), torch.cat([x, x]), y.sum(), x.mean(1)

        example = (torch.randn(high - 1, 6), torch.randn(4, 5))
        assert check(function, *example, dims=dims, calls=calls, tolerance=1e-5)

    def test_sizes_worked_out_inside(self, check: Any) -> None:
        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rows, columns, width = x.shape
            flat = x.reshape(rows * columns, width)
            return torch.relu(flat).view(rows, columns, 2, width // 2).transpose(1, 2), flat + 1

        dims = ({0: Dim("rows", min=1, max=9), 1: Dim("columns", min=1, max=9)},)
        calls = [(torch.randn(n, m, 8),) for n, m in [(1, 1), (9, 1), (1, 9), (9, 9)]]
        assert check(function, torch.randn(3, 4, 8), dims=dims, calls=calls)

    def test_unused_inputs_keep_their_places(self, check: Any) -> None:
        unused = [torch.zeros(2, dtype=torch.bfloat16), torch.zeros((), dtype=torch.bool), torch.zeros(0, 3)]
        x, y = torch.randn(3), torch.randn(3)
        assert check(lambda a, x, b, y, c: x - 2 * y, unused[0], x, unused[1], y, unused[2])

    def test_inputs_and_outputs_returned_twice(self, check: Any, large: Any) -> None:
        assert check(outputs_of_many_kinds, torch.randn(4), torch.randn(4))
        program, built = large
        x, y = torch.randn(LARGE), torch.randn(LARGE)
        results = RUN([x, y], self.constant(program, built), signature_of(program))
        addresses = {tensor.data_ptr() for tensor in [x, y, *results]}
        assert len(addresses) == 2 + len(results), "two tensors share memory"

    def test_many_outputs_in_order(self, check: Any) -> None:
        assert check(lambda x: tuple(x + i for i in reversed(range(40))), torch.randn(3))

    def test_outputs_that_were_views(self, check: Any) -> None:
        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x * 2
            return y, y.t(), y[1:], y.view(-1), y.permute(1, 0)[::2], y.unsqueeze(0).expand(3, 4, 5), y[0, 0]

        assert check(function, torch.randn(4, 5))

    def test_later_calls_leave_earlier_outputs_alone(self, large: Any) -> None:
        program, built = large
        engine, signature, zeros = self.constant(program, built), signature_of(program), torch.zeros(LARGE)
        results = [RUN([torch.full((LARGE,), float(i)), zeros], engine, signature) for i in range(5)]
        for i, outputs in enumerate(results):
            assert_same(outputs, outputs_of_many_kinds(torch.full((LARGE,), float(i)), zeros))
        results[0][1].fill_(-1)
        assert torch.equal(RUN([zeros, zeros], engine, signature)[1], zeros)

    def test_calls_from_many_threads(self, engine_of: Any) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
        program = export(module, (torch.randn(4, 16),), {"input": {0: Dim("rows", min=1, max=64)}})
        engine, signature = engine_of(program), signature_of(program)
        wrong: list[str] = []

        def call(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(25):
                x = torch.randn(1 + seed * 7, 16, generator=generator)
                (result,) = run_engine([x], engine, signature)
                with torch.no_grad():
                    if not torch.allclose(result, module(x), atol=1e-5):
                        wrong.append(f"thread {seed}")

        threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_two_engines_in_one_program(self, engine_of: Any) -> None:
        first = export(Calls(lambda x: torch.cat([x, x * 2])), (torch.randn(4, 3),), ({0: Dim("rows", min=1, max=9)},))
        second = export(Calls(lambda x, y: (x.sum(0), x + y)), (torch.randn(4, 3), torch.randn(3)),
                        ({0: Dim("rows", min=1, max=99)}, None))  # fmt: skip
        module = _TwoEngines([engine_of(first), engine_of(second)], [signature_of(first), signature_of(second)])
        program = torch.export.export(module, (torch.randn(4, 3),), dynamic_shapes=({0: Dim("rows", min=1, max=9)},))
        stored = io.BytesIO()
        torch.export.save(program, stored)
        stored.seek(0)
        loaded = torch.export.load(stored).module()
        for rows in (1, 2, 9):
            x = torch.randn(rows, 3)
            middle = torch.relu(torch.cat([x, x * 2]))
            assert_same(loaded(x), (middle.sum(0), middle + middle[0]), 1e-6)

    def test_memory_that_only_the_engine_holds(self, backend: Backend, large: Any) -> None:
        engine = load_built(backend, large[1])
        for i in range(8):
            results = engine(_Fleeting([float(i), 1.0], LARGE))
            assert_same(results, outputs_of_many_kinds(torch.full((LARGE,), float(i)), torch.ones(LARGE)))

    def test_memory_that_the_caller_reuses_after_a_call(self, backend: Backend, large: Any) -> None:
        engine = load_built(backend, large[1])
        x, y = torch.ones(LARGE), torch.zeros(LARGE)
        expected = outputs_of_many_kinds(x.clone(), y.clone())
        results = engine([x, y])
        x.fill_(7), y.fill_(7)
        assert_same(results, expected)
        del x, y
        gc.collect()
        assert torch.equal(engine([torch.full((LARGE,), 2.0), torch.zeros(LARGE)])[1], torch.full((LARGE,), 2.0))

    def test_weights_are_where_the_backend_says(self, small: Any) -> None:
        module, _, built = small
        source = built.source or b""
        end = 0
        for offset, size in sorted(built.constants):
            assert end <= offset <= offset + size <= len(source), "weights over each other, or outside of the source"
            end = offset + size
        weight = module[0].weight.detach().numpy().tobytes()
        if weight in source:
            assert any(weight in source[offset : offset + size] for offset, size in built.constants), (
                "a weight is not told"
            )
        data = pack_engine(built, name="engine_7", backend=self.name, signature="() -> ()")
        found = EngineContainer.unpack(memoryview(data)).source
        assert (None if found is None else bytes(found)) == built.source

    def test_damage_is_named(self, small: Any) -> None:
        _, program, built = small
        engine, signature = self.constant(program, built), signature_of(program)
        size = engine.numel()
        for position in [*range(0, 64, 5), *range(64, size, max(1, size // 150)), size - 1]:
            damaged = engine.clone()
            damaged[position] ^= 1 << position % 8
            with pytest.raises(EngineError, match="engine"):
                RUN([torch.randn(2, 64)], damaged, signature)

    def test_it_accepts_what_it_has_just_built_and_nothing_of_another_version(
        self, backend: Backend, small: Any
    ) -> None:
        built = small[2]
        assert backend.available() is None
        if built.payload is None:
            return
        assert backend.accepts(built.backend_version, built.target) is None
        assert "0.0.1" in (backend.accepts("0.0.1", built.target) or "")

    def test_a_library_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.extra is None:
            pytest.skip("intarsia itself needs the library")
        backend = type(find_backend(self.name))()
        program = export(Calls(torch.relu), (torch.randn(2, 3),))
        (node,) = [node for node in program.graph.nodes if node.op == "call_function"]
        for module in [name for name in sys.modules if name == self.library or name.startswith(f"{self.library}.")]:
            monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(sys.modules, self.library, None)
        halves: list[Callable[[], object]] = [
            lambda: backend.check_options({}),
            lambda: backend.supports(node),
            lambda: backend.build(program, {}),
            lambda: backend.load(memoryview(b""), {}),
            lambda: backend.rebuild(memoryview(b""), {}),
        ]
        for half in halves:
            with pytest.raises(EngineUnavailable, match=rf"backend '{self.name}'.*intarsia\[{self.extra}\]"):
                half()

    def test_what_was_put_off(self, backend: Backend, engine_of: Any, put_off: list[_Case]) -> None:
        if not put_off:
            pytest.skip("nothing was put off")

        def together(*args: torch.Tensor) -> list[torch.Tensor]:
            given, results = iter(args), []
            for case in put_off:
                results += case.results([next(given) for _ in case.calls[0]])
            return results

        with torch.no_grad():
            program = export(Calls(together), [x for case in put_off for x in case.calls[0]])
            assert reasons_against(backend, program) == []
            engine, signature = engine_of(program), signature_of(program)
            for i in range(max(len(case.calls) for case in put_off)):
                calls = [case.calls[i % len(case.calls)] for case in put_off]
                results = iter(RUN([x for call in calls for x in call], engine, signature))
                for case, call in zip(put_off, calls, strict=True):
                    expected = case.results(call)
                    print(case.name)  # noqa: T201 - pytest shows it where the next line fails
                    assert_same([next(results) for _ in expected], expected, case.tolerance)


class _Case(NamedTuple):
    """A function, and calls of it that an engine shall answer as the function does."""

    name: str
    function: Callable[..., Any]
    calls: list[tuple[torch.Tensor, ...]]
    tolerance: float

    def results(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = self.function(*args)
        return list(results) if isinstance(results, tuple | list) else [results]


class _Fleeting(Sequence[torch.Tensor]):
    """Tensors that are made when they are asked for, and that nobody else holds."""

    def __init__(self, values: list[float], size: int) -> None:
        self.values, self.size = values, size

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: Any) -> Any:
        return torch.full((self.size,), self.values[i])


class _TwoEngines(torch.nn.Module):
    def __init__(self, engines: list[torch.Tensor], signatures: list[str]) -> None:
        super().__init__()
        self.first, self.second = engines
        self.signatures = signatures

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        middle = torch.relu(RUN([x], self.first, self.signatures[0])[0])
        result = RUN([middle, middle[0]], self.second, self.signatures[1])
        return result[0], result[1]
