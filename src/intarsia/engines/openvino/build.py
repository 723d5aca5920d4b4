"""From a partition's exported program to an OpenVINO blob and its portable IR."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx.node import map_arg
from torch.fx.passes.shape_prop import TensorMetadata

from intarsia._torch import run_decompositions
from intarsia.core.backend import POSITIONS, WIDENED, BuiltEngine
from intarsia.core.dim import Size
from intarsia.engines.openvino.attention import clear_rows_without_keys
from intarsia.engines.openvino.engine import compile_model
from intarsia.engines.openvino.library import DEVICE, complete_options, element_types, find_core, import_openvino
from intarsia.engines.openvino.positions import find_input_positions
from intarsia.engines.openvino.refusal import refused, refused_conversion
from intarsia.engines.openvino.source import find_constants, pack_model
from intarsia.engines.openvino.table import is_listed
from intarsia.engines.openvino.unbinding import split_unbinds


def build_engine(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
    """Convert and compile a program; see `OpenVINOBackend.build`."""
    openvino = import_openvino()
    properties = complete_options(options)
    positions = [found._asdict() for found in find_input_positions(program)]
    model, widened = _convert(program)
    source = pack_model(model)
    compiled = compile_model(model, properties)
    return BuiltEngine(
        payload=compiled.export_model().getvalue(),
        source=source,
        backend_version=openvino.get_version(),
        target=f"{DEVICE}: {find_core().get_property(DEVICE, 'FULL_DEVICE_NAME')}",
        options={
            **options,
            **({POSITIONS: positions} if positions else {}),
            **({WIDENED: widened} if any(widened.values()) else {}),
        },
        constants=find_constants(source),
    )


def _convert(program: torch.export.ExportedProgram) -> tuple[Any, dict[str, list[int]]]:
    """The program as an OpenVINO model, with inputs and outputs of the same number, order, dtypes and ranks.

    Those of rank 0 have rank 1; their numbers are given beside the model, for `WIDENED`.
    """
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    module = _flat_module(_decompose(program))
    clear_rows_without_keys(module)
    split_unbinds(module)
    for node in module.graph.nodes:
        _add_tensor_meta(node)
    outputs = _take_repeated_outputs_out(module)
    frontend = FrontEndManager().load_by_framework("pytorch")
    try:
        # The decoder has to outlive the conversion, for the frontend holds no reference to it.
        decoder = TorchFXPythonDecoder(module)
        converted = frontend.convert(frontend.load(decoder))
    except Exception as error:
        raise refused_conversion(error, module, program) from error
    inputs = module.graph.find_nodes(op="placeholder")
    model = _with_all_ports(converted, inputs, outputs)
    _check_ports("input", model.inputs, [node.meta["val"] for node in inputs])
    _check_ports("output", model.outputs, [node.meta["val"] for node in outputs])
    model, widened = _widen(model)
    _name_layers(model)
    return model, widened


def _widen(model: Any) -> tuple[Any, dict[str, list[int]]]:
    """The model with one axis of size 1 for each input and output that has none, and their numbers."""
    openvino = import_openvino()
    opset = openvino.opset13
    parameters, sources = model.get_parameters(), [result.input_value(0) for result in model.get_results()]
    widened = {
        "inputs": [i for i, one in enumerate(parameters) if one.get_partial_shape().rank.get_length() == 0],
        "outputs": [i for i, one in enumerate(sources) if one.get_partial_shape().rank.get_length() == 0],
    }
    for i in widened["inputs"]:
        wide = opset.parameter([1], parameters[i].get_element_type())
        narrow = opset.squeeze(wide, opset.constant([0], openvino.Type.i64))
        for reader in parameters[i].output(0).get_target_inputs():
            reader.replace_source_output(narrow.output(0))
        sources = [narrow.output(0) if one.get_node() == parameters[i] else one for one in sources]
        parameters[i] = wide
    for i in widened["outputs"]:
        sources[i] = opset.unsqueeze(sources[i], opset.constant([0], openvino.Type.i64)).output(0)
    results = [opset.result(source) for source in sources]
    return (openvino.Model(results, parameters, "engine") if any(widened.values()) else model), widened


def _name_layers(model: Any) -> None:
    """Number the layers that OpenVINO named by a count that goes on through the process."""
    for i, layer in enumerate(model.get_ordered_ops()):
        if layer.get_friendly_name() == layer.get_name():
            layer.set_friendly_name(f"{layer.get_type_name()}_{i}")


def _take_repeated_outputs_out(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Let the graph return each node once, which is all that the frontend converts; all outputs that it had."""
    output = module.graph.output_node()
    nodes = _output_nodes(output)
    output.args = (tuple(dict.fromkeys(nodes)),)
    return nodes


def _with_all_ports(converted: Any, inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node]) -> Any:
    """The model with the inputs that the frontend left out because nobody reads them, and with repeated outputs."""
    openvino = import_openvino()
    opset = openvino.opset13
    found = {name: port.get_node() for port in converted.inputs for name in port.names}
    parameters = [found[node.name] if node.name in found else _parameter(node.meta["val"]) for node in inputs]
    unique = list(dict.fromkeys(outputs))
    if len(unique) != len(converted.outputs):
        raise refused(f"the converted model has {len(converted.outputs)} outputs where the program has {len(unique)}")
    sources = dict(zip(unique, (port.get_node().input_value(0) for port in converted.outputs), strict=True))
    return openvino.Model([opset.result(sources[node]) for node in outputs], parameters, "engine")


def _parameter(value: torch.Tensor) -> Any:
    openvino = import_openvino()
    sizes: Sequence[Size] = value.shape
    shape = openvino.PartialShape([-1 if isinstance(size, torch.SymInt) else size for size in sizes])
    return openvino.opset13.parameter(shape, element_types()[value.dtype])


def _decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with every operator that OpenVINO does not convert itself decomposed into those that it does."""
    operators = [node for node in program.graph.nodes if node.op == "call_function"]
    if all(is_listed(node) or node.target is operator.getitem for node in operators):
        return program
    table = torch.export.default_decompositions()
    sample = torch.fx.Graph()
    for target in list(table):
        if is_listed(sample.call_function(target)):
            del table[target]
    return run_decompositions(program, table)


def _flat_module(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """The program's graph with its state as attributes, as the decoder wants it: user inputs in, user outputs out."""
    signature = program.graph_signature
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise refused("it writes state or inputs")
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    state: dict[str, torch.Tensor] = {}
    graph = torch.fx.Graph()
    images: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in program.graph.nodes:
        spec = specs.get(node.name) if node.op == "placeholder" else None
        if spec is None:
            # Named by their operators alone, for equal programs shall have equal sources.
            args, kwargs = map_arg((node.args, node.kwargs), images.__getitem__)
            images[node] = graph.create_node(node.op, node.target, args, kwargs)
            images[node].meta = dict(node.meta)
        elif spec.kind is InputKind.USER_INPUT:
            # The frontend names parameters after the arguments of the generated code, in which some names are taken.
            images[node] = graph.placeholder(f"input_{len(graph.find_nodes(op='placeholder'))}")
            images[node].meta = dict(node.meta)
        else:
            name = f"state_{len(state)}"
            state[name] = _state_value(program, spec)
            images[node] = graph.get_attr(name)
            images[node].meta = dict(node.meta)
    return torch.fx.GraphModule(state, graph)


def _state_value(program: torch.export.ExportedProgram, spec: InputSpec) -> torch.Tensor:
    value = program.state_dict.get(spec.target, program.constants.get(spec.target))
    if not isinstance(value, torch.Tensor):
        raise refused(f"its input {spec.arg.name!r} is of the kind {spec.kind.name}")
    return value.detach()


def _add_tensor_meta(node: torch.fx.Node) -> None:
    """Say dtype and shape in the form that OpenVINO's decoder reads."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        node.meta = {**node.meta, "tensor_meta": _tensor_metadata(value)}


def _tensor_metadata(value: torch.Tensor) -> TensorMetadata:
    return TensorMetadata(
        shape=value.shape,
        dtype=value.dtype,
        requires_grad=False,
        stride=(),
        memory_format=None,
        is_quantized=False,
        qparams={},
    )


def _output_nodes(output: torch.fx.Node) -> list[torch.fx.Node]:
    outputs = output.args[0]
    if not isinstance(outputs, Sequence):
        raise refused(f"its output {outputs} is no sequence")
    nodes = [output for output in outputs if isinstance(output, torch.fx.Node)]
    if len(nodes) != len(outputs):
        raise refused("it returns something else than tensors")
    return nodes


def _check_ports(kind: str, ports: Sequence[Any], values: Sequence[torch.Tensor]) -> None:
    if len(ports) != len(values):
        raise refused(f"the converted model has {len(ports)} {kind}s where the program has {len(values)}")
    for i, (port, value) in enumerate(zip(ports, values, strict=True)):
        rank = port.partial_shape.rank
        expected = element_types().get(value.dtype)
        if port.element_type != expected or rank.is_dynamic or rank.get_length() != value.dim():
            raise refused(
                f"{kind} {i} of the converted model is {port.element_type.to_string()}{port.partial_shape} "
                f"where the program has {value.dtype}{list(value.shape)}"
            )
