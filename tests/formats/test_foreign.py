"""Files of `torch.export.save`: what intarsia reads is what torch reads, and nothing is unpickled."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

import intarsia
from builders.damage import flip_bit
from builders.files import load_pt2
from builders.hostile import change_json, pack, read_members
from intarsia.errors import FormatError

WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


class Tied(torch.nn.Module):
    """Ties, views, a strided buffer, an empty one, and constants of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("whole", torch.arange(12.0).view(3, 4))
        self.register_buffer("strided", self.whole.t())
        self.register_buffer("view", self.whole[1:])
        self.register_buffer("nothing", torch.empty(0, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.factor = torch.ones(4, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        y = self.second(self.first(x)) + (self.strided @ self.whole).sum() + self.view.sum() + self.nothing.sum()
        return y * self.factor, self.calls + 0


@pytest.fixture(scope="module")
def tied() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Tied(), (torch.ones(2, 4),))


@pytest.fixture
def path(tied: ExportedProgram, tmp_path: Path) -> Path:
    torch.export.save(tied, tmp_path / "tied.pt2")
    return tmp_path / "tied.pt2"


def test_the_program_is_the_one_that_torch_loads(path: Path) -> None:
    ours, theirs = load_pt2(path).program, torch.export.load(path)
    assert str(ours.graph) == str(theirs.graph)
    assert ours.graph_signature == theirs.graph_signature
    assert ours.range_constraints == theirs.range_constraints
    for mine, its in ((ours.state_dict, theirs.state_dict), (ours.constants, theirs.constants)):
        assert mine.keys() == its.keys()
        for name, tensor in its.items():
            assert type(mine[name]) is type(tensor)
            assert (mine[name].stride(), mine[name].dtype) == (tensor.stride(), tensor.dtype)
            assert torch.equal(mine[name], tensor)


def test_what_shares_memory_shares_it_again(path: Path) -> None:
    ours, theirs = load_pt2(path).program.state_dict, torch.export.load(path).state_dict

    def shared(state: Any) -> list[set[str]]:
        groups: dict[int, set[str]] = {}
        for name, tensor in state.items():
            if tensor.numel():
                groups.setdefault(tensor.untyped_storage().data_ptr(), set()).add(name)
        return sorted(groups.values(), key=min)

    assert shared(ours) == shared(theirs)


def test_it_answers_as_the_model_and_keeps_its_state(tied: ExportedProgram, path: Path) -> None:
    loaded, module, x = intarsia.load(path), tied.module(), torch.randn(2, 4)
    for _ in range(3):
        for mine, its in zip(loaded(x), module(x), strict=True):
            assert torch.equal(mine, its)


def test_the_file_may_be_written_over_afterwards(tied: ExportedProgram, path: Path) -> None:
    loaded, x = intarsia.load(path), torch.randn(2, 4)
    before = loaded(x)[0].clone()
    torch.export.save(export(torch.nn.ReLU(), (x,)), path)
    assert torch.equal(loaded(x)[0], before)


def table(name: str, **fields: Any) -> Any:
    return lambda values: values["config"][name].update(fields)


def meta(name: str, **fields: Any) -> Any:
    return lambda values: values["config"][name]["tensor_meta"].update(fields)


def ints(*values: int) -> list[dict[str, int]]:
    return [{"as_int": value} for value in values]


TABLES: dict[str, tuple[str, Any, str]] = {
    "a stride that leaves it": (WEIGHTS, meta("first.weight", strides=ints(4, 2)), "a tensor that ends at byte"),
    "an offset that leaves it": (WEIGHTS, meta("first.weight", storage_offset={"as_int": 1}), "ends at byte 68"),
    "a negative offset": (WEIGHTS, meta("first.weight", storage_offset={"as_int": -1}), "-1 for a number"),
    "a negative stride": (WEIGHTS, meta("first.weight", strides=ints(-4, 1)), "-4 for a number"),
    "a negative size": (WEIGHTS, meta("first.weight", sizes=ints(-4, 4)), "-4 for a number"),
    "sizes that overflow": (WEIGHTS, meta("first.weight", sizes=ints(2**62, 2**62)), "a tensor that ends at byte"),
    "a large tensor of one element": (
        WEIGHTS,
        meta("first.weight", sizes=ints(2**40, 4), strides=ints(0, 0)),
        "a tensor of 17592186044416 bytes that repeats the 64 of 'data/weights/weight_0'",
    ),
    "an empty tensor that overflows": (
        WEIGHTS, meta("first.weight", sizes=ints(0, 2**70), strides=ints(1, 1)), "cannot read"
    ),
    "many dimensions": (WEIGHTS, meta("first.weight", sizes=ints(*[1] * 99), strides=ints(*[1] * 99)), "99 sizes"),
    "a symbolic size": (WEIGHTS, meta("first.weight", sizes=[{"as_expr": {"expr_str": "1"}}] * 2), "KeyError"),
    "a true size": (WEIGHTS, meta("first.weight", sizes=[{"as_int": True}] * 2), "True for a number"),
    "an unknown dtype": (WEIGHTS, meta("first.weight", dtype=99), "KeyError"),
    "a sparse layout": (WEIGHTS, meta("first.weight", layout=1), "pickled, or not dense"),
    "a member elsewhere": (WEIGHTS, table("first.weight", path_name="../../models/model.json"), "in a member|ends at"),
    "a member that is missing": (WEIGHTS, table("first.weight", path_name="weight_99"), "a member of this name"),
    "a device of no name": (WEIGHTS, meta("first.weight", device={"type": "\x1b[2J", "index": None}), "cannot be read"),
    "a device that is a number": (WEIGHTS, meta("first.weight", device={"type": 5, "index": "x"}), "cannot be read"),
    "no tensor": (WEIGHTS, table("first.weight", tensor_meta=None), "cannot be read"),
    "a list": (CONSTANTS, lambda values: values.update(config=[]), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_lies_is_refused(path: Path, case: str) -> None:
    member, change, message = TABLES[case]
    change_json(path, member, change)
    with pytest.raises(FormatError, match=message) as raised:
        intarsia.load(path)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("member", ["byteorder", "archive_version", "models/model.json", WEIGHTS, CONSTANTS])
def test_a_member_that_is_missing_is_refused(path: Path, member: str) -> None:
    members = read_members(path)
    del members[member]
    with pytest.raises(FormatError):
        intarsia.load(pack(path, members))


def test_another_version_of_the_archive_is_refused(path: Path) -> None:
    pack(path, {**read_members(path), "archive_version": b"7"})
    with pytest.raises(FormatError, match="another version of torch's archives"):
        intarsia.load(path)


@pytest.mark.parametrize("member", ["data/weights/weight_0", "data/constants/tensor_0"])
def test_a_damaged_tensor_is_refused_though_there_are_no_hashes(path: Path, member: str) -> None:
    flip_bit(path, member)
    with pytest.raises(FormatError, match=f"found a damaged member '{member}'"):
        intarsia.load(path)


def test_a_byte_order_that_steers_the_terminal_is_shown_as_what_it_is(path: Path) -> None:
    pack(path, {**read_members(path), "byteorder": b"\x1b[2J"})
    with pytest.raises(FormatError, match=r"found tensors in the byte order '\\x1b\[2J', expected") as raised:
        intarsia.load(path)
    assert str(raised.value).isprintable()


class Point(torch.Tensor):
    """A tensor of a class of its own, which torch pickles."""


class Scaled(torch.nn.Module):
    """A model with one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((2,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_tensors_of_other_classes_need_to_be_allowed(tmp_path: Path) -> None:
    program = export(Scaled(), (torch.ones(1, 2),))
    program.state_dict["scale"] = program.state_dict["scale"].as_subclass(Point)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, tmp_path / "a.pt2")
    entry = json.loads(read_members(tmp_path / "a.pt2")[WEIGHTS])["config"]["scale"]
    assert entry["use_pickle"]
    with pytest.raises(FormatError, match="the tensor 'scale', which is a pickle") as raised:
        intarsia.load(tmp_path / "a.pt2")
    assert 'allow={"pickle"}' in raised.value.fix
    loaded = intarsia.load(tmp_path / "a.pt2", allow=["pickle"])
    assert loaded(torch.ones(1, 2)).tolist() == [[3.0, 3.0]]


def test_a_long_list_of_test_vectors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1, 2)
    intarsia.save(export(Scaled(), (x,)), tmp_path / "a.pt2", test_vectors=[((x,), {})])
    monkeypatch.setattr("intarsia.formats.vectors.TEXT_BYTES", 1)
    with pytest.raises(FormatError, match=r"test vectors that cannot be read \(ValueError: \d+ bytes of JSON\)"):
        _ = intarsia.load(tmp_path / "a.pt2").test_vectors
