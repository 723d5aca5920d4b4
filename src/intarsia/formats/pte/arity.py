"""Proof that the delegates of a `.pte` take and give what their engines do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intarsia.core.container import EngineContainer
from intarsia.core.signature import EngineSignature, TensorType
from intarsia.errors import EngineError
from intarsia.formats.pte.delegates import ENGINE_SPEC
from intarsia.formats.pte.library import import_executorch


def check_arity(plan: Any, engines: Mapping[str, EngineContainer]) -> None:
    """Compare the calls of engines in a method of a `.pte` with the engines' signatures.

    Args:
        plan: ExecuTorch's `ExecutionPlan` of the method.
        engines: Engines of the method, by name.

    Raises:
        EngineError: Number, order, shapes or dtypes of a delegate's inputs or outputs are others than its engine's;
            names it.
    """
    names = {i: _engine_name(delegate) for i, delegate in enumerate(plan.delegates)}
    for index, positions in _delegate_calls(plan):
        name = names[index]
        if name is not None:
            _check_call(name, [plan.values[i].val for i in positions], EngineSignature.parse(engines[name].signature))


def _engine_name(delegate: Any) -> str | None:
    return next((spec.value.decode() for spec in delegate.compile_specs if spec.key == ENGINE_SPEC), None)


def _delegate_calls(plan: Any) -> Iterator[tuple[int, Sequence[int]]]:
    for chain in plan.chains:
        for instruction in chain.instructions:
            arguments = instruction.instr_args
            if type(arguments).__name__ == "DelegateCall":
                yield arguments.delegate_index, arguments.args


def _check_call(name: str, values: Sequence[Any], signature: EngineSignature) -> None:
    count = len(signature.inputs)
    if len(values) != count + len(signature.outputs):
        raise _wrong(name, f"{len(values)} inputs and outputs", f"those of {signature}")
    types = [*signature.inputs, *signature.outputs]
    for i, (value, wanted) in enumerate(zip(values, types, strict=True)):
        _check_type(name, f"input {i}" if i < count else f"output {i - count}", value, wanted)
    largest = [tuple(value.sizes) for value in values]
    for i, (found, needed) in enumerate(zip(largest[count:], signature.output_shapes(largest[:count]), strict=True)):
        if any(have < want for have, want in zip(found, needed or (1,), strict=True)):
            raise _wrong(name, f"room for {list(found)} in output {i}", f"room for {list(needed)}")


def _check_type(name: str, place: str, value: Any, wanted: TensorType) -> None:
    if not hasattr(value, "scalar_type"):
        raise _wrong(name, f"a {type(value).__name__} as {place}", str(wanted))
    dtypes = import_executorch("exir.tensor").scalar_type_enum
    dims = wanted.dims or (1,)
    if value.scalar_type != dtypes(wanted.dtype) or len(value.sizes) != len(dims):
        raise _wrong(name, f"a tensor of type {value.scalar_type.name} and shape {value.sizes} as {place}", str(wanted))
    fixed = [(have, dim) for have, dim in zip(value.sizes, dims, strict=True) if isinstance(dim, int)]
    if any(have != dim for have, dim in fixed):
        raise _wrong(name, f"shape {value.sizes} as {place}", str(wanted))
    if list(value.dim_order) != sorted(value.dim_order):
        raise _wrong(name, f"{place} with its dimensions in the order {list(value.dim_order)}", "row-major memory")


def _wrong(name: str, found: str, expected: str) -> EngineError:
    return EngineError(
        f"delegate {name!r}",
        found=found,
        expected=expected,
        consequence="It would read or write memory of another kind.",
        fix="Leave the engine's inputs and outputs as they are: change the transform passes or the partitioners.",
    )
