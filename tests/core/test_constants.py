"""Constants beside a container are found by its tensor, its copies, and nobody after them."""

from __future__ import annotations

import gc
import hashlib

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


class Labelled:
    """Constants that are some bytes, whatever is asked for."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, sha256: str) -> memoryview:
        return memoryview(self.content)

    def place(self, sha256: str) -> str:
        return repr(self.content)


@pytest.mark.parametrize("contents", [(b"damaged", b"weights"), (b"weights", b"damaged")])
def test_damaged_constants_of_one_file_do_not_answer_for_another(contents: tuple[bytes, bytes]) -> None:
    engines = [torch.zeros(8, dtype=torch.uint8) for _ in contents]
    for engine, content in zip(engines, contents, strict=True):
        attach_constants(engine, b"five", Labelled(content))
    found = find_constants(b"five")
    assert found is not None
    assert bytes(found.read(hashlib.sha256(b"weights").hexdigest())) == b"weights"
    assert bytes(found.read("none")) == contents[0]
    assert found.place("any") == f"{contents[0]!r} and {contents[1]!r}"
