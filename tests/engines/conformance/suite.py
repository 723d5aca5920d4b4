"""The suite that every backend passes."""

from __future__ import annotations

import gc
import io
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.engines.conformance.cases import CASES
from tests.engines.conformance.elsewhere import Elsewhere, make_layer
from tests.engines.conformance.joint import JointEngine
from tests.engines.conformance.programs import (
    RUN,
    Calls,
    assert_same,
    constant_of,
    export,
    load_built,
    reasons_against,
    signature_of,
)
from tests.engines.conformance.shapes import outputs_of_many_kinds
from torch.export import Dim

from intarsia.core.backend import Backend, BuiltEngine, Engine
from intarsia.core.container import EngineContainer
from intarsia.core.op import run_engine
from intarsia.core.registry import find_backend
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError, EngineRefused, EngineUnavailable

LARGE = 1 << 18
"""Elements of tensors that are large enough for memory to matter."""

WRONG = [name for name, case in CASES.items() if case.wrong]
DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": torch.bernoulli,
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "normal": torch.ops.aten.normal_functional.default,
    "exponential": torch.ops.aten.exponential.default,
    "multinomial": lambda x: torch.multinomial(x, 2),
    "attention with a dropout": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
}


class BackendConformance:
    """The suite; `name` is the backend's, `library` the module that it needs, `extra` what installs it.

    `extra` is None where intarsia itself needs the library. `computes_odd_floats` is false where the library
    is known to compute with NaN, infinity and the signs of zeros otherwise; moving them must be right all the same.
    `unloads` is false where the process keeps the code of an engine that is gone.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    extra: ClassVar[str | None]
    computes_odd_floats: ClassVar[bool] = True
    unloads: ClassVar[bool] = True

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        pytest.importorskip(cls.library)
        return find_backend(cls.name)

    @pytest.fixture(scope="class")
    @classmethod
    def joint(cls, backend: Backend, request: pytest.FixtureRequest) -> JointEngine:
        """One engine of all cases that are tested in this run (`-k` builds one of few)."""
        tests = [item for item in request.session.items if getattr(item, "cls", None) is cls]
        wanted = {item.callspec.params.get("case") for item in tests if hasattr(item, "callspec")}
        return JointEngine(backend, {name: CASES[name] for name in CASES if name in wanted and cls._computes(name)})

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, backend: Backend) -> tuple[torch.nn.Module, torch.export.ExportedProgram, BuiltEngine]:
        """A layer for inputs f32[rows, 512], as module, program and engine."""
        module, program = make_layer(["input", "layer"])
        return module, program, backend.build(program, {})

    @pytest.fixture(scope="class")
    @classmethod
    def rebuilt(cls, backend: Backend, small: Any) -> Engine:
        """The engine of the portable source, in memory that was lent."""
        built = small[2]
        if built.source is None:
            pytest.skip("there is no portable source")
        return _made_of_lent_memory(built.source, lambda source: backend.rebuild(source, built.options))

    @pytest.fixture(scope="class")
    @classmethod
    def large(cls, backend: Backend) -> tuple[torch.export.ExportedProgram, BuiltEngine]:
        """Outputs of many kinds, of inputs f32[2 * half], as program and as engine."""
        size = 2 * Dim("half", min=1, max=LARGE // 2)
        program = export(Calls(outputs_of_many_kinds), (torch.zeros(64), torch.zeros(64)), ({0: size}, {0: size}))
        return program, backend.build(program, {})

    @pytest.fixture(scope="class")
    @classmethod
    def elsewhere(cls, backend: Backend, small: Any, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
        """What a new process makes of the small engine, and of the same layer under other names."""
        heavy = cls.library if cls.extra is not None else ""
        return Elsewhere(cls.name, heavy, small[2], signature_of(small[1]), tmp_path_factory.mktemp("elsewhere"))

    @classmethod
    def _computes(cls, case: str) -> bool:
        return cls.computes_odd_floats or not CASES[case].odd

    def constant(self, program: torch.export.ExportedProgram, built: BuiltEngine) -> torch.Tensor:
        """An engine as the constant that a graph holds."""
        return constant_of(built, self.name, signature_of(program))

    def skip_what_is_left(self, joint: JointEngine, case: str) -> None:
        """Skip a case of which the backend takes nothing."""
        if not self._computes(case):
            pytest.skip("the library promises nothing for such numbers")
        if case not in joint.chosen:
            pytest.skip(f"left to torch: {'; '.join(sorted(set(joint.reasons[case])))}")

    # What engines compute.

    @pytest.mark.parametrize("case", CASES)
    def test_it_computes_what_it_takes_as_torch_does(self, joint: JointEngine, case: str) -> None:
        if CASES[case].required:
            assert joint.reasons[case] == [], "what every backend must take is left to torch"
        self.skip_what_is_left(joint, case)
        joint.check(case)

    @pytest.mark.parametrize("case", WRONG)
    def test_a_position_outside_is_an_error(self, joint: JointEngine, case: str) -> None:
        self.skip_what_is_left(joint, case)
        for arguments in CASES[case].wrong:
            with pytest.raises((EngineError, IndexError)) as caught:
                joint.run(0, {case: arguments})
            assert "\n" not in str(caught.value)

    def test_equal_calls_have_equal_answers_to_the_bit(self, joint: JointEngine) -> None:
        """Also after calls that have failed."""
        again = joint.run(0)
        differing = [
            name for name in again if list(map(_bits, again[name])) != list(map(_bits, joint.answers[0][name]))
        ]
        assert differing == []

    def test_f32_is_computed_in_f32(self, small: Any, backend: Backend) -> None:
        module, _, built = small
        self.check_precision(module, load_built(backend, built))

    def test_an_engine_of_the_portable_source(self, small: Any, rebuilt: Engine) -> None:
        self.check_precision(small[0], rebuilt)

    def check_precision(self, module: torch.nn.Module, engine: Engine) -> None:
        """Compare with f64: products of 512 numbers each, which bf16, f16 and tf32 get wrong by 1e-3 and more."""
        x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            weight, bias = module.layer.weight.double(), module.layer.bias.double()
            expected = F.linear(x.double(), weight, bias).relu()
            assert float((engine([x])[0] - expected).abs().max()) < 2e-5

    @pytest.mark.parametrize("name", DRAWS)
    def test_what_draws_random_numbers_is_left_to_torch(self, backend: Backend, name: str) -> None:
        program = export(Calls(DRAWS[name]), (torch.rand(3, 4) + 0.1,))
        reasons = reasons_against(backend, program)
        assert reasons
        assert all(len(reason) < 120 and "\n" not in reason for reason in reasons), "a reason is a short phrase"

    # How they are called.

    def test_runs_in_inference_mode(self, small: Any) -> None:
        module, program, built = small
        engine, signature = self.constant(program, built), signature_of(program)
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                x = torch.randn(2, 512)
                assert_same(RUN([x], engine, signature), module(x), 1e-5)

    def test_calls_from_many_threads(self, small: Any) -> None:
        module, program, built = small
        engine, signature = self.constant(program, built), signature_of(program)

        def call(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(25):
                x = torch.randn(1 + seed * 7, 512, generator=generator)
                (result,) = run_engine([x], engine, signature)
                with torch.no_grad():
                    torch.testing.assert_close(result, module(x), rtol=1e-5, atol=1e-5)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(8)))  # raises what a thread raised

    def test_two_engines_in_one_program(self, small: Any, large: Any) -> None:
        engines = [self.constant(*small[1:]), self.constant(*large)]
        module = _TwoEngines(engines, [signature_of(small[1]), signature_of(large[0])])
        rows = ({0: Dim("rows", min=1, max=9)},)
        stored = io.BytesIO()
        torch.export.save(torch.export.export(module, (torch.randn(4, 512),), dynamic_shapes=rows), stored)
        stored.seek(0)
        loaded = torch.export.load(stored).module()
        with torch.no_grad():
            for count in (1, 2, 9):
                x = torch.randn(count, 512)
                middle = torch.tanh(small[0](x)).view(-1)
                assert_same(loaded(x), outputs_of_many_kinds(middle, middle * 2), 1e-5)

    # Whose memory is whose.

    def test_no_two_tensors_share_memory(self, large: Any) -> None:
        x, y = torch.randn(LARGE), torch.randn(LARGE)
        results = RUN([x, y], self.constant(*large), signature_of(large[0]))
        addresses = {tensor.data_ptr() for tensor in [x, y, *results]}
        assert len(addresses) == 2 + len(results)

    def test_later_calls_leave_earlier_outputs_alone(self, large: Any) -> None:
        program, built = large
        engine, signature, zeros = self.constant(program, built), signature_of(program), torch.zeros(LARGE)
        results = [RUN([torch.full((LARGE,), float(i)), zeros], engine, signature) for i in range(5)]
        for i, outputs in enumerate(results):
            assert_same(outputs, outputs_of_many_kinds(torch.full((LARGE,), float(i)), zeros))
        results[0][1].fill_(-1)
        assert torch.equal(RUN([zeros, zeros], engine, signature)[1], zeros)

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

    def test_a_payload_is_lent_for_the_loading_only(self, backend: Backend, small: Any) -> None:
        module, _, built = small
        if built.payload is None:
            pytest.skip("there is no payload; sources are lent in the test of the portable source")
        engine = _made_of_lent_memory(built.payload, lambda payload: backend.load(payload, built.options))
        self.check_precision(module, engine)

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_calls_leave_no_memory_behind(self, backend: Backend, large: Any) -> None:
        engine = load_built(backend, large[1])
        x, y = torch.ones(LARGE), torch.zeros(LARGE)
        grown = _growth_mib(lambda: engine([x, y]), 60)
        assert grown < 30, f"{grown} MiB more after 60 calls that return 9 MiB each"

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_an_engine_that_nobody_holds_leaves_no_memory_behind(self, backend: Backend, small: Any) -> None:
        built = small[2]
        x = torch.randn(2, 512)
        if self.unloads:
            grown = _growth_mib(lambda: load_built(backend, built)([x]), 40)
            assert grown < 20, f"{grown} MiB more after 40 engines with weights of 1 MiB"
        held = weakref.ref(engine := load_built(backend, built))
        engine([x])
        del engine
        gc.collect()
        assert held() is None

    # What is built and stored.

    def test_weights_are_where_the_backend_says(self, small: Any) -> None:
        module, _, built = small
        source = built.source or b""
        end = 0
        for offset, size in sorted(built.constants):
            assert end <= offset <= offset + size <= len(source), "weights over each other, or outside of the source"
            end = offset + size
        weight = module.layer.weight.detach().numpy().tobytes()
        if weight in source:
            assert any(weight in source[offset : offset + size] for offset, size in built.constants), (
                "a weight is not told"
            )
        found = EngineContainer.unpack(self.constant(*small[1:]).numpy().data).source
        assert (None if found is None else bytes(found)) == built.source

    def test_equal_partitions_have_equal_sources(self, small: Any, elsewhere: Elsewhere) -> None:
        """Whatever their names, in whichever process."""
        built, other = small[2], elsewhere.built
        assert built.source == other.source
        assert list(built.constants) == other.constants
        assert (built.options, built.backend_version) == (other.options, other.backend_version)
        assert built.target == other.target

    def test_a_new_process(self, elsewhere: Elsewhere) -> None:
        """Nothing is imported too early, nothing printed, no file left, and the answer is that of torch."""
        assert elsewhere.printed == ""
        assert elsewhere.left == [], elsewhere.left
        assert elsewhere.imported is False, "the library is imported before it is needed"
        assert elsewhere.difference < 2e-5

    def test_damage_is_named(self, small: Any) -> None:
        _, program, built = small
        engine, signature = self.constant(program, built), signature_of(program)
        size = engine.numel()
        for position in [*range(0, 64, 9), *range(64, size, max(1, size // 40)), size - 1]:
            damaged = engine.clone()
            damaged[position] ^= 1 << position % 8
            with pytest.raises(EngineError, match="engine"):
                RUN([torch.randn(2, 512)], damaged, signature)

    @pytest.mark.parametrize("data", [b"", b"no engine at all" * 9, bytes(100), (1 << 40).to_bytes(8, "little") * 9])
    def test_foreign_bytes_are_refused(self, backend: Backend, small: Any, data: bytes) -> None:
        built = small[2]
        with pytest.raises(EngineRefused):
            backend.load(memoryview(data), built.options)
        if built.source is not None:
            with pytest.raises(EngineBuildFailed):
                backend.rebuild(memoryview(data), built.options)

    def test_it_accepts_what_it_has_just_built_and_nothing_of_another_version(
        self, backend: Backend, small: Any
    ) -> None:
        built = small[2]
        assert backend.available() is None
        assert built.backend_version
        assert built.target.isprintable()
        if built.payload is None:
            return
        assert backend.accepts(built.backend_version, built.target) is None
        assert "0.0.1" in (backend.accepts("0.0.1", built.target) or "")

    # What is asked of it in vain.

    def test_an_option_that_is_not_known_is_named_and_leaves_no_file(
        self, backend: Backend, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        options = {"no_such_option": 1}
        halves: list[Callable[[], object]] = [
            lambda: backend.check_options(options),
            lambda: backend.build(small[1], options),
        ]
        for half in halves:
            with pytest.raises(ArgumentError, match="'no_such_option'"):
                half()
        assert list(tmp_path.iterdir()) == []

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


def _made_of_lent_memory(data: bytes, make: Callable[[memoryview], Engine]) -> Engine:
    """An engine of memory that is read-only, and that is taken back and used for something else."""
    memory = bytearray(data)
    with memoryview(memory).toreadonly() as lent:
        engine = make(lent)
    memory[:] = bytes(len(memory))
    return engine


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _growth_mib(act: Callable[[], object], times: int) -> float:
    """By how much the process has grown after some acts, when a few have been done before."""
    for _ in range(5):
        act()
    gc.collect()
    before = _resident_mib()
    for _ in range(times):
        act()
    gc.collect()
    return _resident_mib() - before


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


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
        middle = torch.tanh(RUN([x], self.first, self.signatures[0])[0]).view(-1)
        return tuple(RUN([middle, middle * 2], self.second, self.signatures[1]))
