"""The engine operator: eager calls, fake shapes, export, save and load, and the look-up of engines."""

from __future__ import annotations

import gc
import io
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from intarsia.core import container, instance
from intarsia.core.op import run_engine
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError, EngineRefused, EngineUnavailable

RUN = torch.ops.intarsia.run_engine.default
DOUBLE = "(f32[b, 3]) -> (f32[b, 3])"
REPEAT = "(f32[b, 3]) -> (f32[2*b + 1, 3])"


class _Hybrid(torch.nn.Module):
    def __init__(self, engine: torch.Tensor, signature: str) -> None:
        super().__init__()
        self.engine = engine
        self.signature = signature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(RUN([x + 1], self.engine, self.signature)[0])


def test_runs_the_engine(standin: Any, make_engine: Any) -> None:
    x = torch.randn(4, 3)
    (result,) = RUN([x], make_engine("double", DOUBLE), DOUBLE)
    assert torch.equal(result, 2 * x)


def test_records_no_gradient(standin: Any, make_engine: Any) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    (result,) = RUN([x], make_engine("double", DOUBLE), DOUBLE)
    assert not result.requires_grad
    with torch.inference_mode():
        (result,) = RUN([x], make_engine("double", DOUBLE), DOUBLE)
    assert torch.equal(result, 2 * x)


def test_an_input_that_does_not_fit_is_refused(standin: Any, make_engine: Any) -> None:
    with pytest.raises(ArgumentError, match=r"engine input 0: found i64\[4, 3\], expected f32\[b, 3\]"):
        RUN([torch.zeros(4, 3, dtype=torch.int64)], make_engine("double", DOUBLE), DOUBLE)


def test_another_signature_than_the_engine_s_is_refused(standin: Any, make_engine: Any) -> None:
    with pytest.raises(EngineError, match="engine 'standin_0': found the signature"):
        RUN([torch.zeros(4, 3)], make_engine("double", DOUBLE), REPEAT)


def test_a_damaged_engine_is_refused(standin: Any, make_engine: Any) -> None:
    engine = make_engine("double", DOUBLE)
    engine[-1] ^= 1
    with pytest.raises(EngineError, match="engine 'standin_0': found a payload that does not match its SHA-256"):
        RUN([torch.zeros(4, 3)], engine, DOUBLE)
    assert standin.loaded == []


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("decompose", [False, True])
def test_export_save_and_load(standin: Any, make_engine: Any, tmp_path: Path, rows: int, decompose: bool) -> None:
    module = _Hybrid(make_engine("repeat", REPEAT), REPEAT)
    batch = Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.randn(4, 3),), dynamic_shapes=({0: batch},))
    assert standin.loaded == [], "exporting ran the engine"
    if decompose:
        program = program.run_decompositions({})
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    loaded = torch.export.load(stored)
    x = torch.randn(rows, 3)
    assert torch.equal(loaded.module()(x), module(x))
    (bounds,) = loaded.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (1, 64)


class _Unbacked(_Hybrid):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[torch.nonzero(x[:, 0] > 0)[:, 0]])


def test_export_with_a_data_dependent_size(standin: Any, make_engine: Any) -> None:
    module = _Unbacked(make_engine("repeat", REPEAT), REPEAT)
    program = torch.export.export(module, (torch.randn(4, 3),)).run_decompositions({})
    for x in (torch.randn(4, 3), -torch.ones(4, 3), torch.ones(4, 3)):
        assert torch.equal(program.module()(x), module(x))


class _Derived(_Hybrid):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return RUN([torch.cat([x, x])], self.engine, self.signature)[0] + x


def test_a_size_solved_for_equals_the_original(standin: Any, make_engine: Any) -> None:
    signature = "(f32[2*b]) -> (f32[b])"
    module = _Derived(make_engine("halve", signature), signature)
    batch = Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.randn(4),), dynamic_shapes=({0: batch},))
    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (1, 64), "adding the engine's output to x constrained the program"
    for rows in (1, 2, 64):
        x = torch.randn(rows)
        assert torch.equal(program.module()(x), module(x))


class _Longest(_Hybrid):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return RUN([x, y], self.engine, self.signature)[0]


def test_no_size_is_compared(standin: Any, make_engine: Any) -> None:
    signature = "(f32[a], f32[b]) -> (f32[max(a, b)])"
    module = _Longest(make_engine("longest", signature), signature)
    dims = {"x": {0: Dim("a", min=1, max=9)}, "y": {0: Dim("b", min=1, max=9)}}
    program = torch.export.export(module, (torch.randn(4), torch.randn(3)), dynamic_shapes=dims)
    for a, b in ((4, 3), (3, 4), (1, 9), (5, 5)):
        x, y = torch.randn(a), torch.randn(b)
        assert torch.equal(program.module()(x, y), module(x, y))
    (output,) = program.graph.output_node().args[0]
    assert str(output.meta["val"].shape[0]).startswith("Max(")


def test_fake_outputs_have_the_engine_s_dtypes_and_shapes(standin: Any, make_engine: Any) -> None:
    signature = "(f32[a, b]) -> (f32[], f32[b])"
    engine = make_engine("sum", signature)
    real = RUN([torch.randn(4, 3)], engine, signature)
    meta = RUN([torch.randn(4, 3, device="meta")], engine.to("meta"), signature)
    assert [(t.shape, t.dtype) for t in meta] == [(t.shape, t.dtype) for t in real]


def test_passes_torch_s_own_checks(standin: Any, make_engine: Any) -> None:
    engine = make_engine("repeat", REPEAT)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(RUN, ([torch.randn(4, 3)], engine, REPEAT), test_utils=checks)


def test_bytes_are_hashed_once(standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("double", DOUBLE)
    x = torch.randn(4, 3)
    RUN([x], engine, DOUBLE)

    def refuse(data: memoryview) -> None:
        raise AssertionError("read the container again")

    monkeypatch.setattr(container.EngineContainer, "unpack", refuse)
    RUN([x], engine, DOUBLE)
    RUN([x], engine.detach(), DOUBLE)
    assert standin.loaded == ["double"]


def test_equal_content_shares_an_instance(standin: Any, make_engine: Any) -> None:
    first, second = make_engine("double", DOUBLE), make_engine("double", DOUBLE)
    assert instance.find_instance(first, DOUBLE) is instance.find_instance(second, DOUBLE)
    assert standin.loaded == ["double"]
    second_damaged = first.clone()
    second_damaged[-1] ^= 1
    with pytest.raises(EngineError, match="SHA-256"):
        instance.find_instance(second_damaged, DOUBLE)


def test_an_engine_is_let_go_with_its_tensor(standin: Any, make_engine: Any) -> None:
    engine = make_engine("double", DOUBLE)
    RUN([torch.randn(4, 3)], engine, DOUBLE)
    key = (engine.data_ptr(), engine.nbytes)
    identity = container.EngineContainer.unpack(engine.numpy().data).identity
    assert key in instance._entries
    del engine
    gc.collect()
    assert key not in instance._entries
    assert identity not in instance._by_identity


@pytest.mark.parametrize("told", [True, False])
def test_another_tensor_at_the_same_address_is_another_engine(
    standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    if not told:  # even when the death of the first tensor has not been noticed
        monkeypatch.setattr(instance, "_forget", lambda key, dead: None)
    shared = bytearray(make_engine("double", DOUBLE).numpy().tobytes())
    other = make_engine("halve ", DOUBLE)  # as long as the first, with a payload that is unknown
    first = torch.frombuffer(shared, dtype=torch.uint8)
    RUN([torch.randn(4, 3)], first, DOUBLE)
    address = first.data_ptr()
    del first
    gc.collect()
    shared[:] = other.numpy().tobytes()
    second = torch.frombuffer(shared, dtype=torch.uint8)
    assert second.data_ptr() == address
    with pytest.raises(EngineError, match="halve "):
        RUN([torch.randn(4, 3)], second, DOUBLE)


def test_a_payload_that_does_not_fit_is_not_even_loaded_where_it_can_be_rebuilt(
    standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin, "accepts", lambda *_: "version 0.9 built it")
    RUN([torch.ones(4, 3)], make_engine("double", DOUBLE, source="double"), DOUBLE)
    assert standin.loaded == ["source of double"]
    RUN([torch.ones(4, 3)], make_engine("double", DOUBLE), DOUBLE)  # nothing to rebuild it from: worth a try
    assert standin.loaded == ["source of double", "double"]


def test_a_refused_payload_is_rebuilt_and_says_so_once(
    standin: Any, make_engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine("other:double", DOUBLE, source="double")
    x = torch.randn(4, 3)
    with caplog.at_level(logging.INFO, logger="intarsia"):
        for _ in range(3):
            assert torch.equal(RUN([x], engine, DOUBLE)[0], 2 * x)
    assert standin.loaded == ["source of double"]
    (record,) = [record for record in caplog.records if record.name == "intarsia"]
    assert record.levelno == logging.INFO
    assert "engine 'standin_0': rebuilding it for this machine" in record.getMessage()


def without_payload(engine: torch.Tensor) -> torch.Tensor:
    packed = container.EngineContainer.unpack(engine.numpy().data).repack(payload=False, outside=())
    return torch.frombuffer(bytearray(b"".join(packed.chunks)), dtype=torch.uint8)


def test_an_engine_without_payload_is_built_once_and_says_so(
    standin: Any, make_engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = without_payload(make_engine("halve", DOUBLE, source="double"))
    x = torch.randn(4, 3)
    with caplog.at_level(logging.INFO, logger="intarsia"):
        for tensor in (engine, engine, engine.clone()):
            assert torch.equal(RUN([x], tensor, DOUBLE)[0], 2 * x)
    assert standin.loaded == ["source of double"]
    assert [r.getMessage() for r in caplog.records] == [
        "engine 'standin_0': building it from its portable form, because it has no compiled one"
    ]


def test_what_is_missing_to_build_an_engine_again_is_told_with_its_name(
    standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: memoryview, options: Any) -> Any:
        raise EngineUnavailable("backend", found="no hammer", expected="one", fix="Buy one.")

    monkeypatch.setattr(standin, "rebuild", refuse)
    told = "engine 'standin_0': found that standin cannot build it from its portable form: no hammer, expected one. "
    for engine, reason in (
        (without_payload(make_engine("halve", DOUBLE, source="double")), "it has no compiled one"),
        (make_engine("other: double", DOUBLE, source="double"), "another version"),
    ):
        with pytest.raises(EngineUnavailable) as caught:
            RUN([torch.randn(4, 3)], engine, DOUBLE)
        assert str(caught.value) == f"{told}It has to be built so: {reason}. Buy one."


def test_engines_that_differ_in_names_alone_are_one_instance(standin: Any, make_engine: Any) -> None:
    first = make_engine("double", DOUBLE, source="double")
    second = make_engine("double", DOUBLE.replace("b", "s7"), source="double", name="standin_8")
    x = torch.randn(4, 3)
    for engine, signature in ((first, DOUBLE), (second, DOUBLE.replace("b", "s7")), (first, DOUBLE.replace("b", "n"))):
        assert torch.equal(RUN([x], engine, signature)[0], 2 * x)
    assert standin.loaded == ["double"]


def test_a_source_that_is_refused_names_the_engine(
    standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: memoryview, options: Any) -> Any:
        raise EngineBuildFailed("IR", found="nonsense", expected="IR", fix="Compile it again.")

    monkeypatch.setattr(standin, "rebuild", refuse)
    engine = without_payload(make_engine("double", DOUBLE, source="double"))
    message = "engine 'standin_0': found that standin cannot build it from its portable form: IR: nonsense"
    with pytest.raises(EngineBuildFailed, match=message):
        RUN([torch.randn(4, 3)], engine, DOUBLE)


def test_a_refused_payload_without_source_is_an_error(standin: Any, make_engine: Any) -> None:
    with pytest.raises(EngineRefused, match="another version"):
        RUN([torch.randn(4, 3)], make_engine("other:double", DOUBLE), DOUBLE)


def test_many_threads_make_one_instance(standin: Any, make_engine: Any) -> None:
    engine = make_engine("double", DOUBLE)
    x = torch.randn(4, 3)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.extend(run_engine([x], engine, DOUBLE))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    assert all(torch.equal(result, 2 * x) for result in results)
    assert standin.loaded == ["double"]


def fail(*_: Any) -> Any:
    message = "out of luck\nsecond line"
    raise KeyError(message)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (fail, r"found that a call fails in the backend 'standin' \(KeyError: .*out of luck"),
        (lambda _: None, "found a NoneType, expected a list of tensors"),
        (lambda _: [3], "found a list of int, expected a list of tensors"),
        (lambda inputs: (value for value in inputs), "found a generator"),
        (lambda _: [], "found 0 outputs, expected 1"),
        (lambda inputs: [inputs[0] + 1, inputs[0] + 2], "found 2 outputs"),
        (lambda inputs: [inputs[0].double()], r"found output 0 as f64\[4, 3\] on cpu, expected f32\[4, 3\]"),
        (lambda inputs: [inputs[0][1:] + 1], r"found output 0 as f32\[3, 3\] on cpu"),
        (lambda inputs: [inputs[0].to("meta")], r"as f32\[4, 3\] on meta"),
        (lambda inputs: [torch.ones(3, 4).t()], r"with the strides \(1, 4\), expected contiguous"),
        (lambda inputs: [inputs[0]], "output 0 in the memory of an input"),
    ],
)
def test_an_engine_that_breaks_its_contract_is_named(
    standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch, function: Any, told: str
) -> None:
    monkeypatch.setattr(standin, "FUNCTIONS", {"odd": function})
    with pytest.raises(EngineError, match=f"^engine 'standin_0': .*{told}"):
        RUN([torch.randn(4, 3)], make_engine("odd", DOUBLE), DOUBLE)


def test_an_engine_that_cannot_be_made_is_named(standin: Any, make_engine: Any) -> None:
    with pytest.raises(EngineError, match=r"^engine 'standin_0': found that loading fails in the backend 'standin'"):
        RUN([torch.randn(4, 3)], make_engine("no such function", DOUBLE), DOUBLE)


def test_two_outputs_in_one_memory_are_refused(standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "FUNCTIONS", {"twins": lambda inputs: [(inputs[0] + 1)] * 2})
    signature = "(f32[b, 3]) -> (f32[b, 3], f32[b, 3])"
    with pytest.raises(EngineError, match="output 1 in the memory of an input or of another output"):
        RUN([torch.randn(4, 3)], make_engine("twins", signature), signature)


def test_an_interruption_of_an_engine_goes_through(
    standin: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(standin, "FUNCTIONS", {"odd": interrupt})
    engine = make_engine("odd", DOUBLE)
    with pytest.raises(KeyboardInterrupt):
        RUN([torch.randn(4, 3)], engine, DOUBLE)
