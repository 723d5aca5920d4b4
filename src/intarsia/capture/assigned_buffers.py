"""Buffers that a model assigns while torch traces it: state that is replaced, and not written in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from intarsia._torch import buffers_of, pytree
from intarsia.capture.entry import around_call
from intarsia.errors import CaptureError


class _Buffer(NamedTuple):
    """A buffer of the traced module: where it is, and what it held when the trace began."""

    path: str
    part: torch.nn.Module
    name: str
    start: torch.Tensor

    @property
    def shown(self) -> str:
        return _joined(("self", self.path, self.name))

    @property
    def value(self) -> Any:
        return buffers_of(self.part).get(self.name)


@contextmanager
def kept_assignments(subject: str, module: torch.nn.Module) -> Iterator[None]:
    """Let a trace keep what buffers are assigned, and give the model its buffers back when it ends.

    An assigned buffer is another tensor than before; in a program it is the same one, with new values. torch copies
    them at the end of the graph, though for the buffers of the traced module alone: those of its parts it forgets. Here
    they are copied as well, and what the model returns of the old tensor, or of the new one, is returned as a copy.

    Args:
        subject: What is captured, for messages.
        module: What torch traces.

    Raises:
        CaptureError: A buffer is assigned what it cannot hold, or one of two names of a tensor is assigned; or a
            parameter is assigned, or the `data` of a parameter or buffer.
    """
    if isinstance(module, torch.jit.ScriptModule):  # it takes no hooks, and torch refuses it
        yield
        return
    parts = {path: part for path, part in module.named_modules() if not isinstance(part, torch.jit.ScriptModule)}
    held = {path: dict(buffers_of(part)) for path, part in parts.items()}
    starts: dict[tuple[str, str], _Buffer] = {}
    seen: dict[str, tuple[torch.Tensor, Any]] = {}

    def note(part: torch.nn.Module, name: str, _: Any) -> None:
        path = next((path for path, one in parts.items() if buffers_of(one) is buffers_of(part)), None)
        start = buffers_of(part).get(name)
        if path == "" and start is None:
            raise _new(subject, name)
        if path is not None and start is not None:
            starts.setdefault((path, name), _Buffer(path, parts[path], name, start))

    def finish(outputs: Any) -> Any:
        _refuse_replaced(subject, seen, _read(parts))
        assigned = [buffer for buffer in starts.values() if buffer.value is not buffer.start]
        _check(subject, assigned, held)
        for buffer in starts.values():
            if not buffer.path and buffer.value is buffer.start:
                setattr(module, buffer.name, buffer.start.clone())  # torch copies no buffer into itself
        return _copy(assigned, outputs) if assigned else outputs

    hook = torch.nn.modules.module.register_module_buffer_registration_hook(note)
    _set(parts, {path: _ordered(buffers) for path, buffers in held.items()})
    try:
        with around_call(module, lambda: seen.update(_read(parts)), finish):
            yield
    finally:
        hook.remove()
        _set(parts, held)


def _set(parts: Mapping[str, torch.nn.Module], held: Mapping[str, Mapping[str, torch.Tensor | None]]) -> None:
    for path, part in parts.items():
        buffers_of(part).clear()
        buffers_of(part).update(held[path])


def _ordered(buffers: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """Buffers without a tensor last: torch counts them, and would copy into the buffer behind the right one."""
    return dict(sorted(buffers.items(), key=lambda entry: entry[1] is None))


def _read(parts: Mapping[str, torch.nn.Module]) -> dict[str, tuple[torch.Tensor, Any]]:
    """Each parameter and buffer, with the memory that it lies in."""
    return {
        _joined(("self", path, name)): (value, _storage(value))
        for path, part in parts.items()
        for held in (part.named_parameters, part.named_buffers)
        for name, value in held(recurse=False, remove_duplicate=False)
    }


def _refuse_replaced(
    subject: str, before: Mapping[str, tuple[torch.Tensor, Any]], after: Mapping[str, tuple[torch.Tensor, Any]]
) -> None:
    """Refuse what torch does not see: a new parameter, and new memory of a tensor."""
    for name, (value, storage) in before.items():
        now, place = after.get(name, (None, None))
        is_moved = now is value and place is not storage
        if is_moved or (now is not value and isinstance(value, torch.nn.Parameter)):
            raise CaptureError(
                subject,
                found=f"an assignment to {name}{'.data' if is_moved else ', a parameter'}",
                expected="state that is written in place, or a buffer that is assigned",
                consequence="torch.export does not see it: the program would compute with the old value.",
                fix=f"Write {name}.copy_(value), or register a buffer.",
            )


def _copy(assigned: list[_Buffer], outputs: Any) -> Any:
    """Copy what buffers are assigned into what they held; the outputs, free of both."""
    old = [_storage(buffer.start) for buffer in assigned]
    values = [_apart(buffer.value, old) for buffer in assigned]
    shared = [*old, *map(_storage, values)]
    returned = pytree.tree_map_only(torch.Tensor, lambda leaf: _apart(leaf, shared), outputs)
    for buffer, value in zip(assigned, values, strict=True):
        if buffer.path:
            buffer.start.copy_(value)
            buffers_of(buffer.part)[buffer.name] = buffer.start
        elif value is not buffer.value:
            setattr(buffer.part, buffer.name, value)  # so that torch, which copies it, copies this
    return returned


def _apart(value: torch.Tensor, storages: Iterable[Any]) -> torch.Tensor:
    storage = _storage(value)
    return value.clone() if any(one is storage for one in storages) else value


def _check(subject: str, assigned: list[_Buffer], held: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse what a program would keep otherwise than its model does."""
    values = {(buffer.path, buffer.name): buffer.value for buffer in assigned}
    for buffer in assigned:
        if _described(buffer.value) != _described(buffer.start):
            raise CaptureError(
                subject,
                found=f"{_described(buffer.value)} that is assigned to {buffer.shown}, a buffer of "
                f"{_described(buffer.start)}",
                expected="a value of its dtype and shape",
                consequence="State keeps both from call to call.",
                fix="Convert the value first, or register the buffer as the value is.",
            )
        tensor = held[buffer.path].get(buffer.name)
        places = [(path, name) for path, buffers in held.items() for name, value in buffers.items() if value is tensor]
        others = [place for place in places if values.get(place) is not buffer.value]
        if tensor is not None and others:
            raise CaptureError(
                subject,
                found=f"an assignment to {buffer.shown}, whose tensor is the buffer {_joined(others[0])!r} too",
                expected="a buffer that is registered once",
                consequence="The other one would not keep the old values, as it does in the model.",
                fix=f"Write in place ({buffer.shown}.copy_(value)) where both are meant, or clone one of them first.",
            )


def _new(subject: str, name: str) -> CaptureError:
    return CaptureError(
        subject,
        found=f"a tensor that is assigned to self.{name}, a buffer that holds none",
        expected="a buffer that holds a tensor before the call",
        consequence="State has its dtype and shape from the beginning.",
        fix=f"Register it in __init__: self.register_buffer({name!r}, tensor).",
    )


def _joined(names: Iterable[str]) -> str:
    return ".".join(filter(None, names))


def _described(value: Any) -> str:
    """Dtype and shape, without the sizes that are not fixed."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    sizes: tuple[Any, ...] = tuple(value.shape)
    shown = ", ".join(str(size) if isinstance(size, int) else "?" for size in sizes)
    return f"{str(value.dtype).removeprefix('torch.')}[{shown}]"


def _storage(value: torch.Tensor) -> Any:
    """The same object for tensors that share memory, those of a trace too, which have no address."""
    return value.untyped_storage() if value.layout is torch.strided else value
