"""A reader that follows docs/format.md agrees with intarsia on what files hold."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import compat.reader
import intarsia
from builders.damage import flip_bit
from compat.reader import Bad, File, engine_calls
from intarsia.core.container import EngineContainer
from intarsia.formats.archive.mapping import MappedTensors
from intarsia.formats.loading import load_methods


class Odd(nn.Module):
    """State of many kinds: shared, sliced, written, empty, constant."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0).view(3, 4)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[1:, ::2])
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("none", torch.zeros(0, 4))
        self.weight = nn.Parameter(torch.randn(4, 4).to(torch.bfloat16))
        self.constant = torch.tensor([1 + 2j, 3j])

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.calls.add_(1)
        y = (x.to(torch.bfloat16) @ self.weight).float() + self.whole.sum() + self.part.mean() + self.none.sum()
        return {"y": y, "calls": self.calls + 0, "z": self.constant.to(torch.complex128) * x.sum(), "n": None, "k": 0.1}


def odd(folder: Path) -> Path:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    program = export(Odd(), (x,), dynamic_shapes=({0: Dim("rows", min=1, max=8)},))
    intarsia.save(program, folder / "a.pt2", test_vectors=[((x,), {}), ((x[:1],), {})])
    return folder / "a.pt2"


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64)).eval()


def one_method(folder: Path) -> Path:
    hybrid = intarsia.compile(layers(), (torch.ones(2, 64),), torch_executed_ops={"aten.sigmoid"})
    intarsia.save(hybrid, folder / "a.pt2", test_vectors=[((torch.ones(2, 64),), {})])
    return folder / "a.pt2"


def two_methods(folder: Path, *, payloads: bool = True) -> Path:
    model = layers()
    kept = {"aten.sigmoid"}
    hybrids = {
        name: intarsia.compile(model, (torch.ones(rows, 64),), torch_executed_ops=kept)
        for name, rows in (("prefill", 3), ("decode", 1))
    }
    calls: Any = [("prefill", (torch.ones(3, 64),), {}), ("decode", (torch.ones(1, 64),), {})]
    intarsia.save(hybrids, folder / "a.pt2", payloads=payloads, test_vectors=calls)
    return folder / "a.pt2"


def without_payloads(folder: Path) -> Path:
    return two_methods(folder, payloads=False)


@pytest.fixture(scope="module", params=[odd, one_method, two_methods, without_payloads])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("files"))
    return made


def test_the_reader_is_independent() -> None:
    tree = ast.parse(Path(compat.reader.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in imported if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.startswith(("intarsia", "safetensors", "numpy"))}


def test_tensors_are_the_same(path: Path) -> None:
    read, loaded = File(path), load_methods(path)
    assert list(read.methods) == list(loaded)
    for name, method in read.methods.items():
        program = loaded[name].program
        for found, expected in ((method.weights, program.state_dict), (method.constants, program.constants)):
            assert found.keys() == expected.keys()
            for key, tensor in found.items():
                assert (tensor.dtype, tensor.shape, tensor.stride()) == (
                    expected[key].dtype,
                    expected[key].shape,
                    expected[key].stride(),
                )
                assert torch.equal(tensor, expected[key])


def test_memories_are_the_same(path: Path) -> None:
    read, loaded = File(path), load_methods(path)
    places: dict[int, set[int]] = {}
    for name, method in read.methods.items():
        held = held_by(loaded[name].program)
        for key, memory in method.memories.items():
            if held[key].numel():
                places.setdefault(memory, set()).add(held[key].untyped_storage().data_ptr())
    assert all(len(storages) == 1 for storages in places.values())
    assert len(set.union(*places.values())) == len(places)


def held_by(program: ExportedProgram) -> dict[str, Tensor]:
    return {**program.state_dict, **program.constants}


def test_engines_are_the_same(path: Path) -> None:
    read, loaded = File(path), load_methods(path)
    for name, method in read.methods.items():
        held, manifest = held_by(loaded[name].program), loaded[name].manifest
        assert manifest is not None
        assert engine_calls(method) == [(entry.constant, entry.signature) for entry in manifest.engines]
        for entry in manifest.engines:
            engine, container = (
                method.engines[entry.constant],
                EngineContainer.unpack(held[entry.constant].numpy().data),
            )
            assert engine.header_sha256 == container.digest.hex() == entry.sha256
            assert engine.payload == (None if container.payload is None else bytes(container.payload))
            assert container.source is not None
            assert engine.portable == bytes(container.source)
            assert len(engine.portable) == entry.source_bytes
            for field in ("name", "backend", "backend_version", "target", "signature", "options"):
                assert engine.header[field] == getattr(container, field)
            assert method.facts["engines"][0]["backend"] == "openvino"


def test_the_manifest_says_the_same(path: Path) -> None:
    read, loaded = File(path), load_methods(path)
    for name, method in read.methods.items():
        manifest = loaded[name].manifest
        assert manifest is not None
        assert [tuple(write.values()) for write in method.facts["writes"]] == [
            (write.kind, write.name, write.declared) for write in manifest.writes
        ]
        assert read.manifest["torch_version"] == manifest.torch_version
        assert len(method.facts["ledger"] or []) == len(manifest.ledger.entries if manifest.ledger else ())


def test_test_vectors_are_the_same(path: Path) -> None:
    vectors = intarsia.load(path).test_vectors
    assert vectors is not None
    for found, expected in zip(File(path).calls, vectors.calls, strict=True):
        assert found.method == expected.method
        assert found.written.keys() == expected.written.keys()
        for one, other in zip([*found.inputs, *found.outputs], [*expected.inputs, *expected.outputs], strict=True):
            assert type(one) is type(other)
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def test_bytes_lie_where_they_are_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, int] = {}
    real = MappedTensors.__init__

    def watched(self: MappedTensors, path: Path, file: Any, directory: Any, payloads: Any) -> None:
        found.update({name: member.offset for name, member in directory.items()})
        real(self, path, file, directory, payloads)

    monkeypatch.setattr(MappedTensors, "__init__", watched)
    intarsia.load(path)
    assert found == File(path).positions


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = odd(tmp_path)
    flip_bit(path, "data/weights/weight_0")
    with pytest.raises(Bad, match="weight_0"):
        File(path)
