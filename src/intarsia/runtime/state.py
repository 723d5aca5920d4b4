"""The state of a program: shared with the exported program, except for what the program writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia.errors import StateError

STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


def read_state(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """State entries of an exported program by name, in graph order; the tensors are the program's own.

    Raises:
        StateError: The program has no value for an entry.
    """
    state = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind not in STATE_KINDS:
            continue
        name = str(spec.target)
        persistent = spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
        values = program.state_dict if persistent else program.constants
        if name not in values:
            raise StateError(
                f"state {name!r}",
                found="no value",
                expected="a tensor in the exported program",
                fix="Export the model again.",
            )
        state[name] = values[name]
    return state


def own_written(state: Mapping[str, Any], written: Collection[str]) -> dict[str, Any]:
    """`state` with a copy of what is written. Entries that share memory before share it afterwards."""
    storages = _Storages(state[name] for name in written)
    with torch.no_grad(), torch.inference_mode(mode=False):
        return {name: storages.move(value) for name, value in state.items()}


class _Storages:
    """Copies of the storages under some tensors, each made once."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._copies: dict[int, torch.UntypedStorage | None] = {_storage_key(tensor): None for tensor in tensors}
        self._moved: dict[int, torch.Tensor] = {}

    def move(self, value: Any) -> Any:
        """The same tensor on the copied storage, or `value` itself when its storage is not copied."""
        if not isinstance(value, torch.Tensor) or _storage_key(value) not in self._copies:
            return value
        if id(value) not in self._moved:
            self._moved[id(value)] = self._copy(value)
        return self._moved[id(value)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.detach().clone()
        key = _storage_key(tensor)
        storage = self._copies[key]
        if storage is None:
            storage = self._copies[key] = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory; an empty storage has no address, and shares nothing."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)
