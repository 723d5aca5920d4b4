"""Engines in files: equal ones once, what their sources share once, and payloads only where they are wanted."""

from __future__ import annotations

import copy
import gc
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

from builders.damage import flip_bit
from builders.files import load_pt2, save_pt2
from builders.standin import StandInBackend, standin
from intarsia.core import container
from intarsia.core.backend import BuiltEngine
from intarsia.core.container import EngineContainer, pack_engine
from intarsia.errors import EngineError, FormatError
from intarsia.formats.loading import load_methods
from intarsia.formats.saving import save_methods
from intarsia.runtime.methods import Methods
from intarsia.runtime.program import Program

__all__ = ["standin"]

SIGNATURE = "(f32[2]) -> (f32[2])"
A, B, C = (letter * 5000 for letter in "abc")
SHARED = "data/engine_constants/constant_0"


def engine(*weights: str, name: str = "standin_0", payload: str = "double", source: bool = True) -> torch.Tensor:
    """An engine that doubles, whose source holds some weights as text."""
    text = json.dumps({"function": "double", "weights": weights})
    places = [(text.index(weight), len(weight)) for weight in weights]
    built = BuiltEngine(payload.encode(), text.encode() if source else None, "1.0", "anything", {}, places)
    data = pack_engine(built, name=name, backend="standin", signature=SIGNATURE)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Hybrid(torch.nn.Module):
    """Engines one after the other, and a tensor whose bytes are those of a weight."""

    def __init__(self, *engines: torch.Tensor, weight: str = "", as_buffers: bool = False) -> None:
        super().__init__()
        for number, one in enumerate(engines):
            if as_buffers:
                self.register_buffer(f"engine_{number}", one)
            else:
                setattr(self, f"engine_{number}", one)
        self.count = len(engines)
        data = torch.frombuffer(bytearray(weight.encode()), dtype=torch.float32) if weight else None
        self.register_buffer("weight", data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(self.count):
            (x,) = torch.ops.intarsia.run_engine.default([x], getattr(self, f"engine_{number}"), SIGNATURE)
        if self.weight is not None:
            x = x + 0 * self.weight[:2]
        return x


def program(*engines: torch.Tensor, **how: Any) -> ExportedProgram:
    return export(Hybrid(*engines, **how), (torch.ones(2),))


def save(programs: Mapping[str, ExportedProgram], path: Path, **how: Any) -> None:
    save_methods(programs, path, facts={name: {} for name in programs}, **how)


def members(path: Path) -> dict[str, int]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename.partition("/")[2]: info.file_size for info in archive.infolist()}


def shared_sizes(path: Path) -> list[int]:
    return [size for name, size in members(path).items() if name.startswith("data/engine_constants/")]


def count(path: Path, *texts: str) -> list[int]:
    data = path.read_bytes()
    return [data.count(text.encode()) for text in texts]


def run(path: Path) -> dict[str, list[float]]:
    x = torch.tensor([1.0, 2.0])
    return {name: Program(*method)(x).tolist() for name, method in load_methods(path).items()}


# What is stored once.


@pytest.mark.parametrize("payloads", [True, False])
def test_a_constant_of_two_methods_is_stored_once(standin: StandInBackend, tmp_path: Path, payloads: bool) -> None:
    path = tmp_path / "a.pt2"
    programs = {"first": program(engine(A, B)), "second": program(engine(C, A, payload="double "))}
    standin.FUNCTIONS = {**standin.FUNCTIONS, "double ": standin.FUNCTIONS["double"]}  # type: ignore[misc]
    save(programs, path, payloads=payloads)
    assert shared_sizes(path) == [5000]
    assert count(path, A, B, C) == [1, 1, 1]
    assert run(path) == {"first": [2, 4], "second": [2, 4]}
    assert sorted(set(standin.loaded)) == (["double", "double "] if payloads else ["source of double"])


def test_a_constant_that_torch_has_too_is_the_member_of_torch(standin: StandInBackend, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    save({"first": program(engine(A), weight=A), "second": program(engine(B))}, path, payloads=False)
    assert shared_sizes(path) == []
    assert count(path, A, B) == [1, 1]
    assert run(path) == {"first": [2, 4], "second": [2, 4]}


def test_a_constant_that_differs_from_a_tensor_in_the_middle_alone_is_another(
    standin: StandInBackend, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt2"
    other = A[:2500] + "z" + A[2501:]
    save({"first": program(engine(A), weight=other), "second": program(engine(B))}, path, payloads=False)
    assert members(path)["data/weights/weight_0"] == 5000
    assert count(path, A, other) == [1, 1]


def test_engines_of_one_method_share_where_torch_runs_them_from_their_payloads(
    standin: StandInBackend, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt2"
    exported = program(engine(A), engine(A, B, name="standin_1"))
    save_pt2(exported, path, facts={})
    assert count(path, A, B) == [1, 1]
    assert torch.export.load(path).module()(torch.ones(2)).tolist() == [4, 4]


def test_engines_that_torch_has_to_build_are_whole(standin: StandInBackend, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    exported = program(engine(A), engine(A, B, name="standin_1"))
    save({"forward": exported}, path, payloads=False)
    assert shared_sizes(path) == []
    assert torch.export.load(path).module()(torch.ones(2)).tolist() == [4, 4]
    assert standin.loaded == ["source of double"] * 2
    assert run(path) == {"forward": [4, 8]}


def test_only_engines_with_payloads_refer_to_what_torch_does_not_look_for(
    standin: StandInBackend, tmp_path: Path
) -> None:
    bare, path = tmp_path / "bare.pt2", tmp_path / "a.pt2"
    save({"forward": program(engine(A))}, bare, payloads=False)
    built = load_pt2(bare).program.constants["engine_0"]
    save({"forward": program(built, engine(A, B, name="standin_1"), engine(A, C, name="standin_2"))}, path)
    assert shared_sizes(path) == [5000]
    assert count(path, A) == [2]
    assert torch.export.load(path).module()(torch.ones(2)).tolist() == [8, 8]


@pytest.mark.parametrize("as_buffers", [False, True])
def test_equal_engines_are_stored_and_made_once(standin: StandInBackend, tmp_path: Path, as_buffers: bool) -> None:
    path = tmp_path / "a.pt2"
    names, payloads = ("standin_0", "standin_1", "standin_2"), ("double", "other:1", "other:2")
    engines = [engine(A, name=name, payload=payload) for name, payload in zip(names, payloads, strict=True)]
    programs = {
        "first": program(*engines[:2], as_buffers=as_buffers),
        "second": program(engines[2], as_buffers=as_buffers),
    }
    save(programs, path)
    assert sum("tensor_engine" in name or "weight_engine" in name for name in members(path)) == 1
    loaded = Methods({name: Program(*method) for name, method in load_methods(path).items()})
    x = torch.ones(2)
    assert (loaded.first(x).tolist(), loaded.second(x).tolist()) == ([4, 4], [2, 2])
    assert standin.loaded == ["double"]


def test_one_engine_tensor_of_two_methods_is_one_tensor_and_one_instance(
    standin: StandInBackend, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt2"
    shared = engine(A)
    save({"first": program(shared), "second": program(shared, engine(B, name="standin_1"))}, path)
    methods = load_methods(path)
    first, second = (method.program.constants["engine_0"] for method in methods.values())
    assert first is second
    assert run(path) == {"first": [2, 4], "second": [4, 8]}
    assert standin.loaded == ["double", "double"]


def test_the_payload_of_an_equal_engine_serves_one_that_has_none(standin: StandInBackend, tmp_path: Path) -> None:
    bare, full = tmp_path / "bare.pt2", tmp_path / "full.pt2"
    save({"forward": program(engine(A))}, bare, payloads=False)
    save({"first": load_pt2(bare).program, "second": program(engine(A, name="standin_1"))}, full)
    assert run(full) == {"first": [2, 4], "second": [2, 4]}
    assert standin.loaded == ["double"]


def test_an_engine_is_compared_with_its_hashes_once_for_all_methods(
    standin: StandInBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    verify = EngineContainer.verify
    monkeypatch.setattr(EngineContainer, "verify", lambda self: (verified.append(self.name), verify(self)))
    shared = engine(A)
    save({"first": program(shared), "second": program(shared)}, tmp_path / "a.pt2")
    assert verified == ["standin_0"]
    load_methods(tmp_path / "a.pt2")
    assert verified == ["standin_0"] * 2


# Saved again, copied, written.


@pytest.mark.parametrize("payloads", [True, False])
def test_saving_what_was_loaded_gives_the_same_file(standin: StandInBackend, tmp_path: Path, payloads: bool) -> None:
    first, second = tmp_path / "first.pt2", tmp_path / "second.pt2"
    programs = {
        "one": program(engine(A, B), weight=C),
        "two": program(engine(A, name="standin_1"), engine(C, A, name="standin_2")),
    }
    save(programs, first, payloads=payloads)
    save({name: method.program for name, method in load_methods(first).items()}, second, payloads=payloads)
    assert members(first) == members(second)
    assert first.read_bytes() == second.read_bytes()


def test_one_method_of_a_file_is_saved_whole(standin: StandInBackend, tmp_path: Path) -> None:
    path, alone = tmp_path / "a.pt2", tmp_path / "alone.pt2"
    save({"one": program(engine(A, B)), "two": program(engine(A, name="standin_1"))}, path, payloads=False)
    save({"forward": load_methods(path)["one"].program}, alone, payloads=False)
    assert torch.export.load(alone).module()(torch.ones(2)).tolist() == [2, 2]


def test_the_graph_says_the_size_that_an_engine_has_in_the_file(standin: StandInBackend, tmp_path: Path) -> None:
    save({"forward": program(engine(A))}, tmp_path / "a.pt2", payloads=False)
    for loaded in (load_pt2(tmp_path / "a.pt2").program, torch.export.load(tmp_path / "a.pt2")):
        (node,) = [node for node in loaded.graph.find_nodes(op="placeholder") if "engine" in node.name]
        assert node.meta["val"].shape == loaded.constants["engine_0"].shape


def test_a_copy_of_a_loaded_program_runs_while_the_program_lives(standin: StandInBackend, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    save({"one": program(engine(A)), "two": program(engine(A, B, name="standin_1"))}, path, payloads=False)
    loaded = load_methods(path)
    copied = copy.deepcopy(loaded["two"].program)
    assert copied.module()(torch.ones(2)).tolist() == [2, 2]
    again = copy.deepcopy(loaded["one"].program)
    del loaded
    gc.collect()
    with pytest.raises(EngineError, match="engine 'standin_0': found a portable form whose constants"):
        again.module()(torch.ones(2))


def test_what_a_program_writes_is_not_in_its_engines(standin: StandInBackend, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    save({"one": program(engine(A), weight=A), "two": program(engine(B))}, path, payloads=False)
    loaded = load_methods(path)["one"].program
    loaded.state_dict["weight"].zero_()
    data = loaded.constants["engine_0"].numpy().data
    assert A.encode() in bytes(EngineContainer.unpack(data).source or b"")


# What goes wrong.


def test_an_engine_without_source_needs_its_payload(standin: StandInBackend, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(b"old")
    exported = program(engine(A), engine(name="standin_1", source=False))
    message = r"engine 'standin_1': found no portable form .* payloads=True"
    with pytest.raises(EngineError, match=message):
        save({"forward": exported}, path, payloads=False)
    assert path.read_bytes() == b"old"


@pytest.fixture
def shared(standin: StandInBackend, tmp_path: Path) -> Path:
    """A file of two methods whose engines have a constant beside them."""
    path = tmp_path / "shared.pt2"
    save({"one": program(engine(A)), "two": program(engine(A, B, name="standin_1"))}, path, payloads=False)
    return path


def test_a_damaged_constant_is_named_with_engine_and_member(shared: Path) -> None:
    flip_bit(shared, SHARED)
    loaded = load_methods(shared)
    message = f"engine 'standin_0': found a constant that does not match its SHA-256 .in member '{SHARED}' of {shared}"
    with pytest.raises(EngineError, match=message):
        Program(*loaded["one"])(torch.ones(2))
    with pytest.raises(FormatError, match=f"damaged member '{SHARED}'"):
        load_methods(shared, verify=True)


def test_a_damaged_constant_is_not_saved_again(shared: Path, tmp_path: Path) -> None:
    flip_bit(shared, SHARED)
    programs = {name: method.program for name, method in load_methods(shared).items()}
    with pytest.raises(EngineError, match="engine 'standin_0': found a constant that does not match its SHA-256"):
        save(programs, tmp_path / "b.pt2")
    assert not (tmp_path / "b.pt2").exists()


def rewrite(path: Path, entries: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            archive.writestr(name, data)


def test_a_missing_constant_is_named(shared: Path) -> None:
    with zipfile.ZipFile(shared) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist() if not name.endswith(SHARED)]
    rewrite(shared, entries)
    with pytest.raises(FormatError, match=f"found nothing in member '{SHARED}'"):
        load_methods(shared)


def test_a_constant_that_is_another_is_named_with_the_engine(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A writer that puts another constant in its place, and tells the manifest so.
    monkeypatch.setattr("intarsia.formats.saving._compare", lambda constant, written: None)
    monkeypatch.setattr(
        "intarsia.formats.engines.members.ConstantMember.chunks", lambda self: [memoryview(b"x" * 5000)]
    )
    save({"one": program(engine(A)), "two": program(engine(A, B, name="standin_1"))}, shared, payloads=False)
    with pytest.raises(EngineError, match=f"engine 'standin_0' in {shared}: found no member with a constant of it"):
        load_methods(shared)


def test_torch_alone_says_what_is_missing(standin: StandInBackend, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    exported = program(engine(A, payload="other:1"), engine(A, B, name="standin_1", payload="other:2"))
    save({"forward": exported}, path)
    with pytest.raises(EngineError, match=r"engine 'standin_0': found a portable form .* intarsia.load"):
        torch.export.load(path).module()(torch.ones(2))
    assert run(path) == {"forward": [4, 8]}


def test_small_constants_stay_where_they_are(standin: StandInBackend, tmp_path: Path) -> None:
    small = "s" * (container.MIN_CONSTANT_BYTES - 1)
    save({"one": program(engine(small)), "two": program(engine(small, A, name="standin_1"))}, tmp_path / "a.pt2")
    assert shared_sizes(tmp_path / "a.pt2") == []
