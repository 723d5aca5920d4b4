"""What a file is, told by its content: with files that the tools themselves wrote, where they are installed."""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intarsia import load, save
from intarsia.errors import FormatError
from intarsia.formats.recognition import PROGRAM, recognise


def write(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def write_zip(*names: str) -> Callable[[Path], Any]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "x")

    return make


def write_old_checkpoint(path: Path) -> None:
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)


def write_numpy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(2))


def write_numpy_archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(2), b=np.ones(2))


def write_part(path: Path) -> None:
    whole = path.with_name("whole.pt2")
    write_zip("m/models/model.json")(whole)
    path.write_bytes(whole.read_bytes()[:-10])


KINDS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "folder": (Path.mkdir, "a folder", "path of a file"),
    "empty": (Path.touch, "an empty file", "Copy or save"),
    "text": (write(b"hello"), "a file of an unknown kind", "tool that wrote it"),
    "ONNX": (write(b"\x08\x0a\x12\x07pytorch"), "an ONNX model", "onnxruntime"),
    "ONNX without a producer": (write(b"\x08\x08\x3a\x81\x01"), "an ONNX model", "onnxruntime"),
    "safetensors": (write((16).to_bytes(8, "little") + b'{"a": 1}' + bytes(8)), "a safetensors file", "factory"),
    "safetensors of a length that is a newline": (
        write((10).to_bytes(8, "little") + b'{"a": 1}  '),
        "a safetensors file",
        "factory",
    ),
    "ExecuTorch": (write(b"\x1c\0\0\0ET12" + bytes(64)), "an ExecuTorch program", "executorch.runtime"),
    "bundled ExecuTorch": (write(b"\x1c\0\0\0BP08" + bytes(64)), "an ExecuTorch program", "executorch.runtime"),
    "pickle": (write(b"\x80\x04}q\0."), "a pickle", "factory that returns the model"),
    "torch.save": (lambda path: torch.save({"a": torch.ones(1)}, path), "a checkpoint of torch.save", "factory"),
    "old torch.save": (write_old_checkpoint, "a checkpoint of torch.save", "factory"),
    "TorchScript": (write_zip("m/data.pkl", "m/code/__torch__.py"), "a TorchScript program", "torch.jit.load"),
    "torch.package": (write_zip("m/.data/extern_modules", "m/x.py"), "a torch.package archive", "PackageImporter"),
    "AOTInductor": (write_zip("m/data/aotinductor/model/a.so"), "an AOTInductor package", "aoti_load_package"),
    "old program": (
        write_zip("version", "serialized_exported_program.json", "serialized_state_dict.pt"),
        "a program in the layout of torch 2.7 or older",
        "save it with a newer one",
    ),
    "shared library": (write(b"\x7fELF\x02\x01"), "a shared library", "aoti_load_package"),
    "other programs": (
        write_zip("m/models/b.json", "m/models/a.json"),
        "a PT2 archive without a program named 'model'",
        "It holds a, b",
    ),
    "zip": (write_zip("a/b"), "a zip archive of another kind", "tool that wrote it"),
    "empty zip": (write_zip(), "a zip archive of another kind", "tool that wrote it"),
    "cut short": (write_part, "an archive that is cut short or damaged", "Copy or save"),
    "NumPy": (write_numpy, "a NumPy array", "numpy.load"),
    "NumPy archive": (write_numpy_archive, "a NumPy archive", "numpy.load"),
    "TensorFlow Lite": (write(b"\x20\0\0\0TFL3" + bytes(64)), "a TensorFlow Lite model", "TensorFlow Lite"),
    "GGUF": (write(b"GGUF\3\0\0\0"), "a GGUF file", "reads GGUF"),
    "HDF5": (write(b"\x89HDF\r\n\x1a\n"), "an HDF5 file", "tool that wrote it"),
    "TensorRT": (write(b"ftrt\0\0"), "a TensorRT engine", "TensorRT"),
    "gzip": (write(gzip.compress(b"a")), "a compressed file", "Unpack"),
    "Git LFS": (write(b"version https://git-lfs.example/spec/v1\noid"), "a Git LFS pointer", "git lfs pull"),
    "web page": (write(b"\n<!DOCTYPE html><html>"), "a web page", "Download"),
    "OpenVINO": (write(b'<?xml version="1.0"?><net>'), "an XML file", "openvino"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_told_by_its_content(tmp_path: Path, kind: str) -> None:
    make, what, advice = KINDS[kind]
    make(tmp_path / "a.pt2")
    found = recognise(tmp_path / "a.pt2")
    assert found.what.startswith(what)
    assert advice in found.advice


@pytest.mark.parametrize("kind", KINDS)
def test_load_tells_the_same(tmp_path: Path, kind: str) -> None:
    KINDS[kind][0](tmp_path / "a.pt2")
    found = recognise(tmp_path / "a.pt2")
    text = f"a.pt2: found {found.what}, expected a PT2 archive. {found.advice}"
    with pytest.raises(FormatError, match=f"{re.escape(text)}$"):
        load(tmp_path / "a.pt2")


def test_an_exported_program_is_one(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), tmp_path / "a.pt2")
    assert recognise(tmp_path / "a.pt2") is PROGRAM


def test_a_file_of_several_methods_is_one(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    save({"a": program, "b": program}, tmp_path / "a.pt2")
    assert recognise(tmp_path / "a.pt2") is PROGRAM


def test_a_real_safetensors_file_is_one(tmp_path: Path) -> None:
    torch_format = pytest.importorskip("safetensors.torch")
    torch_format.save_file({"a": torch.ones(1)}, tmp_path / "a")
    assert recognise(tmp_path / "a").what == "a safetensors file"


def test_a_file_that_is_missing_is_the_callers_affair(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        recognise(tmp_path / "none")
