"""Compiled code, opened and run."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from intarsia._torch import open_runner
from intarsia.core.compiled.private_folder import private_folder
from intarsia.errors import ArgumentError, EngineError, first_line

FOLDER = "data/aotinductor"
"""Where a package has the files of its models, below its root: a folder for each."""


def read_package(data: bytes | memoryview, model: str = "model") -> dict[str, bytes]:
    """The files of a model in a package, by name.

    Raises:
        ValueError: It is no package, or has no such model.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = {
                name.rpartition("/")[2]: archive.read(name)
                for name in archive.namelist()
                if name.partition("/")[2].startswith(f"{FOLDER}/{model}/")
            }
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error
    if not any(name.endswith(".so") for name in found):
        message = f"no compiled model {model!r}"
        raise ValueError(message)
    return found


class CompiledModel:
    """A model that AOTInductor compiled, with its state. One call runs at a time; others wait for it.

    Its files are written into a private folder, and removed as soon as they are opened: a process that dies later
    leaves nothing. Opening them runs code of theirs.

    Args:
        files: Those of a package, by name.

    Attributes:
        device: Where it runs.

    Raises:
        EngineError: There is no room for them in the folder of temporary files.
        RuntimeError: The system or torch does not take them.
    """

    def __init__(self, files: Mapping[str, bytes | memoryview]) -> None:
        self.device = torch.device(_device_of(files))
        with private_folder() as folder:
            _write(folder, files)
            (library,) = (folder / name for name in files if name.endswith(".so"))
            self._runner = open_runner(str(library), str(self.device))
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Run it on its tensor inputs.

        Returns:
            Contiguous tensors that alias neither the inputs nor each other nor the model's state, and
            None where the program returns that.

        Raises:
            ArgumentError: An input is on another device.
            RuntimeError: It fails.
        """
        # A call holds on to its inputs, which the compiled code borrows.
        with self._lock:
            return _own(self._runner.run(list(inputs)), inputs)

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that it reads and writes, by the names of the program's state; its memory, not copies."""
        return self._runner.extract_constants_map(False)  # noqa: FBT003 - as torch has it

    def place(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Let it read and write these tensors in the place of some of its state. The caller keeps them alive."""
        with self._lock:
            self._runner.update_constant_buffer(dict(tensors), False, False, True)  # noqa: FBT003


def readable(value: torch.Tensor, device: torch.device, subject: str) -> torch.Tensor:
    """The tensor, or a copy where compiled code cannot read it as one row-major array.

    Raises:
        ArgumentError: It is on another device.
    """
    if value.device.type != device.type:
        raise ArgumentError(
            subject,
            found=f"a tensor on {value.device}",
            expected=f"one on {device}, for which it was compiled",
            fix=f'Move it with .to("{device.type}").',
        )
    return value.detach().resolve_conj().resolve_neg().contiguous()


def _write(folder: Path, files: Mapping[str, bytes | memoryview]) -> None:
    try:
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise EngineError(
            "compiled code",
            found=f"that it cannot be written into {folder.parent} ({error.strerror or first_line(error)})",
            expected=f"room for {sum(map(len, files.values())):,} bytes there, until it is opened",
            fix="Make room, or name another folder in the environment variable TMPDIR.",
        ) from error


def _own(outputs: Sequence[torch.Tensor | None], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs, copied where they are not contiguous, or are memory of something else."""
    taken = {value.untyped_storage().data_ptr() for value in inputs}
    found: list[torch.Tensor | None] = []
    for output in outputs:
        if output is None:  # one that the program returns so
            found.append(output)
            continue
        storage = output.untyped_storage()
        # Memory that belongs to the compiled code cannot be resized.
        if not output.is_contiguous() or not storage.resizable() or storage.data_ptr() in taken:
            output = output.clone(memory_format=torch.contiguous_format)  # noqa: PLW2901 - the same value
        taken.add(output.untyped_storage().data_ptr())
        found.append(output)
    return found


def _device_of(files: Mapping[str, bytes | memoryview]) -> str:
    for name, data in files.items():
        if name.endswith("wrapper_metadata.json"):
            return str(json.loads(bytes(data)).get("AOTI_DEVICE_KEY", "cpu"))
    return "cpu"
