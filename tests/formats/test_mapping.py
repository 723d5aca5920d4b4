"""Tensors over a file: private, shared as they were, and read only where they are used."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from intarsia.errors import FormatError
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.mapping import MappedTensors
from intarsia.formats.archive.payload import Payload

CPU = torch.device("cpu")
VALUES = torch.arange(16.0)
DIRECTORY = {
    "data/weights/w": Member("data/weights/w", 64, 64),
    "data/weights/short": Member("data/weights/short", 128, 16),
    "data/constants/t": Member("data/constants/t", 128, 64),
    "data/weights/skew": Member("data/weights/skew", 68, 32),
    "data/weights/none": Member("data/weights/none", 192, 0),
}


def payload(member: str, memory: int, size: int = 4, offset: int = 0) -> Payload:
    return Payload(member, memory, False, torch.float32, CPU, False, (size,), (1,), offset)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(64) + 2 * VALUES.numpy().tobytes())
    return tmp_path / "file"


def tensors(path: Path, payloads: Mapping[str, tuple[str, Payload]]) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        mapped = MappedTensors(path, file, DIRECTORY, payloads.values())
        return {name: mapped.tensor(entry) for name, (_, entry) in payloads.items()}


def test_tensors_lie_in_the_file(path: Path) -> None:
    found = tensors(path, {"a": ("weights", payload("w", 0)), "b": ("weights", payload("w", 0, 2, 14))})
    assert torch.equal(found["a"], VALUES[:4])
    assert torch.equal(found["b"], VALUES[14:])
    assert found["a"].data_ptr() % 64 == 0


def test_what_is_written_stays_in_the_process(path: Path) -> None:
    before = path.read_bytes()
    found = tensors(path, {"a": ("weights", payload("w", 0)), "b": ("weights", payload("w", 0, 2, 1))})
    again = tensors(path, {"a": ("weights", payload("w", 0))})
    found["a"][1] = 77
    assert found["b"][0] == 77
    assert again["a"][1] == 1
    assert path.read_bytes() == before


def test_the_same_bytes_for_two_memories_are_two_tensors(path: Path) -> None:
    found = tensors(path, {str(memory): ("weights", payload("w", memory)) for memory in range(3)})
    found["0"].fill_(5)
    found["1"].fill_(6)
    assert [tensor[0].item() for tensor in found.values()] == [5, 6, 0]


def test_one_memory_is_one_storage_also_from_two_members(path: Path) -> None:
    found = tensors(path, {"a": ("weights", payload("short", 0)), "b": ("constants", payload("t", 0, 16))})
    found["a"].fill_(9)
    assert found["b"][:5].tolist() == [9, 9, 9, 9, 4]


def test_equal_payloads_are_one_object(path: Path) -> None:
    entry = payload("w", 0)._replace(is_parameter=True)
    found = tensors(path, {"a": ("weights", entry), "b": ("weights", entry), "c": ("weights", payload("w", 0))})
    assert found["a"] is found["b"]
    assert isinstance(found["a"], torch.nn.Parameter)
    assert not found["a"].requires_grad
    assert not isinstance(found["c"], torch.nn.Parameter)
    assert found["c"].data_ptr() == found["a"].data_ptr()


def test_a_parameter_keeps_that_it_requires_grad(path: Path) -> None:
    entry = payload("w", 0)._replace(is_parameter=True, requires_grad=True)
    assert tensors(path, {"a": ("weights", entry)})["a"].requires_grad


def test_a_buffer_keeps_that_it_requires_grad(path: Path) -> None:
    found = tensors(path, {"a": ("weights", payload("w", 0)._replace(requires_grad=True))})
    assert found["a"].requires_grad
    assert found["a"].is_leaf


def test_bytes_at_an_odd_place_are_copied_to_an_even_one(path: Path) -> None:
    found = tensors(path, {"a": ("weights", payload("skew", 0))})
    assert torch.equal(found["a"], VALUES[1:5])
    assert found["a"].data_ptr() % 16 == 0


def test_a_tensor_may_have_no_element(path: Path) -> None:
    entry = payload("none", 0)._replace(sizes=(0, 3), strides=(3, 1))
    assert tensors(path, {"a": ("weights", entry)})["a"].shape == (0, 3)


def test_tensors_outlive_the_reader_and_the_file(path: Path) -> None:
    found = tensors(path, {"a": ("weights", payload("w", 0, 16))})
    path.unlink()
    gc.collect()
    assert torch.equal(found["a"], VALUES)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (payload("w", 0, 16, 1), "found a tensor that ends at byte 68 of 'data/weights/w', expected at most 64"),
        (payload("w", 0)._replace(strides=(6,)), "ends at byte 76"),
        (payload("x", 0), "of 'data/weights/x', expected a member of this name"),
        (payload("t", 0), "of 'data/weights/t', expected a member of this name"),
    ],
)
def test_a_tensor_that_leaves_its_member_is_an_error(path: Path, entry: Payload, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        tensors(path, {"a": ("weights", entry)})
