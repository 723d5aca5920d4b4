"""Tell what kind of file a path leads to, and which tool that file is for. Nothing is unpickled or imported."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        what: What it is, with its article: "an ONNX model".
        advice: A sentence that says what to do with it.
    """

    what: str
    advice: str


_COMPILE = "For intarsia, compile the nn.Module that it was made of."
_NAME_IT = "Run it with executorch.runtime, or with intarsia.load where intarsia wrote it and its name ends in .pte."
_COPY_AGAIN = "Copy or save the file again."

PROGRAM = Kind("a PT2 archive", "Run it with intarsia.load.")
SAFETENSORS = Kind(
    "a safetensors file",
    "It holds tensors without a model: load them in a factory that returns the model.",
)
EMPTY = Kind("an empty file", _COPY_AGAIN)
DAMAGED_ARCHIVE = Kind("an archive that is cut short or damaged", _COPY_AGAIN)
FOLDER = Kind("a folder", "Give the path of a file.")
UNKNOWN = Kind("a file of an unknown kind", "Load it with the tool that wrote it.")

_AOTINDUCTOR = "run it with torch._inductor.aoti_load_package."
_CHECKPOINT = Kind(
    "a checkpoint of torch.save", "It holds weights or a pickled module: load it in a factory that returns the model."
)
# What the first bytes tell; the first pattern that matches counts.
_STARTS = (
    (
        rb"....(ET|BP)\d\d",
        Kind(
            "an ExecuTorch program",
            "Run it with executorch.runtime, or with intarsia.load where intarsia wrote it and its name ends in .pte.",
        ),
    ),
    (rb".{4}\0{4}\{", SAFETENSORS),
    (rb"\x08[\x01-\x20][\n\x12\x1a\x22*2:B]", Kind("an ONNX model", f"Run it with onnxruntime. {_COMPILE}")),
    (rb"\x80\x02\x8a\nl\xfc\x9cF", _CHECKPOINT),
    (rb"\x80[\x02-\x05]", Kind("a pickle", "Where you trust it: load it in a factory that returns the model.")),
    (rb"\x7fELF", Kind("a shared library", f"Where AOTInductor made it: {_AOTINDUCTOR} {_COMPILE}")),
    (rb"....TFL3", Kind("a TensorFlow Lite model", "Run it with TensorFlow Lite.")),
    (rb"GGUF", Kind("a GGUF file", "Run it with a tool that reads GGUF.")),
    (rb"\x93NUMPY", Kind("a NumPy array", "Load it with numpy.load.")),
    (rb"\x89HDF", Kind("an HDF5 file", "Load it with the tool that wrote it.")),
    (rb"ftrt", Kind("a TensorRT engine", f"Run it with TensorRT. {_COMPILE}")),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf", Kind("a compressed file", "Unpack it first.")),
    (rb"version https://git-lfs", Kind("a Git LFS pointer in the file's place", "Fetch the file: git lfs pull.")),
    (rb"(?i:\s*<(!doctype html|html))", Kind("a web page in the file's place", "Download the file itself.")),
    (rb"\s*<\?xml", Kind("an XML file", f"Where it is an OpenVINO model: run it with openvino. {_COMPILE}")),
)
# What a member of a zip archive tells, by the start of its name below the archive's root folder.
_MEMBERS = (
    ("data/aotinductor/", Kind("an AOTInductor package", f"{_AOTINDUCTOR.capitalize()} {_COMPILE}")),
    ("code/", Kind("a TorchScript program", f"Run it with torch.jit.load. {_COMPILE}")),
    (
        ".data/extern_modules",
        Kind("a torch.package archive", f"Read it with torch.package.PackageImporter. {_COMPILE}"),
    ),
    ("data.pkl", _CHECKPOINT),
)
_OLD_PROGRAM = Kind(
    "a program in the layout of torch 2.7 or older, which holds pickles",
    "Where you trust it: load it with that torch, and save it with a newer one.",
)
# A program that torch finds, and what intarsia says of all others.
_PROGRAMS = frozenset(["models/model.json", "extra/intarsia_manifest.json"])
_OTHER_ZIP = Kind("a zip archive of another kind", "Load it with the tool that wrote it.")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def recognise(path: Path) -> Kind:
    """What kind of file stands at a path.

    Raises:
        OSError: It cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "net.onnx")
        ...     size = path.write_bytes(bytes([8, 10, 18, 7]) + b"pytorch")
        ...     print(recognise(path).what)
        an ONNX model
    """
    if path.is_dir():
        return FOLDER
    with path.open("rb") as file:
        start = file.read(64)
    if not is_zip(start):
        return kind_of_start(start)
    try:
        with zipfile.ZipFile(path) as archive:
            return kind_of_members(archive.namelist())
    except (zipfile.BadZipFile, ValueError, EOFError):
        return DAMAGED_ARCHIVE


def is_zip(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a zip archive."""
    return start.startswith(_ZIP)


def kind_of_start(start: bytes) -> Kind:
    """What the first 64 bytes of a file tell, where it is no zip archive."""
    if not start:
        return EMPTY
    return next((kind for pattern, kind in _STARTS if re.match(pattern, start, re.DOTALL)), UNKNOWN)


def kind_of_members(names: Collection[str]) -> Kind:
    """What the names of the members of a zip archive tell; `PROGRAM` where it holds an exported program `model`."""
    # The archives of torch have one root folder, of any name.
    below = {name.partition("/")[2] for name in names}
    if not below.isdisjoint(_PROGRAMS):
        return PROGRAM
    programs = sorted(
        name.removeprefix("models/").removesuffix(".json") for name in below if name.startswith("models/")
    )
    if programs:
        return Kind(
            "a PT2 archive without a program named 'model'",
            f"It holds {', '.join(programs)}: save the one that you want with torch.export.save.",
        )
    if "serialized_exported_program.json" in names:
        return _OLD_PROGRAM
    if names and all(name.endswith(".npy") for name in names):
        return Kind("a NumPy archive", "Load it with numpy.load.")
    return next((kind for start, kind in _MEMBERS if any(name.startswith(start) for name in below)), _OTHER_ZIP)
