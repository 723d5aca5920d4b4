"""Constants of engines that a file holds once, beside the containers that refer to them."""

from __future__ import annotations

import hashlib
import threading
from typing import Protocol
from weakref import WeakValueDictionary, finalize

import torch


class StoredConstants(Protocol):
    """Runs of bytes, found by their SHA-256.

    Example:
        >>> class InMemory:
        ...     def read(self, sha256):
        ...         return memoryview(b"weights")
        ...     def place(self, sha256):
        ...         return "memory"
        >>> stored: StoredConstants = InMemory()
    """

    def read(self, sha256: str) -> memoryview:
        """The bytes; nobody has compared them with their hash yet."""
        ...

    def place(self, sha256: str) -> str:
        """Where they are, for messages."""
        ...


# By digest of the container that refers to them, so that a copy of its tensor finds them too, and by identity: several
# files may bring them. The tensors that came with the constants keep them alive.
_by_digest: dict[bytes, WeakValueDictionary[int, StoredConstants]] = {}
_lock = threading.Lock()


class _Several:
    """The constants of a container that several files have brought, of which some may be damaged."""

    def __init__(self, stores: list[StoredConstants]) -> None:
        self._stores = stores

    def read(self, sha256: str) -> memoryview:
        """The bytes of the first that has them right; where none has, those of the first."""
        contents = (store.read(sha256) for store in self._stores)
        right = (content for content in contents if hashlib.sha256(content).hexdigest() == sha256)
        return next(right, None) or self._stores[0].read(sha256)

    def place(self, sha256: str) -> str:
        return " and ".join(store.place(sha256) for store in self._stores)


def attach_constants(engine: torch.Tensor, digest: bytes, constants: StoredConstants) -> None:
    """Let an engine find what its container refers to, as long as the memory of its tensor lives.

    Args:
        engine: uint8[n]: the engine's container.
        digest: The container's digest.
        constants: Holds every constant that the container refers to.
    """
    with _lock:
        for known in [known for known, stores in _by_digest.items() if not stores]:
            del _by_digest[known]
        _by_digest.setdefault(digest, WeakValueDictionary())[id(constants)] = constants
    finalize(engine.untyped_storage(), _let_go, constants).atexit = False


def find_constants(digest: bytes) -> StoredConstants | None:
    """The constants beside the container of a digest, or None where no tensor of that container came with them."""
    with _lock:
        stores = list(_by_digest.get(digest, {}).values())
    if not stores:
        return None
    return stores[0] if len(stores) == 1 else _Several(stores)


def _let_go(constants: StoredConstants) -> None:
    """What a finalizer holds until then is free."""
