"""The only module that touches a private name of torch: one documented function or name per use.

Each says why no public name does. All were tried on torch 2.13.0; on 2.14.1 all but what the judgement of files reads
(`graph_schema` and what follows it) and `buffers_of`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sympy
import torch
import torch.utils._pytree as pytree
from torch._export.verifier import TrainingIRVerifier, Verifier
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, disable_fake_tensor_cache
from torch.export._unlift import GuardsFn
from torch.export.dynamic_shapes import _DerivedDim, _DimHint, _DimHintType, _StaticDim
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

if TYPE_CHECKING:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

__all__ = [
    "ASSERT",
    "MODE_SWITCHES",
    "DerivedDim",
    "DimHint",
    "FakeTensor",
    "FakeTensorMode",
    "GraphSchema",
    "HigherOrderOperator",
    "OnnxRegistry",
    "OpOverload",
    "OpOverloadPacket",
    "PytreeConvention",
    "RegisteredContainer",
    "Schema",
    "TreeSpec",
    "ValueRanges",
    "bounds_of",
    "buffers_of",
    "close_container",
    "compile_package",
    "container_kind",
    "deserialize_graph",
    "dtype_codes",
    "export_to_onnx",
    "find_compiler",
    "graph_schema",
    "higher_order_operators",
    "inductor_options",
    "int_bounds",
    "is_buffer",
    "is_guard_module",
    "is_static_hint",
    "is_training",
    "load_archive",
    "new_fake_mode",
    "new_symbol",
    "non_persistent_buffers",
    "onnx_registry",
    "open_container",
    "open_runner",
    "operator_name",
    "pytree",
    "pytree_convention",
    "quiet_specs",
    "registered_containers",
    "run_decompositions",
    "schema_hints",
    "schema_of",
    "script_class",
    "serialize_graph",
    "text_arguments",
    "verifiers_for",
    "where_registered",
    "without_cache",
]

# Types of call targets; torch has no public names for them.
HigherOrderOperator = torch._ops.HigherOrderOperator
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket

# A fake mode that looks up no earlier call: its cache compares arguments, and script objects cannot be compared.
without_cache = disable_fake_tensor_cache

# What a graph refuses values with: on the CPU a RuntimeError with its text. No public operator does.
ASSERT = torch.ops.aten._assert_async.msg

# Functions that `torch.export` leaves in a graph to switch autograd and autocast on and off; all are private.
MODE_SWITCHES = frozenset(
    [
        torch._C._set_grad_enabled,
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
    ]
)

# Entries of `dynamic_shapes` besides `torch.export.Dim`; public expressions make them (`2 * dim`, `Dim.AUTO`).
DerivedDim = _DerivedDim
DimHint = _DimHint

# `torch.export` states its calling conventions in these specs; `torch.utils.pytree` makes others.
TreeSpec = pytree.TreeSpec


class PytreeConvention(NamedTuple):
    """Names and structures that a graph's pytree code generation carries."""

    names: list[str]
    in_spec: TreeSpec
    out_spec: TreeSpec | None


def pytree_convention(graph: torch.fx.Graph) -> PytreeConvention | None:
    """The calling convention of a graph with pytree code generation, or None for plain code generation.

    A graph keeps it in a private attribute, and its class has no public name.
    """
    codegen = graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen) or codegen.pytree_info is None:
        return None
    return PytreeConvention(*codegen.pytree_info)


def copy_convention(source: torch.fx.Graph, target: torch.fx.Graph) -> None:
    """Give `target` the code generation, and so the calling convention, of `source`; graphs do not show theirs."""
    target.set_codegen(source._codegen)


@contextmanager
def quiet_specs() -> Iterator[None]:
    """Keep from the user what torch says of its own private class whenever a pytree spec is copied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning)
        yield


class Schema(NamedTuple):
    """What an operator's schema says about memory.

    Attributes:
        written: Positions of arguments that the operator writes, and their names.
        aliased: Positions of arguments that a result may alias, and their names.
        argument_names: Names of all arguments, by position.
        results: Container of several results: a list for one result that is a list, else a tuple.
    """

    written: tuple[int, ...]
    aliased: tuple[int, ...]
    argument_names: tuple[str, ...]
    results: type = tuple


_NO_SCHEMA = Schema((), (), ())
_SCHEMAS: dict[int, Schema] = {}  # by identity: hashing an operator is slow, and operators live as long as torch


def schema_of(target: Any) -> Schema:
    """What a call target writes and aliases; an operator object shows its schema under a private name only.

    Targets that are no operators of one schema (higher-order operators, Python functions) write and alias nothing.
    """
    if not isinstance(target, OpOverload):
        return _NO_SCHEMA
    found = _SCHEMAS.get(id(target))
    if found is None:
        schema = target._schema
        arguments = list(enumerate(schema.arguments))
        written = tuple(i for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)
        views = any(result.alias_info is not None for result in schema.returns)
        aliased = tuple(i for i, a in arguments if views and a.alias_info is not None)
        results = list if len(schema.returns) == 1 else tuple
        found = _SCHEMAS[id(target)] = Schema(written, aliased, tuple(a.name for _, a in arguments), results)
    return found


def is_guard_module(module: torch.nn.Module) -> bool:
    """Whether this is the module of input checks that `ExportedProgram.module()` puts in; its class is private."""
    return isinstance(module, GuardsFn)


def script_class(value: torch.ScriptObject) -> str:
    """Qualified name of a script object's class; the object tells its type under a private name only."""
    return str(value._type().qualified_name())


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The dict in which a module holds its own buffers; public names give copies of it, and set no buffer unseen."""
    return module._buffers


def is_buffer(module: torch.nn.Module, name: str) -> bool:
    """Whether the module itself registered a buffer of this name; public methods list all buffers to tell one."""
    return name in module._buffers


def non_persistent_buffers(module: torch.nn.Module) -> set[str]:
    """Names of the module's own buffers that its state dict leaves out; no public method lists them."""
    return module._non_persistent_buffers_set


def verifiers_for(*, writes_in_place: bool) -> list[type[Verifier]]:
    """Verifiers of the dialect that a graph is in: one that writes in place is TRAINING, else it is ATEN."""
    return [TrainingIRVerifier] if writes_in_place else [Verifier]


def is_training(program: torch.export.ExportedProgram) -> bool:
    """Whether the program is in the dialect whose graph writes in place; the verifier's name says so."""
    return bool(program.verifiers[0].dialect == "TRAINING")


def new_fake_mode() -> FakeTensorMode:
    """A fake mode whose sizes are static unless they are made symbolic by `new_symbol`."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def new_symbol(shape_env: ShapeEnv, hint: int, bounds: ValueRanges[sympy.Integer], name: str) -> torch.SymInt:
    """A symbolic size in a range; `ShapeEnv` makes symbols for a source only, whose classes are private."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = shape_env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    shape_env.var_to_range[symbol] = bounds
    return shape_env.create_symintnode(symbol, hint=hint, source=source)  # type: ignore[return-value]


def is_static_hint(dim: object) -> bool:
    """Whether an entry of `dynamic_shapes` asks for a static size; the classes that say so are private."""
    return bool(isinstance(dim, _StaticDim) or (isinstance(dim, _DimHint) and dim.type == _DimHintType.STATIC))


def int_bounds(bounds: ValueRanges[Any]) -> tuple[int, int | None]:
    """Lower and upper bound of a range of sizes, 0 and None where there is none; see `bounds_of`.

    A number that a graph reads from a tensor has neither. Torch's own infinities become those of sympy in a file, and
    none of the four is an `Integer`.
    """
    lower = max(int(bounds.lower), 0) if bounds.lower.is_Integer else 0
    return lower, int(bounds.upper) if bounds.upper.is_Integer else None


def is_unbounded(bounds: ValueRanges[Any]) -> bool:
    """Whether a range says nothing: that of a number which a graph reads from a tensor, unless it was told more."""
    return not (bounds.lower.is_Integer or bounds.upper.is_Integer)


def bounds_of(lower: int, upper: Any) -> ValueRanges[sympy.Integer]:
    """A range of sizes; an upper bound of None is torch's integer infinity, which has no public name."""
    return ValueRanges(lower, int_oo if upper is None else upper)


def container_kind(value: Any) -> Any:
    """What torch flattens `value` as: its type, or `collections.namedtuple` for every named tuple.

    A structure's `type` can only be compared with this; torch has no public name for it.
    """
    return pytree._get_node_type(value)


def open_container(kind: Any, value: Any) -> tuple[list[Any], Any]:
    """Children and context of one registered container, one level deep; the public functions flatten all levels."""
    children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
    return list(children), context


def close_container(kind: Any, children: Sequence[Any], context: Any) -> Any:
    """The registered container that `open_container` opened."""
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(children, context)


def load_archive(file: Any) -> dict[str, torch.export.ExportedProgram]:
    """The programs of a PT2 archive, by name.

    `torch.export.load` answers any RuntimeError with a logged traceback and a second try in an older format.
    """
    from torch.export.pt2_archive._package import load_pt2

    programs: dict[str, torch.export.ExportedProgram] = load_pt2(file).exported_programs
    return programs


def run_decompositions(
    program: torch.export.ExportedProgram, table: dict[Any, Any] | None = None
) -> torch.export.ExportedProgram:
    """`program.run_decompositions(table or {})` without torch's warnings about itself.

    That of 2.13 is about its own class, see `quiet_specs`; 2.14 takes some `aten.copy` nodes out twice. A program that
    was loaded keeps the range of a derived size (`4*s0`) among those of symbols, where torch 2.13 accepts none: it is
    taken out there. The program's `range_constraints` still say it.
    """
    _forget_derived_sizes(program)
    with quiet_specs():
        warnings.filterwarnings("ignore", "erase_node.* on an already erased node", UserWarning)
        decomposed: torch.export.ExportedProgram = program.run_decompositions(table or {})
    return decomposed


OnnxRegistry: TypeAlias = "ONNXRegistry"
"""The exporter's table of operators that it translates to ONNX; its class is private."""


def onnx_registry(opset: int, translations: Mapping[Any, Any]) -> OnnxRegistry:
    """The exporter's table of operators for a version of ONNX's, with our translations before its own.

    `torch.onnx` uses it and does not show it.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with _quiet_exporter():
        registry = ONNXRegistry.from_torchlib(opset_version=opset)
        for target, function in translations.items():
            registry.register_op(target, function)
    return registry


def export_to_onnx(program: torch.export.ExportedProgram, registry: OnnxRegistry) -> Any:
    """What `torch.onnx.export(program, dynamo=True)` returns, as a model of `onnx_ir`.

    The public function reads the registry anew each time, which takes longer than to export a partition.
    """
    from torch.onnx._internal.exporter import _core

    _forget_derived_sizes(program)
    # Where gradients are recorded, what the exporter runs has other layouts (attention) than what was captured.
    with _quiet_exporter(), torch.no_grad():
        return _core.export(program, registry=registry, opset_version=registry.opset_version, verbose=False).model


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep from the user what the exporter says of operators of other packages, and torch of its own classes."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _forget_derived_sizes(program: torch.export.ExportedProgram) -> None:
    for shape_env in _shape_envs(program):
        for size in [size for size in shape_env.var_to_range if not size.is_Symbol]:
            del shape_env.var_to_range[size]


def _shape_envs(program: torch.export.ExportedProgram) -> set[ShapeEnv]:
    values = (node.meta.get("val") for node in program.graph.find_nodes(op="placeholder"))
    modes = {value.fake_mode for value in values if isinstance(value, FakeTensor)}
    return {mode.shape_env for mode in modes if mode.shape_env is not None}


# A text in the history of a node has its quotes behind backslashes, and is not meant.
_GRAPH_ADDRESS = re.compile(r'(?<!\\)("graph_id": )\d+')
_OBJECT_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")


def serialize_graph(program: torch.export.ExportedProgram, lengths: Mapping[str, int]) -> bytes:
    """The graph, signature and ranges of a program as JSON: the `models/*.json` of a PT2 archive, without any tensor.

    Placeholders in `lengths` hold one-dimensional tensors, which have these lengths in the archive.

    torch's public writer writes whole archives only. The schema is 8.20 in torch 2.13 and 2.14, and stands in the text.
    Guards are left out: torch runs them beside example inputs only, of which the file has none.
    The text depends on the program alone, not on the machine and the process that made it: see `_forget_places`.
    """
    from torch._export.serde.serialize import serialize

    program = copy.copy(program)
    program._guards_code = []
    artifact = serialize(program, serialize_state_dict=False, serialize_constants=False, serialize_example_inputs=False)
    fields = json.loads(artifact.exported_program, object_hook=_forget_places)
    values = fields["graph_module"]["graph"]["tensor_values"]
    for name, length in lengths.items():
        values[name]["sizes"] = [{"as_int": length}]
    return json.dumps(fields, allow_nan=False).encode()


def _forget_places(fields: dict[str, Any]) -> dict[str, Any]:
    """Take out of a node's JSON what another checkout or process would say otherwise; other objects stay as they are.

    The trace of the stack names files of this machine. The history of the node names graphs and functions by their
    addresses in memory, and two graphs may have had the same one.
    """
    metadata = fields.get("metadata")
    if "target" in fields and isinstance(metadata, dict):
        metadata.pop("stack_trace", None)
        if "from_node" in metadata:
            metadata["from_node"] = _OBJECT_ADDRESS.sub("", _GRAPH_ADDRESS.sub(r"\g<1>0", metadata["from_node"]))
    return fields


def deserialize_graph(
    values: dict[str, Any], state_dict: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """The program of a graph that `serialize_graph`, or torch of another version, wrote; it holds the given tensors.

    torch's public reader reads whole archives only, tensor by tensor into memory. Nothing is unpickled here, but
    symbolic expressions are evaluated, and names become code. The objects of the schema are made by `_schema_reader`.

    Args:
        values: The JSON values of the graph, which the caller has judged.
        state_dict: Parameters and buffers by name.
        constants: Tensor constants by name.
    """
    from torch._export.serde.serialize import ExportedProgramDeserializer

    graph = _schema_reader(graph_schema().program)(values)
    return ExportedProgramDeserializer().deserialize(graph, state_dict, constants)


@cache
def _schema_reader(hint: Any) -> Callable[[Any], Any]:
    """What makes objects of a type of torch's schema of values of JSON that fit it.

    torch's own function works the type hints of a class out anew for each of its objects, which takes as long as all
    the rest of reading a graph. Like it, this one overlooks what is no field of a class.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (_schema_reader(argument) for argument in arguments if argument is not type(None))
        return lambda value: None if value is None else inner(value)
    if origin is list:
        read = _schema_reader(arguments[0])
        return lambda value: [read(item) for item in value]
    if origin is dict:
        read_value = _schema_reader(arguments[1])
        return lambda value: {key: read_value(item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _class_reader(hint)
    return float if hint is float else lambda value: value


def _class_reader(kind: Any) -> Callable[[Any], Any]:
    """As `_schema_reader`, of one class; its fields are looked up when the first object is made, for classes nest."""
    make = kind.create if issubclass(kind, graph_schema().union) else kind
    fields: dict[str, Callable[[Any], Any]] = {}

    def read(value: Any) -> Any:
        if not fields:
            fields.update((name, _schema_reader(hint)) for name, hint in schema_hints(kind).items())
        return make(**{name: fields[name](item) for name, item in value.items() if name in fields})

    return read


class GraphSchema(NamedTuple):
    """torch's schema of a graph in JSON.

    Attributes:
        program: The class of a whole program; `schema_hints` tells the types of its fields.
        union: Base of the classes of which an object has one field.
        version: Major and minor version; a torch reads the graphs whose major version is its own.
    """

    program: type
    union: type
    version: tuple[int, int]


@cache
def graph_schema() -> GraphSchema:
    """The schema that `serialize_graph` writes and `deserialize_graph` reads, the latter without checking types.

    torch has it in private modules.
    """
    from torch._export.serde.schema import SCHEMA_VERSION, ExportedProgram
    from torch._export.serde.union import _Union

    return GraphSchema(ExportedProgram, _Union, SCHEMA_VERSION)


def schema_hints(kind: type) -> dict[str, Any]:
    """The types of the fields of a class of the schema; its module is private, and they are texts in part."""
    from torch._export.serde import schema

    return typing.get_type_hints(kind, globalns=vars(schema))


def text_arguments(name: str, overload: str) -> frozenset[str] | None:
    """The names of an operator's arguments that are texts, or None where the dispatcher knows no such operator.

    Looking an operator up under `torch.ops` finds other things as well. Operators of TorchScript alone, such as
    `aten::save`, are not in the dispatcher; no public function tells.

    Args:
        name: As in `aten::add`.
        overload: As in `Tensor`; empty for `default`.
    """
    try:
        torch._C._dispatch_find_schema_or_throw(name, overload)
        schema = torch._C._get_schema(name, overload)
    except RuntimeError:
        return None
    return frozenset(argument.name for argument in schema.arguments if "str" in str(argument.type))


def operator_name(operator: torch._ops.OpOverload) -> str:
    """`aten::add` for any overload; the method that tells is not typed."""
    return str(operator._schema.name)


def higher_order_operators() -> Collection[str]:
    """Names of the operators that take graphs, those that this process has; torch lists them under a private name."""
    return torch._ops._higher_order_ops.keys()


def where_registered(name: str) -> str:
    """Path of the source file that registered an operator, empty where torch does not tell; only a debug text does.

    Example:
        >>> where_registered("aten::relu").endswith(".cpp")
        True
    """
    match = re.search(r"^debug: registered at (.*):[0-9]+$", torch._C._dispatch_dump(name), re.MULTILINE)
    return match[1] if match else ""


class RegisteredContainer(NamedTuple):
    """A class of containers that structures in files can name.

    Attributes:
        name: Its name in files.
        reads_json: Whether its context is a JSON text; otherwise the class reads values of JSON itself.
    """

    name: str
    reads_json: bool


def registered_containers() -> dict[str, RegisteredContainer]:
    """The classes that are registered with a name for files, by that name; torch lists them under private names."""
    return {
        name: RegisteredContainer(name, pytree.SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context is None)
        for name, kind in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.items()
        if name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND
    }


def inductor_options() -> frozenset[str]:
    """Names of inductor's settings. Its functions are documented, but its module has a private name."""
    import torch._inductor

    return frozenset(torch._inductor.list_options())


def find_compiler() -> str:
    """The C++ compiler that inductor would call.

    Raises:
        RuntimeError: There is none. Torch tells it by an error of its own, when a compile has come as far as that.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    return str(get_cpp_compiler())


def compile_package(
    programs: Mapping[str, torch.export.ExportedProgram], path: str, options: Mapping[str, Any]
) -> None:
    """Write an AOTInductor package of programs, by the names that they have in it.

    `torch._inductor.aoti_compile_and_package` is documented, but packs one program; and it wants example inputs, of
    which it reads structure and device, and takes shapes from the graph: its fake tensors serve for both. What
    compiling says of torch's own code is kept from the user.
    """
    from torch._inductor import aot_compile
    from torch._inductor.package.package import package_aoti

    files: Any = {}
    with warnings.catch_warnings(), _without_note_on_asserts():
        warnings.simplefilter("ignore")
        for name, program in programs.items():
            placeholders = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
            specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
            given = [placeholders.get(spec.arg.name, getattr(spec.arg, "value", None)) for spec in specs]
            args, kwargs = pytree.tree_unflatten(given, program.call_spec.in_spec)
            module = program.module(check_guards=False)
            _assert_outside_of_kernels(module)
            files[name] = aot_compile(module, args, kwargs, options={**options, "aot_inductor.package": True})
        package_aoti(path, files)


def _assert_outside_of_kernels(module: torch.fx.GraphModule) -> None:
    """Let inductor call each assertion as an operator of its own.

    It would stand in a kernel that does other work, in whose parallel loop an exception ends the process. The word
    in `meta` is inductor's own, and it has no public name. Tried on torch 2.13.
    """
    for node in module.graph.nodes:
        if node.target in (ASSERT, torch.ops.aten._assert_async.default):
            node.meta = {**node.meta, "custom": {**node.meta.get("custom", {}), "fallback_to_eager": True}}


@contextmanager
def _without_note_on_asserts() -> Iterator[None]:
    """Keep from the user that inductor calls assertions through the dispatcher."""
    logger = logging.getLogger("torch._inductor.ir")

    def is_other(record: logging.LogRecord) -> bool:
        return "_assert_async" not in record.getMessage()

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


class Runner(typing.Protocol):
    """Compiled code that is ready to run."""

    def run(self, inputs: list[torch.Tensor], /) -> list[torch.Tensor | None]:
        """Run it on its tensor inputs, in order."""

    def extract_constants_map(self, use_inactive: bool, /) -> dict[str, torch.Tensor]:  # noqa: FBT001 - torch's own
        """Its state by the names that it has in the model: views of the memory that it reads and writes."""

    def update_constant_buffer(
        self,
        tensors: dict[str, torch.Tensor],
        use_inactive: bool,  # noqa: FBT001
        validate_full_updates: bool,  # noqa: FBT001
        user_managed: bool,  # noqa: FBT001
        /,
    ) -> None:
        """Take other tensors for its state, in their own memory where it is to borrow them."""


def open_runner(library: str, device: str) -> Runner:
    """Load a library that AOTInductor made; its file may be removed afterwards.

    `aoti_load_package` unpacks into a folder that is left over after a crash, and has no way to read state.
    """
    runners = torch._C._aoti
    runner: Any = (
        runners.AOTIModelContainerRunnerCpu(library, 1)
        if device == "cpu"
        else runners.AOTIModelContainerRunnerCuda(library, 1, device, "")
    )
    opened: Runner = runner
    return opened


@cache
def dtype_codes() -> dict[torch.dtype, int]:
    """The numbers that stand for dtypes in a PT2 archive; torch has no public name for them."""
    from torch._export.serde.serialize import _TORCH_TO_SERIALIZE_DTYPE

    return {dtype: int(code) for dtype, code in _TORCH_TO_SERIALIZE_DTYPE.items()}
