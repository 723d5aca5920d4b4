"""Describe an exported program: its engines, torch operators, state, inputs, outputs and size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from intarsia._torch import int_bounds, is_unbounded
from intarsia.core.container import EngineContainer
from intarsia.core.dim import Size
from intarsia.core.engine_calls import read_containers
from intarsia.core.ledger import Ledger
from intarsia.core.op import RUN_ENGINE
from intarsia.core.paths import input_paths, output_paths
from intarsia.core.signature import SHORT_NAMES
from intarsia.core.writes import written_placeholders
from intarsia.report.storage import KINDS, describe_storage, state_entries

_DECLARED = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
Writers = Mapping[str, tuple[str, ...]]
"""Name of a placeholder -> what writes it in a call."""


@dataclass(frozen=True)
class EngineFacts:
    """One engine of a program.

    Attributes:
        name: Its name ("openvino_2").
        constant: Name of the constant of the program that holds its bytes.
        backend: Backend that built it.
        backend_version: Version of the backend's library.
        target: What it was compiled for.
        signature: Dtypes and shapes of its inputs and outputs.
        payload_bytes: Size of the compiled form, 0 when it was left out: the engine is built when it is first called.
        source_bytes: Size of the portable form, 0 when there is none.
        shared_bytes: Of these, constants that the file holds once for all who have them.
        same_as: The constant that holds the same bytes, which are stored once; empty for the first of them.
    """

    name: str
    constant: str
    backend: str
    backend_version: str
    target: str
    signature: str
    payload_bytes: int
    source_bytes: int
    shared_bytes: int
    same_as: str = ""


@dataclass(frozen=True)
class StateFacts:
    """One parameter, buffer or constant of a program, engines left out.

    Attributes:
        name: Its name in the model.
        kind: "parameter", "buffer", "non-persistent buffer", "constant" or "object".
        type: Dtype and shape, for instance "f32[384]"; the class of an object.
        size_bytes: Bytes of its elements.
        written_by: What writes it in a call, "aten.add.Tensor (%add_1)" for instance; empty when nothing does.
        writing: "in place" where a call writes only what changes, "whole copy: ..." with the reason where it copies
            the whole entry; empty when nothing writes it, or nobody said how.
    """

    name: str
    kind: str
    type: str
    size_bytes: int
    written_by: tuple[str, ...] = ()
    writing: str = ""


@dataclass(frozen=True)
class LeafFacts:
    """One input or output of a program.

    Attributes:
        name: Path of an input ("tokens['ids']") or of an output ("output['y']").
        type: Dtype and shape ("f32[s0, 384]"), or the constant value.
        written_by: What writes it in a call; empty when nothing does.
    """

    name: str
    type: str
    written_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramFacts:
    """What `describe_program` tells about a program.

    Attributes:
        dialect: Op set of the graph, for instance "ATEN".
        nodes: Number of nodes of the graph.
        inputs: The caller's inputs, in order.
        outputs: What the caller gets, in order.
        ranges: Symbolic size -> the values that it may take, for instance "2 to 256" or "any size".
        places: Symbolic size -> the first input that has it ("x.shape[0]"); sizes that none has are left out.
        engines: The engines, in the order of the state.
        operators: Operator that runs in torch -> number of nodes, the most frequent first; sizes left out.
        state: Parameters, buffers, constants and objects, engines left out.
        size_bytes: Part of the program -> bytes; storage that entries share is counted once.
        repeated_bytes: Weights that compiled engines hold again, in a form of their own.
        versions: What wrote the file -> version; empty when the file does not tell.
        ledger: Summary of the export, a line for each kind of thing; empty when the file carries no ledger.
    """

    dialect: str
    nodes: int
    inputs: tuple[LeafFacts, ...]
    outputs: tuple[LeafFacts, ...]
    ranges: Mapping[str, str]
    places: Mapping[str, str]
    engines: tuple[EngineFacts, ...]
    operators: Mapping[str, int]
    state: tuple[StateFacts, ...]
    size_bytes: Mapping[str, int]
    repeated_bytes: int
    versions: Mapping[str, str]
    ledger: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return asdict(self)


def describe_program(
    program: ExportedProgram,
    *,
    versions: Mapping[str, str] | None = None,
    ledger: Ledger | None = None,
    writes: Mapping[str, str] | None = None,
) -> ProgramFacts:
    """Gather the facts about a program. Nothing is executed, and no engine is instantiated.

    Args:
        program: Program of either dialect, with or without engines.
        versions: What wrote the program -> version, as its manifest says; None when it carries none.
        ledger: The account of its export, when there is one.
        writes: State entry that a call writes -> why it is copied as a whole, or no text where only what changes is
            written.

    Raises:
        EngineError: An engine's container is damaged.
    """
    engines = tuple(_engines(read_containers(program)))
    storage = describe_storage([program])
    writers = _writers(program)
    writing = {name: f"whole copy: {reason}" if reason else "in place" for name, reason in (writes or {}).items()}
    state = tuple(_state(program, {engine.constant for engine in engines}, writers, writing))
    return ProgramFacts(
        dialect=program.dialect,
        nodes=len(program.graph.nodes),
        inputs=tuple(_inputs(program, writers)),
        outputs=tuple(_outputs(program)),
        ranges=range_texts(program),
        places=_places(program),
        engines=engines,
        operators=_torch_operators(program),
        state=state,
        size_bytes=storage.size_bytes,
        repeated_bytes=storage.repeated_bytes,
        versions=dict(versions or {}),
        ledger=tuple(ledger.summary().splitlines()) if ledger else (),
    )


def value_type(value: object) -> str:
    """Dtype and shape of a tensor or fake tensor; any other value as Python writes it.

    Example:
        >>> value_type(torch.zeros(2, 3)), value_type(None)
        ('f32[2, 3]', 'None')
    """
    if isinstance(value, torch.Tensor):
        dtype = SHORT_NAMES.get(value.dtype, str(value.dtype))
        return f"{dtype}[{', '.join(str(size) for size in value.shape)}]"
    return str(value) if isinstance(value, torch.SymInt) else repr(value)


def range_texts(program: ExportedProgram) -> dict[str, str]:
    """Symbolic size -> the values that it may take, for instance "2 to 256" or "any size"."""
    told = {symbol: bounds for symbol, bounds in program.range_constraints.items() if not is_unbounded(bounds)}
    return {str(symbol): _range_text(bounds) for symbol, bounds in told.items()}


def _range_text(bounds: Any) -> str:
    lower, upper = int_bounds(bounds)
    if upper is not None:
        return f"{lower} to {upper}"
    # torch says "2 or more" of every size that it was told nothing about, and runs it with 0 and 1 all the same.
    return "any size" if lower == 2 else f"{lower} or more"


def _places(program: ExportedProgram) -> dict[str, str]:
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    found: dict[str, str] = {}
    for path, spec in zip(input_paths(program), specs, strict=True):
        value = values.get(spec.arg.name)
        if isinstance(value, torch.SymInt):
            found.setdefault(str(value), path)
        sizes: Sequence[Size] = value.shape if isinstance(value, torch.Tensor) else ()
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt):
                found.setdefault(str(size), f"{path}.shape[{axis}]")
    return found


def _inputs(program: ExportedProgram, writers: Writers) -> Iterator[LeafFacts]:
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    for path, spec in zip(input_paths(program), specs, strict=True):
        name = spec.arg.name
        constant = getattr(spec.arg, "value", None)
        value = values.get(name) if isinstance(values.get(name), torch.Tensor | torch.SymInt) else constant
        yield LeafFacts(path, value_type(value), writers.get(name, ()))


def _outputs(program: ExportedProgram) -> Iterator[LeafFacts]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    for path, spec in zip(output_paths(program.call_spec.out_spec), specs, strict=True):
        constant = getattr(spec.arg, "value", None)
        yield LeafFacts(path, value_type(values.get(spec.arg.name, constant)))


def _engines(containers: Mapping[str, EngineContainer]) -> Iterator[EngineFacts]:
    first: dict[bytes, str] = {}
    for constant, container in containers.items():
        same = first.setdefault(container.identity, constant)
        yield replace(_engine(constant, container), same_as="" if same == constant else same)


def _engine(constant: str, container: EngineContainer) -> EngineFacts:
    return EngineFacts(
        name=container.name,
        constant=constant,
        backend=container.backend,
        backend_version=container.backend_version,
        target=container.target,
        signature=container.signature,
        payload_bytes=container.payload_bytes,
        source_bytes=container.source_bytes,
        shared_bytes=sum(constant.size for constant in container.outside),
    )


def _torch_operators(program: ExportedProgram) -> dict[str, int]:
    calls = [node for node in program.graph.nodes if node.op == "call_function" and not _is_size(node)]
    counts = Counter(_operator_name(node.target) for node in calls if node.target not in (RUN_ENGINE, getitem))
    return dict(counts.most_common())


def _is_size(node: torch.fx.Node) -> bool:
    """Whether a node reads a size of a tensor, or does arithmetic on sizes: coverage does not count it either."""
    return str(node.target).startswith("aten.sym_") or (
        not hasattr(node.target, "namespace") and isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool)
    )


def _operator_name(target: Any) -> str:
    namespace = getattr(target, "namespace", None)
    return f"{namespace}.{target.__name__}" if namespace else str(target.__name__)


def _state(
    program: ExportedProgram, engines: Collection[str], writers: Writers, writing: Mapping[str, str]
) -> Iterator[StateFacts]:
    for spec, name, value in state_entries(program, engines):
        is_tensor = isinstance(value, torch.Tensor)
        yield StateFacts(
            name=name,
            kind="non-persistent buffer" if spec.persistent is False else KINDS.get(spec.kind, "object"),
            type=value_type(value) if is_tensor else type(value).__name__,
            size_bytes=value.numel() * value.element_size() if is_tensor else 0,
            written_by=writers.get(spec.arg.name, ()),
            writing=writing.get(name, ""),
        )


def _writers(program: ExportedProgram) -> Writers:
    """Placeholder that a call writes -> what writes it: a declared write by the node that makes the new value."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    placeholders = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
    found = {node.name: writers for node, writers in written_placeholders(program.graph_module).items()}
    for spec in signature.output_specs:
        if spec.kind in _DECLARED:
            written = placeholders.get(spec.target, spec.target)
            found.setdefault(str(written), []).append(nodes[spec.arg.name])
    engines = signature.inputs_to_lifted_tensor_constants
    return {name: tuple(_writer_text(node, engines) for node in writers) for name, writers in found.items()}


def _writer_text(node: torch.fx.Node, engines: Mapping[str, str]) -> str:
    """A node as a reader of the graph finds it, and what computes it: an operator, an engine or the caller."""
    maker = node
    while maker.op == "call_function" and maker.target is getitem:
        maker = maker.all_input_nodes[0]
    if maker.target is RUN_ENGINE:
        return f"engine {engines.get(str(maker.args[1]), '')} (%{node.name})"
    return f"{_operator_name(maker.target)} (%{node.name})" if maker.op == "call_function" else f"input %{node.name}"
