"""Files that try to make whoever loads them do something: good files, with parts of them changed."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

from intarsia.formats.archive.layout import MANIFEST_HASH_MEMBER, MANIFEST_MEMBER

Members = dict[str, bytes]
GRAPH = "models/model.json"


class Sentinel:
    """A file that a payload writes when it runs.

    Attributes:
        expression: Python text that writes it.
        module: A module that writes it when it is imported; it can be.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sentinel"
        self.expression = f"__import__('pathlib').Path({str(self._path)!r}).touch()"
        self.module = "hostile_module"
        (folder / f"{self.module}.py").write_text(f"{self.expression}\nclass Made: pass\n")

    def __reduce__(self) -> Any:
        return eval, (self.expression,)

    def ran(self) -> bool:
        """Whether a payload ran since this was last asked."""
        found = self._path.exists()
        self._path.unlink(missing_ok=True)
        sys.modules.pop(self.module, None)
        return found


@pytest.fixture
def sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sentinel]:
    folder = tmp_path / "sentinel"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = Sentinel(folder)
    yield made
    assert not made.ran()


class Small(torch.nn.Module):
    """Something of everything: a weight, a buffer, a constant, a symbolic size, a keyword and a body in a body."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.constant = torch.ones(3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        y = torch.cat([self.linear(x) * scale, x + self.constant])
        return {"y": torch.cond(y.shape[0] > 6, lambda y: y + 1, lambda y: y - 1, (y,)), "half": y[::2]}


def small_program() -> ExportedProgram:
    """A small program with a dynamic size."""
    torch.manual_seed(0)
    sizes = {"x": {0: Dim("batch", min=2, max=64)}, "scale": None}
    with warnings.catch_warnings():  # dynamo looks at the gradient of the branches' operand
        warnings.simplefilter("ignore")
        return export(Small(), (torch.ones(4, 3),), {"scale": torch.ones(1)}, dynamic_shapes=sizes)


def read_members(path: Path) -> Members:
    """The members of an archive, by their names below its root folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def pack(path: Path, members: Members) -> Path:
    """Write an archive of these members; its manifest, where it has one, tells the truth of them."""
    if MANIFEST_MEMBER in members:
        fields = json.loads(members[MANIFEST_MEMBER])
        fields["members"] = {
            name: {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members.items()
            if name not in (MANIFEST_MEMBER, MANIFEST_HASH_MEMBER)
        }
        text = json.dumps(fields).encode()
        members = {**members, MANIFEST_MEMBER: text, MANIFEST_HASH_MEMBER: hashlib.sha256(text).hexdigest().encode()}
    return zip_members(path, members)


def zip_members(path: Path, members: Members) -> Path:
    """Write an archive of these members, whatever they say of each other."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
    return path


def change_json(path: Path, member: str, change: Callable[[Any], None]) -> Path:
    """Change the values of a member that is JSON; the manifest tells the truth of it."""
    members = read_members(path)
    values = json.loads(members[member])
    change(values)
    return pack(path, {**members, member: json.dumps(values).encode()})


def replace_text(old: str, new: str) -> Callable[[Any], None]:
    """A change of every text in a graph that is `old`."""

    def change(values: Any) -> None:
        text = json.dumps(values)
        assert json.dumps(old) in text
        values.update(json.loads(text.replace(json.dumps(old), json.dumps(new))))

    return change


def graph_of(values: Any) -> Any:
    """The graph in the values of a program."""
    return values["graph_module"]["graph"]


def signature_of(values: Any) -> Any:
    """The calling convention in the values of a program."""
    return values["graph_module"]["module_call_graph"][0]["signature"]
