"""Test vectors in a file: JSON that lists the calls, and a safetensors file with their tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec

from intarsia.core.boundary import is_boundary
from intarsia.core.dim import Size
from intarsia.core.signature import DTYPES, SHORT_NAMES
from intarsia.core.vectors import Tolerance, Vector, Vectors
from intarsia.errors import FormatError, first_line
from intarsia.formats.archive.layout import VECTOR_TENSORS_MEMBER, VECTORS_MEMBER
from intarsia.formats.archive.limits import TEXT_BYTES
from intarsia.formats.archive.refusal import quoted

# safetensors has no complex numbers of 128 bits: they are stored as pairs of float64.
_PAIRS = "pairs"
_KINDS: Mapping[type, str] = {int: "int", float: "float", bool: "bool", str: "str", type(None): "none"}
_SYMBOLS: Mapping[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def write_vectors(vectors: Vectors) -> dict[str, bytes]:
    """The members of a file that hold test vectors, by name.

    Args:
        vectors: With dense tensors of dtypes that have a short name, numbers, texts and None.
    """
    tensors: dict[str, torch.Tensor] = {}
    calls = [_call_json(vector, number, tensors) for number, vector in enumerate(vectors.calls)]
    tolerances = {
        SHORT_NAMES[dtype]: {"relative": allowed.relative, "absolute": allowed.absolute}
        for dtype, allowed in vectors.tolerances.items()
    }
    coarsest = {method: [SHORT_NAMES[dtype] for dtype in dtypes] for method, dtypes in vectors.coarsest.items()}
    text = json.dumps({"tolerances": tolerances, "coarsest": coarsest, "calls": calls}, allow_nan=False)
    return {VECTORS_MEMBER: text.encode(), VECTOR_TENSORS_MEMBER: save(tensors)}


def read_vectors(
    text: bytes, tensors: bytes, programs: Mapping[str, ExportedProgram], count: int, subject: str
) -> Vectors:
    """The test vectors that `write_vectors` wrote.

    Args:
        text: Bytes of the member that lists the calls.
        tensors: Bytes of the member with their tensors.
        programs: Those of the file, or their boundaries, by the names of their methods. Each value has to be one that
            they take or give.
        count: How many calls there are, as the manifest says.
        subject: Names the file in errors.

    Raises:
        FormatError: They cannot be read, or do not fit the programs.
    """
    try:
        vectors = _read(text, load(tensors), count)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, SafetensorError) as error:
        raise FormatError(
            subject,
            found=f"test vectors that cannot be read ({type(error).__name__}: {first_line(error)})",
            expected="calls as they were recorded",
            fix="Save the program again, with test_vectors=[] to leave them out.",
        ) from error
    for number, vector in enumerate(vectors.calls, 1):
        fault = _misfit(vector, programs, len(vectors.coarsest[vector.method]))
        if fault:
            raise FormatError(
                f"{subject}, test vector {number}",
                found=fault,
                expected="a call of a program of the file",
                fix="Save the program again, with test vectors of its own.",
            )
    return vectors


def _read(text: bytes, tensors: dict[str, torch.Tensor], count: int) -> Vectors:
    if len(text) > TEXT_BYTES:
        raise ValueError(f"{len(text)} bytes of JSON")
    fields = json.loads(text)
    calls = tuple(_read_call(call, tensors) for call in fields["calls"])
    if tensors or len(calls) != count:
        raise ValueError(f"{len(calls)} calls where the manifest says {count}, and {len(tensors)} tensors of none")
    methods = dict.fromkeys(call.method for call in calls)
    coarsest = {method: tuple(DTYPES[name] for name in fields["coarsest"].get(method, ())) for method in methods}
    return Vectors(calls, _read_tolerances(fields["tolerances"]), coarsest)


def _call_json(vector: Vector, number: int, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    def values(part: str, found: Sequence[Any]) -> list[Any]:
        return [_value_json(value, f"call_{number}.{part}_{i}", tensors) for i, value in enumerate(found)]

    return {
        "method": vector.method,
        "inputs": values("input", vector.inputs),
        "outputs": values("output", vector.outputs),
        "written": [
            [position, _value_json(value, f"call_{number}.written_{position}", tensors)]
            for position, value in vector.written.items()
        ],
    }


def _value_json(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    """The kind of a value and the value itself; a tensor is entered under a name."""
    if not isinstance(value, torch.Tensor):
        return [_KINDS[type(value)], repr(value) if isinstance(value, float) else value]
    pairs = value.dtype is torch.complex128
    # A contiguous tensor may still share its memory with another one, which safetensors refuses.
    tensors[name] = (torch.view_as_real(value) if pairs else value).detach().cpu().contiguous().clone()
    return [_PAIRS if pairs else "tensor", name]


def _read_call(call: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> Vector:
    return Vector(
        str(call["method"]),
        tuple(_read_value(value, tensors) for value in call["inputs"]),
        tuple(_read_value(value, tensors) for value in call["outputs"]),
        {_position(position): _read_value(value, tensors) for position, value in call["written"]},
    )


def _read_value(pair: Any, tensors: dict[str, torch.Tensor]) -> Any:
    kind, value = pair
    if kind == "tensor":
        return tensors.pop(value)
    if kind == _PAIRS:
        return torch.view_as_complex(tensors.pop(value))
    if kind == "float" and type(value) is str:
        return float(value)
    if kind != _KINDS.get(type(value)) or type(value) is float:
        raise ValueError(f"{quoted(value)} for a value of kind {quoted(kind)}")
    return value


def _position(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{quoted(value)} for the position of an input")
    return value


def _read_tolerances(fields: Mapping[str, Mapping[str, Any]]) -> dict[torch.dtype, Tolerance]:
    found = {}
    for name, allowed in fields.items():
        numbers = allowed["relative"], allowed["absolute"]
        if any(type(number) not in (int, float) or not 0 <= number < math.inf for number in numbers):
            raise ValueError(f"{quoted(numbers)} for a tolerance")
        found[DTYPES[name]] = Tolerance(*map(float, numbers))
    return found


def _misfit(vector: Vector, programs: Mapping[str, ExportedProgram], precisions: int) -> str:
    """Why a call is none of the programs', or no text."""
    if vector.method not in programs:
        return f"the method {quoted(vector.method)}, which is not in the file"
    program = programs[vector.method]
    signature, nodes = program.graph_signature, {node.name: node for node in program.graph.nodes}
    inputs = [_declared(spec, nodes) for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    outputs = [_declared(spec, nodes) for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    for kind, declared, values in (("input", inputs, vector.inputs), ("output", outputs, vector.outputs)):
        if len(declared) != len(values):
            return f"{len(values)} {kind}s, where the program has {len(declared)}"
        is_told = kind == "input" or not is_boundary(program)
        for position, (known, value) in enumerate(zip(declared, values, strict=True)):
            if is_told and not _fits(known, value):
                return f"{_kind_text(value)} for {kind} {position}, which is {_kind_text(known)}"
    if precisions != len(outputs):
        return f"the coarsest dtypes of {precisions} outputs, where the program has {len(outputs)}"
    for position, value in vector.written.items():
        if position >= len(inputs) or not _fits(inputs[position], value):
            return f"{_kind_text(value)} written into input {position}"
    return ""


def _declared(spec: InputSpec | OutputSpec, nodes: Mapping[str, torch.fx.Node]) -> Any:
    """What a program says of an input or output: a value of its own, or one of the kind."""
    return spec.arg.value if isinstance(spec.arg, ConstantArgument) else nodes[spec.arg.name].meta.get("val")


def _fits(declared: Any, value: Any) -> bool:
    if not isinstance(declared, torch.Tensor):
        return type(value) is _SYMBOLS.get(type(declared), type(declared))
    if not isinstance(value, torch.Tensor) or value.dtype != declared.dtype or value.ndim != declared.ndim:
        return False
    sizes: Iterable[tuple[Size, int]] = zip(declared.shape, value.shape, strict=True)
    return all(not isinstance(known, int) or known == size for known, size in sizes)


def _kind_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{SHORT_NAMES.get(value.dtype, value.dtype)}{list(value.shape)}"
    return _KINDS.get(_SYMBOLS.get(type(value), type(value)), type(value).__name__)
