"""Constants beside a container are found by its tensor, its copies, and nobody after them."""

from __future__ import annotations

import gc

import pytest
import torch

from intarsia.core.constants import attach_constants, find_constants


class InMemory:
    """Constants that are all the same."""

    def read(self, sha256: str) -> memoryview:
        return memoryview(b"weights")

    def place(self, sha256: str) -> str:
        return "memory"


def test_constants_live_as_long_as_the_tensor_that_came_with_them() -> None:
    engine = torch.zeros(8, dtype=torch.uint8)
    attach_constants(engine, b"one", InMemory())
    gc.collect()
    found = find_constants(b"one")
    assert found is not None
    assert bytes(found.read("any")) == b"weights"
    del found, engine
    gc.collect()
    assert find_constants(b"one") is None


@pytest.mark.parametrize("last", [0, 1])
def test_another_tensor_of_the_same_container_keeps_them(last: int) -> None:
    engines = [torch.zeros(8, dtype=torch.uint8) for _ in range(2)]
    for engine in engines:
        attach_constants(engine, b"two", InMemory())
    del engine, engines[1 - last]
    gc.collect()
    assert find_constants(b"two") is not None
    engines.clear()
    gc.collect()
    assert find_constants(b"two") is None


def test_what_is_beside_another_container_is_not_found() -> None:
    engine = torch.zeros(8, dtype=torch.uint8)
    attach_constants(engine, b"three", InMemory())
    assert find_constants(b"four") is None
