"""PT2 files: what is in them, who can read them, and what becomes of faults on both ways."""

from __future__ import annotations

import copy
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.core.ledger import Entry, Ledger
from intarsia.errors import EngineError, FormatError, StateError, UnsupportedVersion
from intarsia.formats.manifest import Manifest, WriteEntry
from intarsia.formats.pt2 import MANIFEST_NAME, load_pt2, read_manifest, save_pt2

DOUBLE = "(f32[b, 3]) -> (f32[b, 3])"
PAYLOAD = b"the compiled engine"


def engine_tensor(payload: bytes = PAYLOAD) -> torch.Tensor:
    built = BuiltEngine(payload, None, "1.0", "anything", {})
    return torch.frombuffer(
        bytearray(pack_engine(built, name="standin_0", backend="standin", signature=DOUBLE)), dtype=torch.uint8
    )


class Hybrid(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.engine = engine_tensor()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.ops.intarsia.run_engine.default([self.linear(x)], self.engine, DOUBLE)[0]


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(scope="module")
def hybrid() -> ExportedProgram:
    return export(Hybrid(), (torch.ones(2, 3),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))


@pytest.fixture(scope="module")
def plain() -> ExportedProgram:
    return export(Plain(), (torch.ones(2, 3),))


@pytest.fixture
def saved(plain: ExportedProgram, tmp_path: Path) -> Path:
    path = tmp_path / "plain.pt2"
    save_pt2(plain, path, facts={})
    return path


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Write the archive again with changed members; None leaves a member out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            changed = change(name, data)
            if changed is not None:
                archive.writestr(name, changed)


def test_what_was_saved_is_loaded(plain: ExportedProgram, saved: Path) -> None:
    program, _ = load_pt2(saved)
    x = torch.randn(2, 3)
    assert torch.equal(program.module()(x), plain.module()(x))
    assert program.state_dict.keys() == plain.state_dict.keys()


def test_ranges_and_persistence_survive(hybrid: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(hybrid, tmp_path / "a.pt2", facts={})
    program, _ = load_pt2(tmp_path / "a.pt2")
    assert str(program.range_constraints) == str(hybrid.range_constraints)
    assert program.graph_signature == hybrid.graph_signature


def test_torch_reads_the_file_in_a_new_process(plain: ExportedProgram, hybrid: ExportedProgram, tmp_path: Path) -> None:
    for name, program in {"plain": plain, "hybrid": hybrid}.items():
        save_pt2(program, tmp_path / f"{name}.pt2", facts={})
    code = """
import sys, torch
import intarsia
plain, hybrid = (torch.export.load(path) for path in sys.argv[1:])
torch.save(plain.module()(torch.ones(2, 3)), sys.stdout.buffer)
assert any("run_engine" in str(node.target) for node in hybrid.graph.nodes)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "plain.pt2"), str(tmp_path / "hybrid.pt2")]
    result = subprocess.run(command, capture_output=True, check=True)
    assert torch.equal(torch.load(io.BytesIO(result.stdout)), plain.module()(torch.ones(2, 3)))


def test_the_file_holds_no_pickle_and_no_example_inputs(plain: ExportedProgram, saved: Path) -> None:
    assert plain.example_inputs is not None
    with zipfile.ZipFile(saved) as archive:
        sizes = {name: archive.getinfo(name).file_size for name in archive.namelist()}
        assert not any(archive.read(name).startswith((b"\x80\x02", b"PK")) for name in sizes)
    assert [size for name, size in sizes.items() if "sample_inputs" in name] == [0]


def test_the_saved_program_is_not_changed_and_no_weight_is_copied(plain: ExportedProgram, tmp_path: Path) -> None:
    before = {name: (value, value._version) for name, value in plain.state_dict.items()}
    example = plain.example_inputs
    save_pt2(plain, tmp_path / "a.pt2", facts={})
    assert plain.example_inputs is example
    assert {name: (value, value._version) for name, value in plain.state_dict.items()} == before


def test_the_manifest_tells_engines_writes_and_facts(hybrid: ExportedProgram, tmp_path: Path) -> None:
    ledger = Ledger((Entry("node", "relu", "kept", "relu"), Entry("node", "neg", "removed", None, "unused")))
    facts = {"ledger": ledger.to_json(), "coverage": {"placements": []}}
    save_pt2(hybrid, tmp_path / "a.pt2", facts=facts)
    _, manifest = load_pt2(tmp_path / "a.pt2")
    assert manifest is not None
    assert manifest == read_manifest(tmp_path / "a.pt2")
    assert (manifest.format_version, manifest.torch_version) == (1, torch.__version__)
    (engine,) = manifest.engines
    assert (engine.constant, engine.name, engine.backend) == ("engine", "standin_0", "standin")
    assert (engine.backend_version, engine.target, engine.signature) == ("1.0", "anything", DOUBLE)
    assert engine.size_bytes == engine_tensor().nbytes
    assert manifest.writes == (WriteEntry("buffer", "calls", declared=False),)
    assert manifest.ledger == ledger
    assert manifest.coverage == {"placements": []}


def test_the_manifest_tells_declared_writes(hybrid: ExportedProgram) -> None:
    manifest = Manifest.of(hybrid.run_decompositions({}), {})
    assert manifest.writes == (WriteEntry("buffer", "calls", declared=True),)
    assert manifest.ledger is None


def test_a_file_of_torch_itself_has_no_manifest(plain: ExportedProgram, tmp_path: Path) -> None:
    torch.export.save(plain, tmp_path / "a.pt2")
    program, manifest = load_pt2(tmp_path / "a.pt2")
    assert manifest is None
    assert torch.equal(program.module()(torch.ones(2, 3)), plain.module()(torch.ones(2, 3)))


def test_a_file_may_have_any_name_when_it_is_loaded(saved: Path) -> None:
    renamed = saved.rename(saved.with_name("program"))
    assert load_pt2(renamed)[1] is not None


# Faults of what is saved.


def with_entry(program: ExportedProgram, name: str, value: Any) -> ExportedProgram:
    changed = copy.copy(program)
    changed._state_dict = {**program.state_dict, name: value}
    return changed


class Wrapped(torch.Tensor):
    pass


UNSTORABLE = {
    "subclass": (lambda: torch.ones(3).as_subclass(Wrapped), "found a tensor subclass Wrapped"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "found a tensor of layout torch.sparse_coo"),
    "meta": (lambda: torch.ones(3, device="meta"), "found a tensor without memory"),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), "found a lazily conjugated or negated tensor"),
    "object": (object, "found an object of type object"),
}


@pytest.mark.parametrize("case", UNSTORABLE)
def test_state_that_is_no_plain_tensor_is_refused_by_name(plain: ExportedProgram, case: str, tmp_path: Path) -> None:
    make, message = UNSTORABLE[case]
    with pytest.raises(StateError, match=rf"state 'linear\.bias': {message}"):
        save_pt2(with_entry(plain, "linear.bias", make()), tmp_path / "a.pt2", facts={})
    assert list(tmp_path.iterdir()) == []


def test_state_without_a_value_is_refused(tmp_path: Path) -> None:
    program = export(Plain(), (torch.ones(2, 3),))
    del program.state_dict["linear.bias"]
    with pytest.raises(StateError, match=r"state 'linear\.bias': found no value"):
        save_pt2(program, tmp_path / "a.pt2", facts={})


def test_a_text_among_the_outputs_is_refused(tmp_path: Path) -> None:
    class Texts(torch.nn.Module):
        def forward(self, x: torch.Tensor, mode: str) -> Any:
            return x, mode

    with pytest.raises(FormatError, match="found the text 'mean' among the outputs"):
        save_pt2(export(Texts(), (torch.ones(2), "mean")), tmp_path / "a.pt2", facts={})


def test_a_pickle_that_torch_writes_all_the_same_is_found(
    hybrid: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intarsia.formats.pt2._unstorable", lambda value: "")
    changed = with_entry(hybrid, "calls", torch.ones(1).as_subclass(Wrapped))
    with pytest.raises(FormatError, match=r"found that torch pickled 'calls' in data/weights"):
        save_pt2(changed, tmp_path / "a.pt2", facts={})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_engine_is_not_saved(hybrid: ExportedProgram, tmp_path: Path) -> None:
    changed = copy.copy(hybrid)
    damaged = hybrid.constants["engine"].clone()
    damaged[-1] += 1
    changed._constants = {**hybrid.constants, "engine": damaged}
    with pytest.raises(EngineError, match=r"engine 'standin_0'.*payload"):
        save_pt2(changed, tmp_path / "a.pt2", facts={})
    assert list(tmp_path.iterdir()) == []


# Faults of the path.


def test_a_missing_folder_is_an_error(plain: ExportedProgram, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="found no folder there"):
        save_pt2(plain, tmp_path / "no" / "a.pt2", facts={})


def test_a_folder_is_an_error(plain: ExportedProgram, tmp_path: Path) -> None:
    (tmp_path / "a.pt2").mkdir()
    with pytest.raises(FormatError, match="found a folder, expected a file name"):
        save_pt2(plain, tmp_path / "a.pt2", facts={})


@pytest.mark.parametrize(("name", "reason"), [(f"{'a' * 300}.pt2", "File name too long"), ("a\0.pt2", "embedded null")])
def test_a_path_that_cannot_be_is_an_error(plain: ExportedProgram, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(FormatError, match=rf"cannot be written \(.*{reason}"):
        save_pt2(plain, tmp_path / name, facts={})
    with pytest.raises(FormatError, match=rf"cannot be read \(.*{reason}"):
        load_pt2(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_program_is_an_error(tmp_path: Path) -> None:
    model: Any = torch.nn.Linear(2, 2)
    with pytest.raises(FormatError, match="found an object of type 'Linear', expected a hybrid"):
        save_pt2(model, tmp_path / "a.pt2", facts={})


@pytest.mark.parametrize("name", ["a.pt", "a", "a.pt2.bak"])
def test_another_ending_is_an_error(plain: ExportedProgram, tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="found the ending"):
        save_pt2(plain, tmp_path / name, facts={})


def test_a_place_that_cannot_be_written_is_an_error(
    plain: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FormatError, match=r"found that it cannot be written \(Permission denied\)"):
        save_pt2(plain, tmp_path / "a.pt2", facts={})


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (NotImplementedError("No name\nfor a container"), "cannot store .NotImplementedError: No name"),
        (ValueError("no schema"), "ValueError: no schema"),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_failed_save_leaves_the_old_file_whole(
    plain: ExportedProgram, saved: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, shown: str | None
) -> None:
    before = saved.read_bytes()

    def fail(program: ExportedProgram, file: Any, **_: Any) -> None:
        file.write(b"half a file")
        raise error

    monkeypatch.setattr(torch.export, "save", fail)
    with pytest.raises(FormatError if shown else KeyboardInterrupt, match=shown):
        save_pt2(plain, saved, facts={})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_disk_that_fills_up_is_told_and_nothing_is_left(plain: ExportedProgram, tmp_path: Path) -> None:
    code = """
import resource, signal, sys, torch
from intarsia.errors import FormatError
from intarsia.formats.pt2 import save_pt2
program = torch.export.export(torch.nn.Linear(300, 300), (torch.ones(1, 300),))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_pt2(program, sys.argv[1], facts={})
except FormatError as error:
    print(error)
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "a.pt2")]
    result = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "a.pt2: found that it cannot be written (" in result.stdout
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_while_torch_writes_leaves_nothing(
    plain: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Any) -> memoryview:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.formats.replacement.memoryview", interrupt, raising=False)
    with pytest.raises(KeyboardInterrupt):
        save_pt2(plain, tmp_path / "a.pt2", facts={})
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_a_link(
    plain: ExportedProgram, saved: Path, tmp_path: Path
) -> None:
    saved.chmod(0o640)
    link = tmp_path / "link.pt2"
    link.symlink_to(saved)
    before = saved.stat().st_ino
    save_pt2(plain, link, facts={})
    assert link.is_symlink()
    assert saved.stat().st_ino != before
    assert saved.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_that_the_process_gives(plain: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(plain, tmp_path / "a.pt2", facts={})
    other = tmp_path / "other"
    other.touch()
    assert (tmp_path / "a.pt2").stat().st_mode == other.stat().st_mode


# Faults of what is loaded.


def onnx_start() -> bytes:
    return b"\x08\x0a\x12\x07pytorch" + bytes(64)


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.touch(), "found an empty file"),
    "folder": (lambda path: path.mkdir(), "found a folder"),
    "text": (lambda path: path.write_text("hello"), "found a file of an unknown kind"),
    "ONNX": (lambda path: path.write_bytes(onnx_start()), "found an ONNX model"),
    "safetensors": (
        lambda path: path.write_bytes((16).to_bytes(8, "little") + b'{"a": 1}' + bytes(8)),
        "found a safetensors file",
    ),
    "ExecuTorch": (lambda path: path.write_bytes(b"\x1c\0\0\0ET12" + bytes(64)), "found an ExecuTorch program"),
    "pickle": (lambda path: path.write_bytes(b"\x80\x02}q\0."), "found a pickle"),
    "torch.save": (lambda path: torch.save({"a": torch.ones(1)}, path), "found a checkpoint of torch.save"),
    "zip": (lambda path: zipfile.ZipFile(path, "w").writestr("a/b", "c"), "found a zip archive of another kind"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_another_kind_of_file_is_named(tmp_path: Path, case: str) -> None:
    make, message = FOREIGN[case]
    make(tmp_path / "a.pt2")
    with pytest.raises(FormatError, match=message):
        load_pt2(tmp_path / "a.pt2")


def test_a_torchscript_file_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:
        for name in ("m/data.pkl", "m/code/__torch__.py", "m/constants.pkl"):
            archive.writestr(name, "")
    with pytest.raises(FormatError, match="found a TorchScript program"):
        load_pt2(tmp_path / "a.pt2")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.pt2: found no file"):
        load_pt2(tmp_path / "none.pt2")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_an_error(saved: Path, kept: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(FormatError, match="found an archive that is cut short or damaged"):
        load_pt2(saved)


@pytest.mark.parametrize(
    "member", ["models/model.json", "data/weights/model_weights_config.json", "data/weights/weight_0"]
)
def test_a_missing_member_is_an_error(saved: Path, member: str, capfd: pytest.CaptureFixture[str]) -> None:
    rewrite(saved, lambda name, data: None if name.endswith(member) else data)
    with pytest.raises(FormatError):
        load_pt2(saved)
    assert capfd.readouterr().err == ""


def test_a_damaged_graph_is_an_error(saved: Path) -> None:
    rewrite(saved, lambda name, data: data[:-10] if name.endswith("models/model.json") else data)
    with pytest.raises(FormatError, match="contents that torch cannot read"):
        load_pt2(saved)


def test_a_container_whose_class_is_not_known_here_is_named(saved: Path) -> None:
    rename = (b"builtins.dict", b"elsewhere.Tokens")
    rewrite(saved, lambda name, data: data.replace(*rename) if name.endswith("models/model.json") else data)
    with pytest.raises(FormatError, match=r"in a elsewhere\.Tokens, which .* Import its module before loading"):
        load_pt2(saved)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"format_version": "one"}', b"\xff"])
def test_a_damaged_manifest_is_an_error(saved: Path, text: bytes) -> None:
    rewrite(saved, lambda name, data: text if name.endswith(MANIFEST_NAME) else data)
    with pytest.raises(FormatError, match="found a manifest that cannot be read"):
        load_pt2(saved)


def test_a_newer_format_is_refused_before_torch_reads_anything(saved: Path) -> None:
    def change(name: str, data: bytes) -> bytes | None:
        if name.endswith(MANIFEST_NAME):
            return json.dumps({"format_version": 2, "intarsia_version": "9.0", "unknown": []}).encode()
        return None if "models" in name else data

    rewrite(saved, change)
    with pytest.raises(
        UnsupportedVersion, match=r"found format version 2, written by intarsia 9\.0, expected at most 1"
    ):
        load_pt2(saved)


def test_an_engine_whose_bytes_were_changed_is_an_error(hybrid: ExportedProgram, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    save_pt2(hybrid, path, facts={})
    rewrite(path, lambda _, data: data.replace(PAYLOAD, PAYLOAD.upper()))
    with pytest.raises(EngineError, match=rf"engine 'standin_0' \(constant 'engine'\) in {path}: found a payload"):
        load_pt2(path)


def test_an_engine_that_was_exchanged_is_an_error(hybrid: ExportedProgram, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    save_pt2(hybrid, path, facts={})
    whole, other = (bytes(engine_tensor(payload).numpy()) for payload in (PAYLOAD, PAYLOAD.upper()))
    rewrite(path, lambda _, data: data.replace(whole, other))
    with pytest.raises(EngineError, match="found another engine, or none, in its place"):
        load_pt2(path)


def test_a_file_that_cannot_be_read_is_an_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FormatError, match=r"found that it cannot be read \(Permission denied\)"):
        load_pt2(saved)


@pytest.mark.parametrize("path", [None, io.BytesIO(b"PK"), 3])
def test_what_is_no_path_is_one_error(path: Any) -> None:
    with pytest.raises(FormatError, match=f"path: found an? {type(path).__name__}, expected the path of a file"):
        load_pt2(path)
    with pytest.raises(FormatError, match="expected the path of a file"):
        save_pt2(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), path, facts={"ledger": None, "coverage": None})
