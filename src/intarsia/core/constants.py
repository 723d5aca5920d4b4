"""Constants of engines that a file holds once, beside the containers that refer to them."""

from __future__ import annotations

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


# By digest of the container that refers to them, so that a copy of its tensor finds them too. The tensors that came
# with the constants keep them alive.
_by_digest: WeakValueDictionary[bytes, StoredConstants] = WeakValueDictionary()


def attach_constants(engine: torch.Tensor, digest: bytes, constants: StoredConstants) -> None:
    """Let an engine find what its container refers to, as long as the memory of its tensor lives.

    Args:
        engine: uint8[n]: the engine's container.
        digest: The container's digest.
        constants: Holds every constant that the container refers to.
    """
    known = _by_digest.setdefault(digest, constants)
    finalize(engine.untyped_storage(), _let_go, known).atexit = False


def find_constants(digest: bytes) -> StoredConstants | None:
    """The constants beside the container of a digest, or None where no tensor of that container came with them."""
    return _by_digest.get(digest)


def _let_go(constants: StoredConstants) -> None:
    """What a finalizer holds until then is free."""
