"""PT2 files: what is in them, who can read them, and what becomes of faults on both ways."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

from builders.damage import flip_bit
from builders.files import load_pt2, save_pt2
from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.core.ledger import Entry, Ledger
from intarsia.errors import ConventionError, EngineError, FormatError, StateError, UnsupportedVersion
from intarsia.formats.archive.layout import MANIFEST_HASH_MEMBER, MANIFEST_MEMBER, MANIFEST_NAME
from intarsia.formats.archive.writer import Writer
from intarsia.formats.contents import read_contents
from intarsia.formats.description import describe
from intarsia.formats.loading import load_methods
from intarsia.formats.manifest import WriteEntry
from intarsia.formats.saving import save_methods

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


def replace_member(path: Path, member: str, change: Callable[[bytes], bytes]) -> None:
    """Change a member, and its size and hash in the manifest."""

    def update(text: bytes, data: bytes) -> bytes:
        fields = json.loads(text)
        fields["members"][member] = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return json.dumps(fields).encode()

    with zipfile.ZipFile(path) as archive:
        data = change(archive.read(f"archive/{member}"))
    rewrite(path, lambda name, old: data if name.endswith(member) else old)
    replace_manifest(path, lambda old: update(old, data))


def replace_manifest(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the manifest, and its hash."""
    with zipfile.ZipFile(path) as archive:
        text = change(archive.read(f"archive/{MANIFEST_MEMBER}"))
    sha256 = hashlib.sha256(text).hexdigest().encode()
    new = {f"archive/{MANIFEST_MEMBER}": text, f"archive/{MANIFEST_HASH_MEMBER}": sha256}
    rewrite(path, new.get)


def test_what_was_saved_is_loaded(plain: ExportedProgram, saved: Path) -> None:
    program, *_ = load_pt2(saved)
    x = torch.randn(2, 3)
    assert torch.equal(program.module()(x), plain.module()(x))
    assert program.state_dict.keys() == plain.state_dict.keys()


def test_ranges_and_persistence_survive(hybrid: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(hybrid, tmp_path / "a.pt2", facts={})
    program, *_ = load_pt2(tmp_path / "a.pt2")
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
    manifest = load_pt2(tmp_path / "a.pt2").manifest
    assert manifest is not None
    contents = read_contents(tmp_path / "a.pt2")
    assert contents is not None
    assert contents.methods == {"forward": ("model", manifest)}
    assert (manifest.format_version, manifest.torch_version) == (1, torch.__version__)
    (engine,) = manifest.engines
    assert (engine.constant, engine.name, engine.backend) == ("engine", "standin_0", "standin")
    assert (engine.backend_version, engine.target, engine.signature) == ("1.0", "anything", DOUBLE)
    assert engine.size_bytes == engine_tensor().nbytes
    assert manifest.writes == (WriteEntry("buffer", "calls", declared=False),)
    assert manifest.ledger == ledger
    assert manifest.coverage == {"placements": []}


def test_the_manifest_tells_declared_writes(hybrid: ExportedProgram) -> None:
    manifest = describe(hybrid.run_decompositions({}), (), {})
    assert manifest.writes == (WriteEntry("buffer", "calls", declared=True),)
    assert manifest.ledger is None


def test_a_file_of_torch_itself_has_no_manifest(plain: ExportedProgram, tmp_path: Path) -> None:
    torch.export.save(plain, tmp_path / "a.pt2")
    loaded = load_pt2(tmp_path / "a.pt2")
    assert loaded.manifest is None
    assert torch.equal(loaded.program.module()(torch.ones(2, 3)), plain.module()(torch.ones(2, 3)))


def test_a_file_may_have_any_name_when_it_is_loaded(saved: Path) -> None:
    renamed = saved.rename(saved.with_name("program"))
    assert load_pt2(renamed)[1] is not None


# What becomes of tensors.


class Tied(torch.nn.Module):
    """A parameter under two names, a view of it, a buffer that a constant is a view of, and equal caches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3))
        self.again = self.weight
        self.register_buffer("row", self.weight.detach()[1])
        self.register_buffer("table", torch.arange(100.0)[10:16])
        self.register_buffer("part", self.table[2:5], persistent=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys.add_(1)
        self.values.add_(x[0])
        return x @ self.weight.t() @ self.again + self.row + self.part + self.table[:3] + self.keys * self.values


@pytest.fixture(scope="module")
def tied() -> ExportedProgram:
    return export(Tied(), (torch.ones(2, 3),))


def memory(program: ExportedProgram, name: str) -> int:
    return {**program.state_dict, **program.constants}[name].untyped_storage().data_ptr()


def test_ties_and_views_survive_and_nothing_else_is_tied(tied: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(tied, tmp_path / "a.pt2", facts={})
    loaded = load_pt2(tmp_path / "a.pt2").program
    assert loaded.state_dict["weight"] is loaded.state_dict["again"]
    assert memory(loaded, "row") == memory(loaded, "weight")
    assert memory(loaded, "part") == memory(loaded, "table")
    assert len({memory(loaded, name) for name in ("weight", "table", "keys", "values")}) == 4
    loaded.constants["part"][0] = 50
    assert loaded.state_dict["table"].tolist() == [10, 11, 50, 13, 14, 15]


def test_ties_survive_a_second_save(tied: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(tied, tmp_path / "a.pt2", facts={})
    loaded = load_pt2(tmp_path / "a.pt2").program
    save_pt2(loaded, tmp_path / "b.pt2", facts={})
    with zipfile.ZipFile(tmp_path / "a.pt2") as first, zipfile.ZipFile(tmp_path / "b.pt2") as second:
        data = [name for name in first.namelist() if "weight" in name or "constants" in name]
        assert [first.read(name) for name in data] == [second.read(name) for name in data]


def test_torch_computes_from_the_file_what_intarsia_computes(tied: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(tied, tmp_path / "a.pt2", facts={})
    ours, theirs = load_pt2(tmp_path / "a.pt2").program.module(), torch.export.load(tmp_path / "a.pt2").module()
    model = tied.module()
    for _ in range(3):
        x = torch.randn(2, 3)
        expected = model(x)
        assert torch.equal(ours(x), expected)
        assert torch.equal(theirs(x), expected)


def test_a_view_is_stored_without_the_rest_of_its_memory(tmp_path: Path) -> None:
    model = Plain()
    model.linear.weight.data = torch.randn(1_000_000)[500_000:500_009].reshape(3, 3)
    save_pt2(export(model, (torch.ones(2, 3),)), tmp_path / "a.pt2", facts={})
    assert (tmp_path / "a.pt2").stat().st_size < 50_000


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float8_e4m3fn,
                                   torch.complex64])  # fmt: skip
def test_every_dtype_is_stored_to_the_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.randint(0, 2, (5, 3)).to(dtype).t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.held.to(torch.float32).sum()

    program = export(Holding(), (torch.ones(2),))
    save_pt2(program, tmp_path / "a.pt2", facts={})
    for loaded in (load_pt2(tmp_path / "a.pt2").program, torch.export.load(tmp_path / "a.pt2")):
        held = loaded.state_dict["held"]
        assert (held.dtype, held.shape, held.stride()) == (dtype, (3, 5), (1, 3))
        assert torch.equal(held.t().view(torch.uint8), program.state_dict["held"].t().view(torch.uint8))


def test_written_state_never_reaches_the_file(hybrid: ExportedProgram, tmp_path: Path) -> None:
    save_pt2(hybrid, tmp_path / "a.pt2", facts={})
    before = (tmp_path / "a.pt2").read_bytes()
    loaded = load_pt2(tmp_path / "a.pt2").program
    loaded.state_dict["calls"].add_(1)
    with torch.no_grad():
        loaded.state_dict["linear.weight"].zero_()
    assert (tmp_path / "a.pt2").read_bytes() == before
    assert load_pt2(tmp_path / "a.pt2").program.state_dict["calls"] == 0


def test_a_program_may_be_saved_over_the_file_that_it_lies_in(plain: ExportedProgram, saved: Path) -> None:
    before = saved.read_bytes()
    program = load_pt2(saved).program
    save_pt2(program, saved, facts={})
    assert saved.read_bytes() == before
    assert torch.equal(program.state_dict["linear.weight"], plain.state_dict["linear.weight"])


SAVING = """
import random, sys

random.seed(sys.argv[1])
uneven = [[object()] * random.randrange(99) for _ in range(random.randrange(9999))]  # other addresses in each process

import torch
from intarsia.formats.loading import load_methods
from intarsia.formats.saving import save_methods

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Dropout(0.5))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.shift = torch.arange(4.0)

    def forward(self, x, extra, *, flag=None):
        self.calls.add_(1)
        y = self.net(x) * self.scale + self.shift
        y = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y * 2, (y,))
        return {"y": y, "sum": y.sum() + extra["b"] - extra["a"], "rows": torch.sym_max(x.shape[0], 2)}

torch.manual_seed(0)
batch = torch.export.Dim("batch", min=1, max=8)
extra = {"b": torch.ones(2), "a": torch.ones(1)}
captured = torch.export.export(
    Model().eval(), (torch.ones(2, 3), extra), {"flag": True},
    dynamic_shapes={"x": {0: batch}, "extra": {"b": None, "a": None}, "flag": None},
)
methods = {"one": captured, "two": captured.run_decompositions()}
facts = {"one": {}, "two": {"ledger": [], "coverage": {"placements": []}}}
save_methods(methods, "a.pt2", facts=facts)
save_methods(methods, "b.pt2", facts=facts)
save_methods({name: method.program for name, method in load_methods("a.pt2").items()}, "c.pt2", facts=facts)
if sys.argv[2:]:
    import intarsia
    intarsia.save(intarsia.compile(methods["two"]), "engines.pt2", payloads=False)
"""


def test_the_same_program_gives_the_same_bytes_in_every_process_and_checkout_and_when_it_is_saved_again(
    tmp_path: Path,
) -> None:
    contents, with_engines = set(), set()
    engines = ["engines"] if find_spec("openvino") else []
    for seed in ("1", "2"):
        folder = tmp_path / f"checkout_{seed}"
        folder.mkdir()
        (folder / "saving_here.py").write_text(SAVING)
        command = [sys.executable, "-W", "ignore", str(folder / "saving_here.py"), seed, *engines]
        subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONHASHSEED": seed})
        contents |= {(folder / name).read_bytes() for name in ("a.pt2", "b.pt2", "c.pt2")}
        with_engines |= {path.read_bytes() for path in folder.glob("engines.pt2")}
    assert len(with_engines) == len(engines)
    (content,) = contents
    assert str(tmp_path).encode() not in content
    assert b"saving_here" not in content
    assert rb"\"pass_name\": " in content  # the history of the nodes is kept


# Several methods.


def test_methods_share_what_their_model_shares(tmp_path: Path) -> None:
    model = Tied()
    programs = {name: export(model, (torch.ones(rows, 3),)) for name, rows in {"prefill": 4, "decode": 1}.items()}
    save_methods(programs, tmp_path / "two.pt2", facts={"prefill": {}, "decode": {}})
    save_pt2(programs["decode"], tmp_path / "one.pt2", facts={})
    loaded = load_methods(tmp_path / "two.pt2")
    assert list(loaded) == ["prefill", "decode"]
    for name, rows in {"prefill": 4, "decode": 1}.items():
        x = torch.randn(rows, 3)
        assert torch.equal(loaded[name].program.module()(x), programs[name].module()(x))
    first, second = (loaded[name].program for name in programs)
    assert first.state_dict["weight"] is second.state_dict["weight"]
    assert first.state_dict["keys"] is second.state_dict["keys"]
    with zipfile.ZipFile(tmp_path / "one.pt2") as one, zipfile.ZipFile(tmp_path / "two.pt2") as two:
        weights = [[name for name in archive.namelist() if "_config" not in name] for archive in (one, two)]
        assert sum("/weight_" in name for name in weights[0]) == sum("/weight_" in name for name in weights[1])


def test_equal_engines_of_two_methods_are_stored_once(tmp_path: Path) -> None:
    programs = {name: export(Hybrid(), (torch.ones(2, 3),)) for name in ("first", "second")}
    save_methods(programs, tmp_path / "a.pt2", facts={"first": {}, "second": {}})
    assert (tmp_path / "a.pt2").read_bytes().count(PAYLOAD) == 1
    assert [
        len(method.manifest.engines) for method in load_methods(tmp_path / "a.pt2").values() if method.manifest
    ] == [
        1,
        1,
    ]


def test_one_method_is_called_model_for_torch_whatever_its_name(plain: ExportedProgram, tmp_path: Path) -> None:
    save_methods({"encode": plain}, tmp_path / "a.pt2", facts={"encode": {}})
    assert list(load_methods(tmp_path / "a.pt2")) == ["encode"]
    assert torch.equal(
        torch.export.load(tmp_path / "a.pt2").module()(torch.ones(2, 3)), plain.module()(torch.ones(2, 3))
    )


@pytest.mark.parametrize("names", [["../a"], ["reset"], []])
def test_a_method_name_that_is_no_name_is_an_error(plain: ExportedProgram, tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ConventionError, match=r"found (what is no name|a name that is taken|none)"):
        save_methods(dict.fromkeys(names, plain), tmp_path / "a.pt2", facts={name: {} for name in names})


# What a save and a load cost.

BIG = """
import resource, sys, torch
from intarsia.formats.loading import load_methods
from intarsia.formats.saving import save_methods
def resident():
    return 4096 * int(open("/proc/self/statm").read().split()[1])
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = 64 << 10
program = torch.export.export(torch.nn.Embedding(rows, 512), (torch.tensor([5]),))
for name in "ab":
    before = peak()
    save_methods({"forward": program}, sys.argv[1], facts={"forward": {}})
    saving = peak() - before
expected = program.module()(torch.tensor([5]))
del program
load_methods(sys.argv[1])
before = resident()
loaded = load_methods(sys.argv[1])["forward"].program
with torch.no_grad():
    found = torch.nn.functional.embedding(torch.tensor([5]), loaded.state_dict["weight"])
assert torch.equal(found, expected)
print(saving, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's memory from /proc")
def test_neither_save_nor_load_holds_a_large_tensor_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BIG, str(tmp_path / "a.pt2")]
    result = subprocess.run(command, capture_output=True, check=True, text=True)
    saving, loading = map(int, result.stdout.split())
    size = (tmp_path / "a.pt2").stat().st_size
    assert size > 128 << 20
    assert saving < size // 4
    assert loading < size // 4


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
    "dtype": (
        lambda: torch.empty(3, dtype=torch.float4_e2m1fn_x2),
        r"found a tensor of torch\.float4_e2m1fn_x2",
    ),
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


@pytest.mark.parametrize(
    ("name", "found"),
    [("a.pt", "the ending '.pt'"), ("a", "no ending"), (".pt2", "no ending"), ("a.pt2.bak", "the ending")],
)
def test_another_ending_is_an_error(plain: ExportedProgram, tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(FormatError, match=f"found {found}"):
        save_pt2(plain, tmp_path / name, facts={})


@pytest.mark.parametrize("result", [(), {"a": [], "b": ()}], ids=["nothing", "empty structures"])
def test_a_program_without_outputs_is_an_error(tmp_path: Path, result: Any) -> None:
    class Empty(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return result

    program = export(Empty(), (torch.ones(2),))
    with pytest.raises(FormatError, match="returns and writes nothing, expected at least one output"):
        save_pt2(program, tmp_path / "a.pt2", facts={})


@pytest.mark.parametrize("url", ["https://example.com/a.pt2", "s3://bucket/a.pt2", "file:///a.pt2"])
def test_a_url_is_no_path(plain: ExportedProgram, url: str) -> None:
    for path in (url, Path(url)):
        for use in (load_pt2, read_contents, lambda path: save_pt2(plain, path, facts={})):
            with pytest.raises(FormatError, match=r"a\.pt2: found a URL, expected the path of a file"):
                use(path)


def test_a_folder_may_be_named_like_the_beginning_of_a_url(
    plain: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    save_pt2(plain, "s3:/a.pt2", facts={})
    assert load_pt2("s3:/a.pt2").program is not None


def test_a_place_that_cannot_be_written_is_an_error(
    plain: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FormatError, match=r"found that it cannot be written \(Permission denied\)"):
        save_pt2(plain, tmp_path / "a.pt2", facts={})


@pytest.mark.parametrize(
    ("error", "shown"),
    [(OSError(28, "No space left on device"), "No space left on device"), (KeyboardInterrupt(), None)],
)
def test_a_failed_save_leaves_the_old_file_whole(
    plain: ExportedProgram, saved: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, shown: str | None
) -> None:
    before = saved.read_bytes()
    stream = Writer.stream

    def fail(writer: Writer, name: str, size_bytes: int, chunks: Any) -> None:
        if name.endswith("weight_1"):
            raise error
        stream(writer, name, size_bytes, chunks)

    monkeypatch.setattr(Writer, "stream", fail)
    with pytest.raises(FormatError if shown else KeyboardInterrupt, match=shown):
        save_pt2(plain, saved, facts={})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_program_that_torch_cannot_store_is_an_error(
    plain: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(program: ExportedProgram, lengths: Mapping[str, int]) -> bytes:
        raise NotImplementedError("No name\nfor a container")

    monkeypatch.setattr("intarsia.formats.saving.serialize_graph", refuse)
    with pytest.raises(FormatError, match=r"cannot store .NotImplementedError: No name\)"):
        save_pt2(plain, tmp_path / "a.pt2", facts={})
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_told_and_nothing_is_left(plain: ExportedProgram, tmp_path: Path) -> None:
    code = """
import resource, signal, sys, torch
from intarsia.errors import FormatError
from intarsia.formats.saving import save_methods
program = torch.export.export(torch.nn.Linear(300, 300), (torch.ones(1, 300),))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_methods({"forward": program}, sys.argv[1], facts={"forward": {}})
except FormatError as error:
    print(error)
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "a.pt2")]
    result = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "a.pt2: found that it cannot be written (" in result.stdout
    assert result.stderr == ""
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


@pytest.mark.parametrize("member", ["models/model.json", "data/weights/model_weights_config.json"])
def test_a_member_that_was_changed_is_an_error(saved: Path, member: str) -> None:
    rewrite(saved, lambda name, data: data.replace(b"1", b"2") if name.endswith(member) else data)
    with pytest.raises(FormatError, match=f"found a damaged member '{member}'"):
        load_pt2(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name, data: None if name.endswith("weight_0") else data, r"nothing in member 'data/weights/weight_0'"),
        (lambda name, data: data[1:] if name.endswith("weight_0") else data, r"35 bytes in member .* says 36"),
    ],
)
def test_members_that_are_not_those_of_the_manifest_are_an_error(saved: Path, change: Any, message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(FormatError, match=message):
        load_pt2(saved)


def test_an_added_member_is_an_error(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("archive/data/weights/weight_9", b"new")
    with pytest.raises(FormatError, match=r"3 bytes in member 'data/weights/weight_9' .* says no such member"):
        load_pt2(saved)


def test_the_directory_is_judged_before_the_manifest_is_read(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("archive/../outside", b"new")
    rewrite(saved, lambda name, data: b"{" if name.endswith(MANIFEST_NAME) else data)
    for read in (load_pt2, read_contents):
        with pytest.raises(FormatError, match=r"lists the name 'archive/../outside'"):
            read(saved)


def test_a_pickle_in_a_file_of_ours_is_not_read(saved: Path) -> None:
    table = "data/weights/model_weights_config.json"
    replace_member(saved, table, lambda data: data.replace(b'"use_pickle": false', b'"use_pickle": true'))
    with pytest.raises(FormatError, match=rf"member '{table}': found a table of tensors .* pickled"):
        load_pt2(saved)


def test_another_byte_order_is_an_error(saved: Path) -> None:
    replace_member(saved, "byteorder", lambda data: b"big")
    with pytest.raises(FormatError, match="found tensors in the byte order 'big', expected little"):
        load_pt2(saved)


def test_a_file_that_was_packed_anew_loads(plain: ExportedProgram, saved: Path) -> None:
    rewrite(saved, lambda name, data: data)
    assert torch.equal(load_pt2(saved).program.state_dict["linear.bias"], plain.state_dict["linear.bias"])


def test_a_damaged_graph_is_an_error(saved: Path) -> None:
    replace_member(saved, "models/model.json", lambda data: data[:-10])
    with pytest.raises(FormatError, match="found no JSON"):
        load_pt2(saved)


def test_a_container_whose_class_is_not_known_here_is_named(saved: Path) -> None:
    replace_member(saved, "models/model.json", lambda data: data.replace(b"builtins.dict", b"elsewhere.Tokens"))
    with pytest.raises(FormatError, match=r"in a elsewhere\.Tokens, which .* Import its module before loading"):
        load_pt2(saved)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"format_version": "one"}', b"\xff"])
def test_a_damaged_manifest_is_an_error(saved: Path, text: bytes) -> None:
    replace_manifest(saved, lambda _: text)
    with pytest.raises(FormatError, match="found a manifest that cannot be read"):
        load_pt2(saved)


def test_a_manifest_that_was_changed_is_an_error(saved: Path) -> None:
    rewrite(saved, lambda name, data: data.replace(b"2.13", b"2.31") if name.endswith(MANIFEST_NAME) else data)
    for read in (load_pt2, read_contents):
        with pytest.raises(
            FormatError, match=r"a manifest that does not match member 'extra/intarsia_manifest\.sha256'"
        ):
            read(saved)


def test_a_hash_without_its_manifest_is_an_error(saved: Path) -> None:
    rewrite(saved, lambda name, data: None if name.endswith("manifest.json") else data)
    for read in (load_pt2, read_contents):
        with pytest.raises(FormatError, match=r"found no member 'extra/intarsia_manifest\.json'"):
            read(saved)


def test_a_manifest_without_its_hash_is_an_error(saved: Path) -> None:
    rewrite(saved, lambda name, data: None if name.endswith(".sha256") else data)
    with pytest.raises(FormatError, match="a manifest that does not match"):
        load_pt2(saved)


def test_a_flipped_bit_in_a_weight_is_found_when_the_weight_is_first_needed(saved: Path) -> None:
    flip_bit(saved, "data/weights/weight_0")
    check = load_pt2(saved).check
    assert check is not None
    for _ in range(2):
        with pytest.raises(FormatError, match=rf"{saved}: found a damaged member 'data/weights/weight_0'"):
            check()


def test_verify_finds_a_flipped_bit_at_once(saved: Path) -> None:
    flip_bit(saved, "data/weights/weight_1")
    with pytest.raises(FormatError, match="a damaged member 'data/weights/weight_1'"):
        load_methods(saved, verify=True)


def test_only_tensors_of_the_method_are_compared(plain: ExportedProgram, tmp_path: Path) -> None:
    path = tmp_path / "two.pt2"
    save_methods({"one": plain, "two": export(Plain(), (torch.ones(2, 3),))}, path, facts={"one": {}, "two": {}})
    flip_bit(path, "data/weights/weight_2")
    methods = load_methods(path)
    check_one, check_two = methods["one"].check, methods["two"].check
    assert check_one is not None
    assert check_two is not None
    check_one()
    with pytest.raises(FormatError, match="weight_2"):
        check_two()


def test_what_another_tool_wrote_cannot_be_verified(plain: ExportedProgram, tmp_path: Path) -> None:
    torch.export.save(plain, tmp_path / "a.pt2")
    with pytest.raises(FormatError, match="found a file of another tool, without hashes"):
        load_methods(tmp_path / "a.pt2", verify=True)


def test_a_newer_format_is_refused_before_torch_reads_anything(saved: Path) -> None:
    rewrite(saved, lambda name, data: None if "models" in name else data)
    newer = {"format_version": 2, "intarsia_version": "9.0", "unknown": []}
    replace_manifest(saved, lambda _: json.dumps(newer).encode())
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


def test_progress_counts_the_bytes_of_tensors(hybrid: ExportedProgram, tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    save_methods(
        {"forward": hybrid}, tmp_path / "a.pt2", facts={"forward": {}}, progress=lambda *step: told.append(step)
    )
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        folders = ("data/weights/weight_", "data/constants/tensor_")
        sizes = [info.file_size for info in archive.infolist() if any(part in info.filename for part in folders)]
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[0] == (0, sum(sizes), "data/weights/weight_0")
    assert told[-1] == (sum(sizes), sum(sizes), "")
