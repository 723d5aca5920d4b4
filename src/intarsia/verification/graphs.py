"""Whether two programs compute the same: their graphs, read into the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import Node

from intarsia._torch import is_training, pytree
from intarsia.core.numbering import Number, Numbering, key_of
from intarsia.core.reading import Reader
from intarsia.verification.symbols import Renaming

# A check of the type that a tensor has in any case; only its name begins like that of something private.
_METADATA_CHECK = getattr(torch.ops.aten, "_assert_tensor_metadata").default  # noqa: B009
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


@dataclass(frozen=True)
class Reading:
    """One program, read into numbers.

    Attributes:
        outputs: Keys of the values that the caller gets.
        writes: Key of what each written value holds in the end.
        effects: Numbers of the effects, in order.
        state: Kind and persistence of each state entry that is used, by its number.
        output_kinds: Kinds of the values that the caller gets, in order.
    """

    outputs: tuple[Any, ...]
    writes: Mapping[Number, Any]
    effects: tuple[Number, ...]
    state: Mapping[Number, str]
    output_kinds: tuple[str, ...]


def read_program(program: ExportedProgram, numbering: Numbering) -> Reading:
    """Read a program.

    Args:
        program: In either dialect; two programs are comparable only if both are in the same.
        numbering: Shared with the program that this one is compared with.
    """
    signature = program.graph_signature
    numbers = _input_numbers(program, numbering)
    placeholders = program.graph.find_nodes(op="placeholder", sort=True)
    reader = _Reader(numbering, Renaming(program), writes_in_place=is_training(program))
    returned = reader.read(program.graph_module, program.graph, {node: numbers[node.name] for node in placeholders})
    placed = list(zip(returned, signature.output_specs, strict=True))
    user = [(key_of(value), spec) for value, spec in placed if spec.kind is OutputKind.USER_OUTPUT]
    targets = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
    declared = {
        numbers[targets.get(spec.target, str(spec.target))]: key_of(reader.copied.get(value, value))
        for value, spec in placed
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.TOKEN)
    }
    writes = {target: value for target, value in declared.items() if value is not target}
    used = {node.name for node in placeholders if node.users}
    state = {
        numbers[spec.arg.name]: _kind_of(spec)
        for spec in signature.input_specs
        if spec.kind in _STATE and (spec.arg.name in used or numbers[spec.arg.name] in writes)
    }
    return Reading(
        outputs=tuple(key for key, _ in user),
        writes=writes,
        effects=tuple(reader.effects),
        state=state,
        output_kinds=tuple(type(spec.arg).__name__ for _, spec in user),
    )


def state_key(value: Any) -> Any:
    """Equal for two state entries exactly if they are the same memory seen in the same way."""
    if not isinstance(value, torch.Tensor):
        return id(value)
    if value.layout is not torch.strided or not value.numel():
        return id(value)
    return (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())


def difference(found: Reading, expected: Reading) -> str:
    """The first difference between what two programs compute, or no text."""
    for index, (one, other) in enumerate(zip(found.outputs, expected.outputs, strict=False)):
        if one != other:
            return f"output {index} is {_origin(one)}, and {_origin(other)} in the retraced program"
    if len(found.outputs) != len(expected.outputs):
        return f"{len(found.outputs)} outputs, and {len(expected.outputs)} in the retraced program"
    for target in {**found.writes, **expected.writes}:
        one, other = found.writes.get(target), expected.writes.get(target)
        if one != other:
            return f"'{target.origin}' is left as {_origin(one)}, and as {_origin(other)} in the retraced program"
    for one, other in zip(found.effects, expected.effects, strict=False):
        if one is not other:
            return f"effect {_origin(one)} stands where {_origin(other)} stands in the retraced program"
    if len(found.effects) != len(expected.effects):
        return f"{len(found.effects)} effects, and {len(expected.effects)} in the retraced program"
    return ""


def signature_difference(found: Reading, expected: Reading) -> str:
    """The first difference between the signatures of two programs, or no text; unused state is none."""
    for number in {**found.state, **expected.state}:
        one, other = found.state.get(number, "no state"), expected.state.get(number, "no state")
        if one != other:
            return f"'{number.origin}' is {one}, and {other} in the retraced program"
    if found.output_kinds != expected.output_kinds:
        return f"outputs are {found.output_kinds}, and {expected.output_kinds} in the retraced program"
    return ""


class _Reader(Reader):
    """Reads what two right programs may say in different ways alike.

    One size can be read from any tensor that has it. A tensor like one, filled with another of the same dtype and
    shape, is that other one. The type of a tensor is checked once, however often it is: where a constant is converted,
    a retrace writes the check of the first trace and one of its own.

    Attributes:
        copied: What functional copies were filled with; a write casts and broadcasts by itself.
    """

    def __init__(self, numbering: Numbering, renaming: Renaming, *, writes_in_place: bool) -> None:
        super().__init__(numbering, writes_in_place=writes_in_place)
        self._shared = numbering
        self._renaming = renaming
        self.copied: dict[Any, Any] = {}
        self._checked: dict[Any, Any] = {}

    def _inner(self) -> Reader:
        return _Reader(self._shared, self._renaming, writes_in_place=True)

    def _apply(self, call: Any, node: Node) -> Any:
        check = self._key((node.args, node.kwargs), call.values) if node.target is _METADATA_CHECK else None
        if check in self._checked:
            return self._checked[check]
        made = super()._apply(call, node)
        if check is not None:
            self._checked[check] = made
        value = node.meta.get("val")
        if node.target is torch.ops.aten.copy.default:
            return self._read_copy(call.values[node.args[1]], node, made)
        if not isinstance(value, torch.SymInt) or not isinstance(made, Number):
            return made
        size = self._renaming.of(value.node.expr)
        return made if size is None else self._shared.number(("size", size), node.name)

    def _read_copy(self, source: Any, node: Node, made: Any) -> Any:
        if is_like(node.args[1].meta["val"], node.meta["val"]):  # type: ignore[union-attr]
            return source
        self.copied[made] = source
        return made


def is_like(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree in dtype, device and shape; sizes are compared as text, which adds no guard."""
    sizes = [[str(size) for size in tensor.shape] for tensor in (value, other)]
    return value.dtype == other.dtype and value.device == other.device and sizes[0] == sizes[1]


def _input_numbers(program: ExportedProgram, numbering: Numbering) -> dict[str, Number]:
    numbers: dict[str, Number] = {}
    paths = _input_paths(program)
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind in _STATE:
            value = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
            numbers[name] = numbering.number(("state", state_key(value)), str(spec.target))
        elif spec.kind is InputKind.USER_INPUT:
            numbers[name] = numbering.number(("input", next(paths)), name)
        else:
            numbers[name] = numbering.number(("token", name), name)
    return numbers


def _input_paths(program: ExportedProgram) -> Iterator[str]:
    """How the caller passes each input: a position, or a keyword whose place among the others does not count."""
    spec = program.call_spec.in_spec
    filled = pytree.tree_unflatten(range(spec.num_leaves), spec)
    return (pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(filled))


def _kind_of(spec: InputSpec) -> str:
    kind = spec.kind.name.lower().replace("_", " ")
    return f"a non-persistent {kind}" if spec.persistent is False else f"a {kind}"


def _origin(value: Any) -> str:
    if isinstance(value, Number):
        return f"%{value.origin}"
    return "nothing" if value is None else repr(value)
