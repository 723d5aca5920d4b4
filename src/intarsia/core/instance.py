"""Engines of this process: each made once from its bytes, then found again by the tensor that holds them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary, ref

import torch

from intarsia.core.backend import Backend, Engine
from intarsia.core.container import EngineContainer
from intarsia.core.engine_faults import check_outputs, failed
from intarsia.core.registry import find_backend
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineBuildFailed, EngineError, EngineRefused, EngineUnavailable, IntarsiaError

_logger = logging.getLogger("intarsia")


class EngineInstance:
    """An engine that is ready to run, with its signature."""

    def __init__(self, container: EngineContainer) -> None:
        self.subject = container.subject
        self.signature_text = container.signature
        self.signature = EngineSignature.parse(container.signature)
        self._backend = container.backend
        self._is_checked = False
        try:
            self._engine = _make_engine(container)
        except IntarsiaError:
            raise
        except Exception as error:
            raise failed(self.subject, self._backend, "loading", error) from error

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine on inputs that fit the signature; what its first call gives is compared with that.

        Raises:
            EngineError: It fails, or gives something else.
        """
        try:
            outputs = self._engine(inputs)
        except IntarsiaError:
            raise
        except Exception as error:
            raise failed(self.subject, self._backend, "a call", error) from error
        if not self._is_checked:
            check_outputs(self.subject, self.signature, inputs, outputs)
            self._is_checked = True
        return outputs


@dataclass(frozen=True)
class _Entry:
    storage: ref[torch.UntypedStorage]
    instance: EngineInstance


# Keyed by (address, size). An entry is only valid while the storage that it was made from lives: another tensor may
# come to lie at the same address.
_entries: dict[tuple[int, int], _Entry] = {}
# A payload answers only for itself: a file could bring another one for the source of a file that is trusted.
_by_identity: WeakValueDictionary[tuple[bytes, str], EngineInstance] = WeakValueDictionary()
_lock = threading.RLock()


def find_instance(engine: torch.Tensor, signature: str) -> EngineInstance:
    """The engine of a container held in a tensor.

    The bytes are compared with their SHA-256 when the tensor is seen first, and never hashed again: whoever writes
    into the tensor afterwards is not noticed. Tensors of equal engines with equal payloads share one instance, which
    lives as long as any of them does: `EngineContainer.identity` says which are equal.

    Args:
        engine: uint8[n] on the CPU, contiguous.
        signature: The signature that the caller's graph gives for the engine.

    Raises:
        EngineError: The bytes are damaged, or their signature is not `signature`.
        EngineUnavailable: The backend is unknown, or its library is not installed.
        EngineBuildFailed: The payload was refused, and so was the source.
    """
    entry = _entries.get((engine.data_ptr(), engine.nbytes))
    if entry is not None and entry.storage() is engine.untyped_storage():
        instance = entry.instance
    else:
        instance = _remember(engine)
    if instance.signature_text != signature and instance.signature.canonical != _canonical(signature):
        raise EngineError(
            instance.subject,
            found=f"the signature {instance.signature_text}",
            expected=f"{signature}, as its call says",
            fix="Compile the program again.",
        )
    return instance


def _remember(engine: torch.Tensor) -> EngineInstance:
    with _lock:
        container = EngineContainer.unpack(_bytes_of(engine))
        container.verify()
        identity = container.identity, container.payload_sha256
        instance = _by_identity.get(identity) or EngineInstance(container)
        _by_identity[identity] = instance
        key = (engine.data_ptr(), engine.nbytes)
        storage = ref(engine.untyped_storage(), lambda dead: _forget(key, dead))
        _entries[key] = _Entry(storage, instance)
        return instance


def _forget(key: tuple[int, int], dead: ref[torch.UntypedStorage]) -> None:
    entry = _entries.get(key)
    if entry is not None and entry.storage is dead:
        del _entries[key]


def _bytes_of(engine: torch.Tensor) -> memoryview:
    if engine.dtype is not torch.uint8 or engine.device.type != "cpu" or not engine.is_contiguous():
        raise EngineError(
            "engine",
            found=f"{engine.dtype} on {engine.device}",
            expected="contiguous uint8 on the CPU",
            fix="Leave the engine constants of a program where they are.",
        )
    return engine.detach().numpy().data


def _canonical(signature: str) -> str:
    return EngineSignature.parse(signature).canonical


def _make_engine(container: EngineContainer) -> Engine:
    """The engine of the payload, or, where there is none or it does not fit this machine, of the portable source."""
    backend = find_backend(container.backend)
    payload = container.payload
    reason: str | None = "it has no compiled one"
    if payload is not None:
        reason = backend.accepts(container.backend_version, container.target)
    if payload is None or (reason and container.has_source):
        _logger.info("%s: building it from its portable form, because %s", container.subject, reason)
        return _build_again(container, backend, str(reason))
    try:
        return backend.load(payload, container.options)
    except EngineRefused as refusal:
        if not container.has_source:
            raise
        _logger.info("%s: rebuilding it for this machine, because %s", container.subject, refusal)
        return _build_again(container, backend, refusal.found.removeprefix("that "))


def _build_again(container: EngineContainer, backend: Backend, reason: str) -> Engine:
    source = container.source
    if source is None:
        raise EngineError(
            container.subject,
            found="neither a compiled nor a portable form",
            expected="one of them",
            fix="Compile and save the program again.",
        )
    try:
        return backend.rebuild(source, container.options)
    except EngineBuildFailed as error:
        raise EngineBuildFailed(
            container.subject,
            found=f"that {backend.name} cannot build it from its portable form: {error.subject}: {error.found}",
            expected="an engine",
            fix=error.fix,
        ) from error
    except EngineUnavailable as error:
        raise EngineUnavailable(
            container.subject,
            found=f"that {backend.name} cannot build it from its portable form: {error.found}",
            expected=error.expected,
            consequence=f"It has to be built so: {reason}.",
            fix=error.fix,
        ) from error
