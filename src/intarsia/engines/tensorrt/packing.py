"""Programs that call TensorRT engines as objects, turned into programs that hold them as containers.

Such an object (a script object of the C++ runtime, or the Python runtime's) travels in a file as a pickle, and only
where Torch-TensorRT is there to read it. A container is bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.fx import Graph, Node

from intarsia._torch import FakeTensor, OpOverload, operator_name
from intarsia.core.op import RUN_ENGINE
from intarsia.core.writes import written_placeholders
from intarsia.engines.tensorrt.containers import make_signature, pack
from intarsia.engines.tensorrt.layout import EngineInfo
from intarsia.engines.tensorrt.modules import is_engine, read_engine
from intarsia.errors import HybridError, MutationError

_USER_OUTPUT = OutputKind.USER_OUTPUT
_ORDER = (InputKind.TOKEN, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


def pack_engines(program: ExportedProgram) -> ExportedProgram:
    """The program with containers in the place of Torch-TensorRT's objects; the program itself if it calls none.

    Args:
        program: Not modified; the new one has its very state, and nodes of the same names.

    Raises:
        HybridError: An engine is of a layout that is not known, or cannot be a container.
        MutationError: An engine writes into an input, and the program does not say so.
    """
    engines = _Engines(program)
    calls = [node for node in program.graph.nodes if engines.is_called_by(node)]
    if not calls:
        return program
    for call in calls:
        engines.check_writes(call)
    images: dict[Node, Node] = {}
    graph = Graph()
    graph.output(graph.graph_copy(program.graph, images)).meta = dict(program.graph.output_node().meta)
    for call in calls:
        image, name, signature = images[call], _name(call), engines.pack(call)
        image.target = RUN_ENGINE
        image.args = (list(image.args[0]), image.args[1], signature)  # type: ignore[arg-type]
        image.meta["val"] = engines.outputs(call)
        images[engines.placeholders[name]].meta["val"] = _describe(program, engines.packed[name])
    return _assemble(program, graph, engines.packed)


@dataclass
class _Engines:
    """The engines of a program, by the names of their placeholders.

    Attributes:
        packed: Containers made so far.
    """

    program: ExportedProgram
    packed: dict[str, torch.Tensor] = field(default_factory=dict)
    _infos: dict[str, EngineInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.placeholders = {node.name: node for node in self.program.graph.find_nodes(op="placeholder")}
        signature = self.program.graph_signature
        self._targets = {spec.arg.name: str(spec.target) for spec in signature.input_specs}
        self._declared = {str(spec.target) for spec in signature.output_specs if spec.kind is not _USER_OUTPUT}

    def is_called_by(self, node: Any) -> bool:
        """Whether a node calls an engine of Torch-TensorRT that the program holds."""
        if not isinstance(node.target, OpOverload) or operator_name(node.target) != "tensorrt::execute_engine":
            return False
        return is_engine(self.program.constants.get(self._targets.get(_name(node), "")))

    @cached_property
    def _written(self) -> set[str]:
        """Placeholders that the program declares as written, or writes."""
        declared = {name for name, target in self._targets.items() if {name, target} & self._declared}
        return declared | {node.name for node in written_placeholders(self.program.graph_module)}

    def pack(self, call: Node) -> str:
        """Make the container of a call's engine, unless it is there; gives the signature of the call."""
        name, info = _name(call), self.info(call)
        inputs = [node.meta["val"] for node in _inputs(call)]
        signature = make_signature(inputs, self.outputs(call), info.into, self._subject(name))
        if name not in self.packed:
            self.packed[name] = pack(info, signature, self._subject(name))
        return signature

    def info(self, call: Node) -> EngineInfo:
        """What is known of a call's engine."""
        name = _name(call)
        if name not in self._infos:
            self._infos[name] = read_engine(self.program.constants[self._targets[name]], self._subject(name))
        return self._infos[name]

    def outputs(self, call: Node) -> list[Any]:
        """What describes the outputs of a call; a program may leave those out that go into inputs."""
        info, described = self.info(call), list(call.meta["val"])
        inputs = _inputs(call)
        hidden = range(len(described), len(info.outputs))
        if len(inputs) != len(info.inputs) or len(described) > len(info.outputs) or not info.into.keys() >= set(hidden):
            raise HybridError(
                self._subject(_name(call)),
                found=f"a call with {len(inputs)} inputs and {len(described)} outputs (%{call.name})",
                expected=f"{len(info.inputs)} inputs and {len(info.outputs)} outputs, as the engine has",
                fix="Export the hybrid again.",
                node=call.name,
            )
        return [*described, *(inputs[info.into[i]].meta["val"] for i in hidden)]

    def check_writes(self, call: Node) -> None:
        """Refuse an engine that writes into what the program does not declare as written."""
        for output, into in self.info(call).into.items():
            node = self._origin(_inputs(call)[into])
            if node.name not in self._written:
                raise MutationError(
                    self._subject(_name(call)),
                    found=f"that output {output} is written into input {into} (%{node.name}), and nothing says so",
                    expected="a buffer or an input that the program declares as written",
                    consequence="Its update would be lost.",
                    fix="Export the hybrid with intarsia.export, which declares it.",
                    node=call.name,
                )

    def _origin(self, node: Node) -> Node:
        """What a value is: an output in the memory of an input is that input."""
        while node.target is getitem and self.is_called_by(node.args[0]):
            call: Any = node.args[0]
            into = self.info(call).into.get(node.args[1])  # type: ignore[arg-type]
            if into is None:
                break
            node = _inputs(call)[into]
        return node

    def _subject(self, name: str) -> str:
        return f"engine '{self._targets[name]}'"


def _name(call: Node) -> str:
    engine: Any = call.args[1]
    return str(engine.name)


def _inputs(call: Node) -> list[Node]:
    return list(call.args[0])  # type: ignore[arg-type]


def _describe(program: ExportedProgram, container: torch.Tensor) -> Any:
    described = (node.meta.get("val") for node in program.graph.nodes)
    mode = next(value.fake_mode for value in described if isinstance(value, FakeTensor))
    return mode.from_tensor(container, static_shapes=True)


def _assemble(program: ExportedProgram, graph: Graph, packed: Mapping[str, torch.Tensor]) -> ExportedProgram:
    specs, constants = [], dict(program.constants)
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if name in packed:
            constants[str(spec.target)] = packed[name]
            spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), spec.target)  # noqa: PLW2901 - replaced
        specs.append(spec)
    specs.sort(key=lambda spec: _ORDER.index(spec.kind) if spec.kind in _ORDER else len(_ORDER))
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for before, after in itertools.pairwise(nodes[spec.arg.name] for spec in specs):
        before.append(after)
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, list(program.graph_signature.output_specs)),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=program.verifiers,
    )
