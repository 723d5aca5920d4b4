"""Modules and engines of Torch-TensorRT that are not as they are known: one clear error each."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

import intarsia
from builders.hybrids import hybrid, tensor
from builders.tensorrt import TorchTensorRTModule, compiled, fields, sizes
from intarsia.engines.tensorrt.layout import EngineInfo
from intarsia.errors import HybridError

X = tensor(1, 2, 4)


def around(part: torch.nn.Module) -> GraphModule:
    return compiled(hybrid(lambda g: g.part("acc", g.placeholder("x")), {"acc": part}), (X,))


def python_part(**options: Any) -> TorchTensorRTModule:
    return TorchTensorRTModule("ftrt:relu", ["x"], ["output0"], python=True, **options)


@pytest.mark.parametrize("version", ["9", "10"])
def test_known_layouts(version: str) -> None:
    found = EngineInfo.read(fields("ftrt:relu", ["a", "b"], ["c"], version=version, several_devices="1"), "it")
    assert (found.plan, found.inputs, found.outputs) == (b"ftrt:relu", ("a", "b"), ("c",))
    assert (found.capability, found.device, found.platform) == ("8.9", "NVIDIA L4", "linux_x86_64")
    assert (found.several_devices, dict(found.into)) == (True, {})


def test_aliases_are_read_by_name() -> None:
    given = fields("ftrt:relu", ["a", "b"], ["c", "d", "e"], aliases="e@a@kv_cache_update%d@b@user")
    assert EngineInfo.read(given, "it").into == {2: 0, 1: 1}


@pytest.mark.parametrize(
    ("changed", "cut", "found"),
    [
        ({"version": "11"}, 13, r"an engine of layout \(ABI\) '11' with 13 texts, expected 9 \(12 texts\) or 10"),
        ({"version": "8"}, 11, r"an engine of layout \(ABI\) '8' with 11 texts"),
        ({"version": "10"}, 12, r"an engine of layout \(ABI\) '10' with 12 texts"),
        ({"device": "0%8"}, 13, "an engine whose list cannot be read"),
        ({"aliases": "c@none@user"}, 13, "an engine whose list cannot be read"),
    ],
)
def test_other_lists(changed: dict[str, str], cut: int, found: str) -> None:
    with pytest.raises(HybridError, match=f"it: found {found}"):
        EngineInfo.read(fields("ftrt:relu", ["x"], ["c"], **changed)[:cut], "it")


def test_a_plan_that_is_not_base64() -> None:
    given = fields("ftrt:relu", ["x"], ["c"])
    given[3] = "no base64!"
    with pytest.raises(HybridError, match="cannot be read"):
        EngineInfo.read(given, "it")


def test_a_list_of_an_unknown_layout_in_a_hybrid() -> None:
    with pytest.raises(HybridError, match=r"partition 'acc': found an engine of layout \(ABI\) '11'"):
        intarsia.export(around(python_part(changed={"version": "11"})))


def test_a_cpp_runtime_of_an_unknown_layout(runtime: None) -> None:
    subject = around(TorchTensorRTModule("ftrt:relu", ["x"], ["output0"]))
    torch.ops.tensorrt.set_abi_version("11")
    try:
        with pytest.raises(HybridError, match=r"partition 'acc': found an engine of layout \(ABI\) '11', expected"):
            intarsia.export(subject)
    finally:
        torch.ops.tensorrt.set_abi_version("10")


@pytest.mark.parametrize("name", ["input_binding_names", "output_binding_names", "engine"])
def test_a_module_without_what_it_should_have(name: str) -> None:
    subject = around(python_part())
    delattr(subject.acc, name)
    with pytest.raises(HybridError, match="partition 'acc': found a TorchTensorRTModule without input_binding_names"):
        intarsia.export(subject)


def test_another_kind_of_module() -> None:
    kind = type("PythonTorchTensorRTModule", (torch.nn.ReLU,), {"__module__": "torch_tensorrt.dynamo.runtime"})
    found = "found a PythonTorchTensorRTModule of Torch-TensorRT, expected a TorchTensorRTModule .* layout 9 or 10"
    with pytest.raises(HybridError, match=f"partition 'acc': {found}"):
        intarsia.export(around(kind()))


def test_an_engine_of_another_kind() -> None:
    subject = around(python_part())
    del subject.acc.engine.serialized_info
    with pytest.raises(HybridError, match="found an engine of type TRTEngine without serialized_info"):
        intarsia.export(subject)


def test_a_module_whose_engine_was_not_set_up() -> None:
    subject = around(python_part())
    subject.acc.engine = None
    with pytest.raises(HybridError, match=r"lazy_engine_init.*Call hybrid\.acc\.setup_engine\(\)"):
        intarsia.export(subject)


def test_a_module_without_an_engine() -> None:
    subject = around(python_part())
    subject.acc.engine = subject.acc.serialized_engine = None
    with pytest.raises(HybridError, match="found a TorchTensorRTModule without an engine"):
        intarsia.export(subject)


@pytest.mark.parametrize(
    ("flag", "found"), [("needs_allocator", "sizes that are known only when"), ("several_devices", "on other GPUs")]
)
def test_an_engine_that_no_container_can_hold(flag: str, found: str) -> None:
    with pytest.raises(HybridError, match=f"{found}.*No container can hold the engine"):
        intarsia.export(around(python_part(changed={flag: "1"})))


def test_an_engine_of_tensorrt_rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="1.5.0", _package_name="tensorrt_rtx"))
    with pytest.raises(HybridError, match=r"found an engine of TensorRT-RTX.*No container can hold the engine"):
        intarsia.export(around(python_part()))


def test_a_call_that_does_not_fit() -> None:
    subject = around(python_part())
    subject.acc.input_binding_names.append("y")
    with pytest.raises(HybridError, match="found a call with 1 arguments, expected 2: x, y"):
        intarsia.export(subject)


def test_outputs_that_do_not_fit() -> None:
    subject = around(python_part())
    subject.acc.output_binding_names.append("output1")
    with pytest.raises(HybridError, match="that are not the 1 of the module"):
        intarsia.export(subject)


def test_an_output_that_the_engine_has_once_and_the_partition_twice() -> None:
    subject = around(python_part())
    described = subject.graph.find_nodes(op="call_module")[0].meta["val"]
    described.append(described[0])
    with pytest.raises(HybridError, match=r"outputs of the engine \(output0\) that are not the 2 of the module"):
        intarsia.export(subject)


def test_a_call_that_nothing_describes() -> None:
    subject = around(python_part())
    subject.graph.find_nodes(op="call_module")[0].meta.clear()
    with pytest.raises(HybridError, match="neither metadata of its call that fits, nor sizes"):
        intarsia.export(subject)


def test_a_size_that_no_input_tells() -> None:
    subject = around(python_part(shapes=sizes([[2, 4]], [["u0", 4]])))
    subject.graph.find_nodes(op="call_module")[0].meta.clear()
    with pytest.raises(HybridError, match="an output of the size u0, which no input tells"):
        intarsia.export(subject)


def test_a_number_that_no_input_tells() -> None:
    shapes = sizes([[2, 4]], [[]])
    shapes["outputs"][0]["is_scalar"] = True
    subject = around(python_part(shapes=shapes))
    subject.graph.find_nodes(op="call_module")[0].meta.clear()
    with pytest.raises(HybridError, match="an output that is a number, which no input tells"):
        intarsia.export(subject)


def test_fewer_outputs_than_writes_beside_the_graph() -> None:
    subject = around(python_part())
    subject.meta["_copyback_mutation_buffers"] = ["a", "b"]
    with pytest.raises(HybridError, match="fewer than the 2 values of buffers"):
        intarsia.export(subject)


def test_another_word_for_engines() -> None:
    with pytest.raises(intarsia.errors.ArgumentError, match="found 'byte', expected 'objects' or 'bytes'"):
        intarsia.export(around(python_part()), engines="byte")  # type: ignore[call-overload]
