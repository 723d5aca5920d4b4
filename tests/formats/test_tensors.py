"""`.safetensors` files: what goes in comes out, and what is no such file is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from intarsia.core.signature import SHORT_NAMES
from intarsia.errors import FormatError
from intarsia.formats.tensors.named import NamedTensors, read_tensors, write_tensors


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    tensors = {
        "whole": whole,
        "row": whole[1],  # shares memory
        "transposed": whole.t(),
        "scalar": torch.tensor(3),
        "empty": torch.ones(0, 3),
        "cache['k']": torch.ones(2, dtype=torch.bfloat16),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "negative": torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    }
    write_tensors(tmp_path / "x.safetensors", NamedTensors(tensors, {"n": "3", "none": "null"}))
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.metadata == {"n": "3", "none": "null"}
    assert set(found.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype is tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


@pytest.mark.parametrize("dtype", [d for d in SHORT_NAMES if d is not torch.complex128])
def test_every_dtype_that_the_library_knows_by_name_can_be_written(tmp_path: Path, dtype: torch.dtype) -> None:
    write_tensors(tmp_path / "x.safetensors", NamedTensors({"x": torch.ones(2).to(dtype)}, {}))
    assert read_tensors(tmp_path / "x.safetensors").tensors["x"].dtype is dtype


def test_a_file_without_metadata_has_none(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", NamedTensors({}, {}))
    assert read_tensors(tmp_path / "x.safetensors") == NamedTensors({}, {})


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.eye(2).to_sparse(), "torch.sparse_coo"),
        (torch.ones(2, dtype=torch.complex128), "torch.complex128"),
    ],
    ids=["sparse", "complex128"],
)
def test_a_tensor_without_a_place_in_the_format_is_refused_and_nothing_is_written(
    tmp_path: Path, tensor: torch.Tensor, found: str
) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"as before")
    with pytest.raises(FormatError, match=f"tensor 'y': found .*{found}"):
        write_tensors(tmp_path / "x.safetensors", NamedTensors({"y": tensor}, {}))
    assert (tmp_path / "x.safetensors").read_bytes() == b"as before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"no such file", "a file of an unknown kind"),
        (pickle.dumps({"x": 1}), "a pickle"),
        (save({"x": torch.ones(3)})[:-1], r"a damaged safetensors file \(.*\)"),
    ],
    ids=["empty", "text", "pickle", "cut short"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(FormatError, match=rf"x.pt: found {found}, expected a safetensors file"):
        read_tensors(tmp_path / "x.pt")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="found no file, expected"):
        read_tensors(tmp_path / "x.safetensors")
    with pytest.raises(FormatError, match="found a folder, expected"):
        read_tensors(tmp_path)
