"""Named tensors in a `.safetensors` file, and text beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from intarsia.core.signature import SHORT_NAMES
from intarsia.errors import FormatError, first_line
from intarsia.formats.recognition import SAFETENSORS, recognise
from intarsia.formats.replacement import replacing

_DTYPES = SHORT_NAMES.keys() - {torch.complex128}


class NamedTensors(NamedTuple):
    """What a `.safetensors` file holds.

    Attributes:
        tensors: Tensors by name.
        metadata: Texts by name; many writers put texts of their own here.
    """

    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]


def read_tensors(path: Path) -> NamedTensors:
    """Read a `.safetensors` file.

    Raises:
        FormatError: The file is missing, cannot be read, or is of another kind.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            return NamedTensors({name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {})  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise FormatError(
            str(path),
            found=_describe(path, error),
            expected="a safetensors file",
            fix="Write the tensors with safetensors.torch.save_file.",
        ) from error


def _describe(path: Path, error: OSError | SafetensorError) -> str:
    if not path.exists():
        return "no file"
    if isinstance(error, OSError) and not path.is_dir():
        return f"that it cannot be read ({error.strerror or error})"
    kind = recognise(path)
    return f"a damaged safetensors file ({first_line(error)})" if kind is SAFETENSORS else kind.what


def write_tensors(path: Path, content: NamedTensors) -> None:
    """Write a `.safetensors` file, whole or not at all.

    Args:
        path: Where to; a file that is there is replaced.
        content: Tensors are written one by one, also those that share memory.

    Raises:
        FormatError: The file cannot be written, or the format has no place for a tensor.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "x.safetensors"
        ...     write_tensors(path, NamedTensors({"x": torch.ones(2).expand(3, 2)}, {"count": "3"}))
        ...     found = read_tensors(path)
        >>> found.tensors["x"].shape, found.metadata["count"]
        (torch.Size([3, 2]), '3')
    """
    for name, tensor in content.tensors.items():
        _check_kind(name, tensor)
    # A contiguous tensor may still share its memory with another one, which the format refuses.
    own = {name: tensor.detach().contiguous().clone() for name, tensor in content.tensors.items()}
    data = save(own, dict(content.metadata) or None)  # safetensors 0.8 writes empty metadata so that nobody can read it
    with replacing(path) as new:
        new.write_bytes(data)


def _check_kind(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is torch.strided and tensor.dtype in _DTYPES:
        return
    raise FormatError(
        f"tensor {name!r}",
        found=f"{tensor.dtype} in layout {tensor.layout}",
        expected="a dense tensor of a dtype that .safetensors files have",
        fix="Leave the output file out, or convert the tensor in the model.",
    )
