"""Hybrids of Torch-TensorRT, with stand-ins for it: exported as they are, and as bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule

import intarsia
from builders.hybrids import Buffer, Draft, aten, give_convention, hybrid, parameter, tensor
from builders.laws import FORMS, assert_follows, call, copied, expect, operators, printed, state_of, targets
from builders.tensorrt import EngineSerializer, TensorRT, TorchTensorRTModule, TRTEngine, compiled, fields, sizes

pytestmark = pytest.mark.usefixtures("runtime", "tensorrt_backend")
X, Y = tensor(1, 2, 4), tensor(2, 2, 4)


def torch_part(scale: torch.Tensor) -> GraphModule:
    return hybrid(lambda g: g.op(aten.mul.Tensor, g.placeholder("y"), g.get_attr("w")), {"w": parameter(scale)})


def two_engines() -> GraphModule:
    """engine(x) -> torch -> engine(torch, x): a `_run_on_acc` partition, a `_run_on_gpu` one, and another engine."""

    def fill(g: Draft) -> Any:
        x = g.placeholder("x")
        first = g.part("_run_on_acc_0", x)
        middle = g.part("_run_on_gpu_1", first)
        last = g.part("_run_on_acc_2", middle, x)
        return (g.item(last, 1), g.item(last, 0))

    parts = {
        "_run_on_acc_0": TorchTensorRTModule("ftrt:relu", ["x"], ["output0"]),
        "_run_on_gpu_1": torch_part(tensor(3, 4)),
        "_run_on_acc_2": TorchTensorRTModule("ftrt:affine", ["mul", "x"], ["output0", "output1"]),
    }
    return compiled(hybrid(fill, parts), (X,))


@pytest.mark.parametrize("form", FORMS)
def test_engines_of_the_cpp_runtime_stay_script_objects(form: str) -> None:
    wanted = expect(two_engines(), [call(X), call(Y)])
    subject = two_engines()
    before = printed(subject)
    program = intarsia.export(subject)
    assert printed(subject) == before
    assert operators(program).count(torch.ops.tensorrt.execute_engine.default) == 2
    assert targets(program, "CUSTOM_OBJ") == ["_run_on_acc_0_engine", "_run_on_acc_2_engine"]
    held = program.constants["_run_on_acc_0_engine"]
    assert held is subject.get_submodule("_run_on_acc_0").engine
    assert_follows(FORMS[form](program), {}, [call(X), call(Y)], wanted)


def test_the_program_is_the_retraced_one() -> None:
    program = intarsia.export(two_engines())
    retraced = intarsia.export(two_engines(), (X,), retrace=True)
    assert operators(program) == operators(retraced)
    for x in (X, Y):
        for found, wanted in zip(program.module()(x), retraced.module()(x), strict=True):
            assert torch.equal(found, wanted)


def test_every_engine_and_node_is_in_the_ledger() -> None:
    ledger = intarsia.ledger(intarsia.export(two_engines()))
    assert [(entry.subject, entry.fate) for entry in ledger.select("engine")] == [
        ("_run_on_acc_0", "kept"),
        ("_run_on_acc_2", "kept"),
    ]


def test_as_bytes_the_program_holds_containers(tensorrt: TensorRT) -> None:
    program = intarsia.export(two_engines(), engines="bytes")
    assert targets(program, "CUSTOM_OBJ") == []
    assert targets(program, "CONSTANT_TENSOR") == ["_run_on_acc_0_engine", "_run_on_acc_2_engine"]
    assert [entry.subject for entry in intarsia.ledger(program).select("engine")] == ["_run_on_acc_0", "_run_on_acc_2"]
    assert "(f32[2, 4], f32[2, 4]) -> (f32[2, 4], f32[2, 4])" in str(program.graph)


def one_engine(plan: str, outputs: int = 1, **options: Any) -> GraphModule:
    names = [f"output{i}" for i in range(outputs)]
    return compiled(
        hybrid(
            lambda g: g.part("_run_on_acc_0", g.placeholder("x")),
            {"_run_on_acc_0": TorchTensorRTModule(plan, ["x"], names, **options)},
        ),
        (X,),
    )


def test_a_file_runs_with_tensorrt_alone(tensorrt: TensorRT, tmp_path: Any) -> None:
    for name, given in (("hybrid", one_engine("ftrt:relu")), ("program", intarsia.export(one_engine("ftrt:relu")))):
        intarsia.save(given, tmp_path / f"{name}.pt2")
        loaded = intarsia.load(tmp_path / f"{name}.pt2")
        assert torch.equal(loaded(Y), Y.relu())
        assert len(intarsia.ledger(loaded).select("engine")) == 1


@pytest.mark.parametrize("version", ["9", "10"])
def test_engines_of_the_python_runtime_become_containers(version: str, tensorrt: TensorRT) -> None:
    module = TorchTensorRTModule("ftrt:relu", ["x"], ["output0"], python=True, changed={"version": version})
    subject = compiled(hybrid(lambda g: g.part("_run_on_acc_0", g.placeholder("x")), {"_run_on_acc_0": module}), (X,))
    program = intarsia.export(subject)
    assert operators(program)[0] is torch.ops.intarsia.run_engine.default
    assert torch.equal(program.module()(Y), subject(Y))


@pytest.mark.parametrize("kind", [TRTEngine, EngineSerializer])
def test_a_program_that_holds_engines_of_the_python_runtime(kind: Any, tensorrt: TensorRT, tmp_path: Any) -> None:
    program = intarsia.export(one_engine("ftrt:relu"))
    program.constants["_run_on_acc_0_engine"] = kind(fields("ftrt:relu", ["x"], ["output0"]))
    intarsia.save(program, tmp_path / "relu.pt2")
    assert torch.equal(intarsia.load(tmp_path / "relu.pt2")(Y), Y.relu())


@pytest.mark.parametrize("python", [False, True])
def test_a_file_whose_engine_is_of_another_gpu_or_version(python: bool, tensorrt: TensorRT, tmp_path: Any) -> None:
    intarsia.save(one_engine("ftrt:relu", python=python), tmp_path / "relu.pt2")
    tensorrt.refuses = True
    with pytest.raises(intarsia.errors.EngineRefused, match="the engine was built on another device"):
        intarsia.load(tmp_path / "relu.pt2")(Y)


def test_sizes_that_are_known_only_when_the_engine_has_run(tmp_path: Any) -> None:
    changed = {"needs_allocator": "1"}
    program = intarsia.export(one_engine("ftrt:positive", changed=changed))
    assert torch.equal(program.module()(Y), Y[Y > 0])
    with pytest.raises(intarsia.errors.HybridError, match=r"u0.*No container can hold the engine"):
        intarsia.save(program, tmp_path / "positive.pt2")


def test_sizes_are_those_that_the_module_kept_where_others_are_asked_for(tensorrt: TensorRT) -> None:
    tensorrt.ranges = [{"x": ((1, 4), (8, 4))}]
    subject = one_engine("ftrt:repeat", shapes=sizes([["s0", 4]], [["2*s0", 4]]))
    rows = torch.export.Dim("rows", min=1, max=8)
    for engines in ("objects", "bytes"):
        program = intarsia.export(subject, (X,), dynamic_shapes=({0: rows},), engines=engines)
        for count in (1, 2, 7):
            x = tensor(count, count, 4)
            assert torch.equal(program.module()(x), torch.cat([x, x]))


def test_a_dynamic_size_in_the_metadata(tensorrt: TensorRT) -> None:
    module = TorchTensorRTModule("ftrt:repeat", ["x"], ["output0"])
    graph = hybrid(lambda g: g.part("_run_on_acc_0", g.placeholder("x")), {"_run_on_acc_0": module})
    program = intarsia.export(compiled(graph, (tensor(1, 3, 4),), dynamic={0: {0: "rows"}}), engines="bytes")
    assert torch.equal(program.module()(tensor(5, 5, 4)), torch.cat([tensor(5, 5, 4)] * 2))


def test_keywords_and_nested_outputs() -> None:
    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            a, b = g.inputs("a b")
            both = g.part("_run_on_acc_0", b, a)
            return (g.item(both, 1), g.item(both, 0), a)

        parts = {"_run_on_acc_0": TorchTensorRTModule("ftrt:affine", ["b", "a"], ["output0", "output1"])}
        graph = give_convention(hybrid(fill, parts), ["a", "b"], ((0,), {"b": 1}), {"low": 0, "rest": [1, (2,)]})
        return compiled(graph, (X,), {"b": Y})

    wanted = expect(build(), [call(X, b=Y)])
    assert_follows(intarsia.export(build()), {}, [call(X, b=Y)], wanted)


def test_numbers_cross_as_tensors() -> None:
    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            x = g.placeholder("x")
            rows = g.op(aten.sym_size.int, x, 0)
            both = g.part("_run_on_acc_0", x, rows)
            return (g.item(both, 0), g.item(both, 1))

        parts = {"_run_on_acc_0": TorchTensorRTModule("ftrt:add number", ["x", "rows"], ["output0", "output1"])}
        return compiled(hybrid(fill, parts), (tensor(1, 3, 4),), dynamic={0: {0: "rows"}})

    wanted = expect(build(), [call(X), call(tensor(4, 5, 4))])
    assert_follows(intarsia.export(build()), {}, [call(X), call(tensor(4, 5, 4))], wanted)


def complex_input(z: torch.Tensor) -> GraphModule:
    """As Torch-TensorRT leaves it: the metadata of the input is that of its parts, in the precision of the engine."""

    def fill(g: Draft) -> Any:
        parts = g.op(aten.view_as_real.default, g.placeholder("z"))
        taken = g.op(aten.to.dtype, parts, torch.float32) if z.dtype is torch.complex128 else parts
        return (g.part("_run_on_acc_0", taken), parts)

    part = TorchTensorRTModule("ftrt:relu", ["z_unpacked_complex"], ["output0"])
    subject = compiled(hybrid(fill, {"_run_on_acc_0": part}), (z,))
    described = next(iter(subject.graph.nodes)).meta
    with described["val"].fake_mode:
        described["val"] = torch.view_as_real(described["val"]).float()
    return subject


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_input_is_described_as_it_is(dtype: torch.dtype) -> None:
    z = torch.complex(X, Y).to(dtype)
    subject = complex_input(z)
    before = printed(subject)
    program = intarsia.export(subject)
    assert printed(subject) == before
    assert [node.meta["val"].dtype for node in program.graph.nodes if node.name == "z"] == [dtype]
    relu, parts = program.module()(z)
    assert torch.equal(parts, torch.view_as_real(z))
    assert torch.equal(relu, torch.view_as_real(z).float().relu())


CACHE, ROW = tensor(5, 1, 2, 8, 4), tensor(6, 1, 2, 1, 4)
KV = {"output1": ("buf_cache", "kv_cache_update")}


def kv_engine(**options: Any) -> TorchTensorRTModule:
    return TorchTensorRTModule("ftrt:write row", ["buf_cache", "x"], ["output0", "output1"], aliased_io=KV, **options)


def with_buffer(**options: Any) -> GraphModule:
    """A cache that Torch-TensorRT lifted: a buffer of the hybrid, which the engine writes in place."""

    def fill(g: Draft) -> Any:
        return (g.part("_run_on_acc_0", g.get_attr("cache"), g.placeholder("x")),)

    parts = {"_run_on_acc_0": kv_engine(**options), "cache": Buffer(CACHE.clone())}
    return compiled(hybrid(fill, parts), (ROW,))


def test_an_output_in_the_memory_of_a_buffer_is_a_declared_write() -> None:
    calls = [call(ROW), call(2 * ROW)]
    wanted = expect(with_buffer(), calls)
    program = intarsia.export(with_buffer())
    assert targets(program, "BUFFER_MUTATION") == ["cache"]
    assert_follows(program, {"cache": "cache"}, calls, wanted)


@pytest.mark.parametrize("python", [False, True])
def test_such_a_write_as_bytes_and_in_a_file(python: bool, tensorrt: TensorRT, tmp_path: Any) -> None:
    tensorrt.inputs, tensorrt.outputs = ["buf_cache", "x"], ["output0", "output1"]
    tensorrt.aliases = {"output1": "buf_cache"}
    tensorrt.ranges = [{"buf_cache": ((1, 2, 8, 4),) * 2, "x": ((1, 2, 1, 4),) * 2}]
    wanted = expect(with_buffer(), [call(ROW), call(2 * ROW)])
    subject = with_buffer(python=python)
    assert_follows(intarsia.export(subject, engines="bytes"), {"cache": "cache"}, [call(ROW), call(2 * ROW)], wanted)
    intarsia.save(with_buffer(python=python), tmp_path / "kv.pt2")
    loaded = intarsia.load(tmp_path / "kv.pt2")
    for index, x in enumerate((ROW, 2 * ROW)):
        assert torch.equal(loaded(x)[0], wanted.outputs[index][0])
    assert torch.equal(loaded.state["cache"], wanted.state["cache"])


def test_an_output_in_the_memory_of_an_input() -> None:
    def build() -> GraphModule:
        def fill(g: Draft) -> Any:
            return (g.part("_run_on_acc_0", *g.inputs("cache x")),)

        return compiled(hybrid(fill, {"_run_on_acc_0": kv_engine()}), (CACHE.clone(), ROW))

    wanted = expect(build(), [call(CACHE, ROW)])
    program = intarsia.export(build())
    assert targets(program, "USER_INPUT_MUTATION") == ["cache"]
    assert_follows(program, {}, [call(CACHE, ROW)], wanted)


@pytest.mark.parametrize("python", [False, True])
def test_an_output_in_the_memory_of_a_computed_value(python: bool) -> None:
    def fill(g: Draft) -> Any:
        cache, x = g.inputs("cache x")
        return (g.part("_run_on_acc_0", g.op(aten.neg.default, cache), x),)

    subject = compiled(hybrid(fill, {"_run_on_acc_0": kv_engine(python=python)}), (CACHE.clone(), ROW))
    with pytest.raises(intarsia.errors.MutationError, match="output 1 aliases input 0, which is computed"):
        intarsia.export(subject)


def lifted_copy() -> GraphModule:
    """A write that no engine makes: the new value is the graph's last output, which `forward` leaves out."""

    def fill(g: Draft) -> Any:
        x, state = g.placeholder("x"), g.get_attr("state")
        both = g.part("_run_on_acc_0", x, state)
        return (g.item(both, 1), g.item(both, 0))

    engine = TorchTensorRTModule("ftrt:affine", ["x", "state"], ["output0", "output1"])
    subject = compiled(hybrid(fill, {"_run_on_acc_0": engine, "state": Buffer(Y.clone())}), (X,))
    subject.meta["_copyback_mutation_buffers"] = ["state"]
    return subject


def test_a_write_that_is_kept_beside_the_graph_is_declared() -> None:
    subject = lifted_copy()
    before = printed(subject)
    program = intarsia.export(subject)
    assert printed(subject) == before
    assert targets(program, "BUFFER_MUTATION") == ["state"]
    assert len(targets(program, "USER_OUTPUT")) == 1
    module = program.module()
    state = Y.clone()
    for _ in range(2):
        (difference,) = module(X)
        assert torch.equal(difference, X - state)
        state = X * 2 + state
        assert torch.equal(program.state_dict["state"], state)
    assert torch.equal(state_of(subject)["state"], copied(state))


def test_a_program_of_another_exporter_that_says_nothing_of_a_write_is_not_saved(tmp_path: Any) -> None:
    program = intarsia.export(with_buffer())
    program.graph_signature.output_specs[:] = program.graph_signature.output_specs[1:]
    with pytest.raises(intarsia.errors.MutationError, match="output 1 is written into input 0"):
        intarsia.save(program, tmp_path / "lost.pt2")


def test_an_inlined_hybrid_as_bytes(tensorrt: TensorRT) -> None:
    inlined = intarsia.export(one_engine("ftrt:relu")).module()
    program = intarsia.export(inlined, (X,), engines="bytes")
    assert operators(program)[0] is torch.ops.intarsia.run_engine.default
    assert torch.equal(program.module()(Y), Y.relu())


def test_two_methods_have_engines_of_one_name(tensorrt: TensorRT, tmp_path: Any) -> None:
    intarsia.save({"first": one_engine("ftrt:relu"), "second": one_engine("ftrt:scale")}, tmp_path / "two.pt2")
    loaded = intarsia.load(tmp_path / "two.pt2")
    assert torch.equal(loaded.first(Y), Y.relu())
    assert torch.equal(loaded.second(Y), Y * 3)


def test_two_methods_keep_script_objects_of_one_name() -> None:
    programs = intarsia.export({"first": one_engine("ftrt:relu"), "second": one_engine("ftrt:scale")})
    assert torch.equal(programs["second"].module()(Y), Y * 3)
