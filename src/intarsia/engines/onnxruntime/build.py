"""From a partition's exported program to an ONNX model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from intarsia._torch import export_to_onnx
from intarsia.core.backend import BuiltEngine
from intarsia.core.signature import EngineSignature
from intarsia.core.uses import describe_integers
from intarsia.engines.onnxruntime.engine import make_session
from intarsia.engines.onnxruntime.installation import find_version
from intarsia.engines.onnxruntime.library import read_options
from intarsia.engines.onnxruntime.registry import find_registry
from intarsia.engines.onnxruntime.source import pack_model, separate_weights
from intarsia.errors import EngineBuildFailed, first_line, shorten

if TYPE_CHECKING:
    import onnx_ir


def build_engine(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
    """Export a program to ONNX, and make a session of it to see that it can be; see `ONNXRuntimeBackend.build`."""
    chosen = read_options(options)
    signature = _signature(program)
    described = describe_integers(program)
    model = _convert(program)
    operators = _name_nodes(model)
    separate = separate_weights(model, signature.canonical)
    try:
        # Before the weights are copied: a session has copies of its own, for a time two.
        make_session(separate, chosen)
    except EngineBuildFailed as error:
        error.operators = tuple(
            {operator for name, operator in operators.items() if re.search(rf"\b{name}\b", error.found)}
        )
        raise
    packed = pack_model(separate)
    return BuiltEngine(
        payload=None,
        source=packed.source,
        backend_version=find_version(),
        target=", ".join(chosen.providers),
        options={**options, **described},
        constants=packed.constants,
    )


def _signature(program: torch.export.ExportedProgram) -> EngineSignature:
    specs = program.graph_signature
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in specs.output_specs):
        raise _refused("it writes state or inputs")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs: list[Any] = [values[spec.arg.name] for spec in specs.input_specs if spec.kind is InputKind.USER_INPUT]
    outputs: list[Any] = [values.get(spec.arg.name) for spec in specs.output_specs]
    if not all(isinstance(value, torch.Tensor) for value in (*inputs, *outputs)):
        raise _refused("it takes or returns something else than tensors")
    return EngineSignature.from_values(inputs, outputs)


def _convert(program: torch.export.ExportedProgram) -> onnx_ir.Model:
    try:
        with _views_as_reshapes(program):
            return export_to_onnx(program, find_registry())
    except Exception as error:
        chain = list(_causes(error))
        missing = [f"{found[1]}.{found[2]}" for one in chain for found in [_UNKNOWN.search(str(one))] if found]
        raise _refused(
            f"{type(chain[-1]).__name__}: {shorten(first_line(chain[-1]), 400)}", sorted(set(missing))
        ) from error


@contextmanager
def _views_as_reshapes(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Have the exporter, which traces the program again, find no view illegal: ONNX knows no strides."""
    views = program.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default)
    for node in views:
        node.target = torch.ops.aten.reshape.default
    try:
        yield
    finally:
        for node in views:
            node.target = torch.ops.aten.view.default


_UNKNOWN = re.compile(r"No ONNX function found for <OpOverload\(op='(aten\.\w+)', overload='(\w+)'\)>")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from, the first of all at the end."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _name_nodes(model: onnx_ir.Model) -> dict[str, str]:
    """Number the nodes of a model, and tell the torch operator of each by its new name."""
    import onnx_ir

    operators: dict[str, str] = {}
    for i, node in enumerate(onnx_ir.traversal.RecursiveGraphIterator(model.graph)):
        node.name = f"{node.op_type}_{i}"
        source = node.meta.get("node")
        if source is not None:
            operators[node.name] = str(source.target)
    return operators


def _refused(reason: str, operators: Sequence[str] = ()) -> EngineBuildFailed:
    return EngineBuildFailed(
        "ONNX",
        found=f"that torch does not export the program to it: {reason}",
        expected="a program that it exports",
        fix="Keep the operator concerned in torch with torch_executed_ops.",
        operators=operators,
    )
