"""Test vectors: recorded as eager torch answers, made again by `verify`, and never read by a load."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.export import export

import intarsia
from builders.damage import flip_bit
from builders.files import load_pt2
from builders.hostile import change_json, pack, read_members
from builders.mutations import mutate_bytes, mutate_json
from intarsia.core.vectors import Vectors
from intarsia.errors import ArgumentError, ConventionError, FormatError
from intarsia.formats.saving import save_methods
from intarsia.formats.vectors import read_vectors
from intarsia.verification import TOLERANCES, Verification

CALLS = "data/test_vectors/calls.json"
TENSORS = "data/test_vectors/tensors.safetensors"


class Sum(nn.Module):
    """Adds up what it is given, and moves it by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor, *, y: Tensor) -> dict[str, Tensor]:
        self.total.add_(x.sum(0) + y)
        return {"moved": x + self.weight, "total": self.total + 0}

    def read(self, z: Tensor) -> Tensor:
        return z + self.total


X, OTHER, Y = torch.ones(3, 2), torch.full((3, 2), 2.0), torch.tensor([0.5, 0.25])
GIVEN: Any = [((X,), {"y": Y}), ((OTHER,), {"y": Y})]


@pytest.fixture
def model() -> Sum:
    return Sum()


@pytest.fixture
def saved(model: Sum, tmp_path: Path) -> Path:
    path = tmp_path / "a.pt2"
    intarsia.save(intarsia.compile(model, (X,), {"y": Y}), path, test_vectors=GIVEN)
    return path


def replay(path: Path) -> Any:
    result = intarsia.verify(path)
    assert isinstance(result, Verification)
    return result.replay


def test_what_is_recorded_is_what_the_model_answers_in_order(saved: Path, model: Sum) -> None:
    members = read_members(saved)
    calls, tensors = json.loads(members[CALLS])["calls"], safetensors.torch.load(members[TENSORS])
    assert [call["method"] for call in calls] == ["forward", "forward"]
    for call, (args, kwargs) in zip(calls, GIVEN, strict=True):
        inputs, outputs = ([tensors[name] for _, name in call[part]] for part in ("inputs", "outputs"))
        assert all(map(torch.equal, inputs, [*args, *kwargs.values()]))
        torch.testing.assert_close(outputs, list(model(*args, **kwargs).values()))


def test_recording_leaves_the_state_that_is_saved_as_it_is(saved: Path) -> None:
    assert torch.equal(intarsia.load(saved)(X, y=Y)["total"], X.sum(0) + Y)


def test_the_tolerances_are_those_of_verify(saved: Path) -> None:
    vectors = intarsia.load(saved).test_vectors
    assert vectors is not None
    assert vectors.tolerances == TOLERANCES


def test_plain_torch_reads_the_file(saved: Path) -> None:
    assert torch.equal(torch.export.load(saved).module()(X, y=Y)["total"], X.sum(0) + Y)


def test_verify_makes_the_calls_again(saved: Path) -> None:
    result = intarsia.verify(saved)
    assert result.ok
    assert isinstance(result, Verification)
    assert result.replay is not None
    assert result.replay.calls == 2
    assert [(leaf.name, leaf.absolute_error) for leaf in result.replay.leaves] == [
        ("output['moved']", 0.0),
        ("output['total']", 0.0),
    ]
    assert "against the test vectors" in str(result)
    assert result.to_json()["replay"]["leaves"][0]["ok"] is True


def recorded(model: nn.Module, args: tuple[Any, ...], calls: Any, path: Path) -> Vectors:
    intarsia.save(export(model, args), path, test_vectors=calls)
    vectors = intarsia.load(path).test_vectors
    assert vectors is not None
    return vectors


def test_another_answer_fails(model: Sum, tmp_path: Path) -> None:
    intarsia.save(export(model, (X,), {"y": Y}), tmp_path / "a.pt2", test_vectors=GIVEN)
    vectors = intarsia.load(tmp_path / "a.pt2").test_vectors
    with torch.no_grad():
        model.weight[1] += 0.5
    path = tmp_path / "b.pt2"
    save_methods({"forward": export(model, (X,), {"y": Y})}, path, facts={"forward": {}}, vectors=vectors)
    result = intarsia.verify(path)
    assert isinstance(result, Verification)
    assert all(check.ok for check in result.parity)
    assert not result.ok
    assert result.replay is not None
    moved, total = result.replay.leaves
    assert (moved.absolute_error, moved.ok, total.ok) == (0.5, False, True)


def test_the_tolerances_of_the_file_decide(model: Sum, tmp_path: Path) -> None:
    intarsia.save(export(model, (X,), {"y": Y}), tmp_path / "a.pt2", test_vectors=GIVEN)
    vectors = intarsia.load(tmp_path / "a.pt2").test_vectors
    assert vectors is not None
    wide = {"relative": 0.0, "absolute": 0.75}
    with torch.no_grad():
        model.weight[1] += 0.5
    save_methods({"forward": export(model, (X,), {"y": Y})}, tmp_path / "b.pt2", facts={"forward": {}}, vectors=vectors)
    change_json(tmp_path / "b.pt2", CALLS, lambda values: values["tolerances"].update(f32=wide))
    assert replay(tmp_path / "b.pt2").ok


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(torch.bfloat16).float() + 1, x + 1


def test_what_was_coarse_on_the_way_may_differ_as_much(tmp_path: Path) -> None:
    path, x = tmp_path / "a.pt2", torch.tensor([1.0, 1.25])
    vectors = recorded(Mixed(), (x,), [((x,), {})], path)
    (vector,) = vectors.calls
    away = replace(vector, outputs=tuple(value + 2**-7 for value in vector.outputs))
    moved = replace(vectors, calls=(away,))
    save_methods({"forward": export(Mixed(), (x,))}, path, facts={"forward": {}}, vectors=moved)
    coarse, fine = replay(path).leaves
    assert (coarse.ok, coarse.tolerance) == (True, TOLERANCES[torch.bfloat16])
    assert (fine.ok, fine.tolerance) == (False, TOLERANCES[torch.float32])


class Kinds(nn.Module):
    def forward(self, x: Tensor, bias: float) -> Any:
        kinds = [torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128, torch.int8]
        answers = {str(kind): x.to(kind) for kind in kinds}
        return {
            **answers,
            "infinite": 1 / (x - 1),
            "nan": x * math.nan,
            "mask": x > 1,
            "empty": x[:0],
            "none": None,
            "number": 3,
            "float": 0.1,
            "count": (x > 1).sum(),
            "rotated": x.to(torch.complex128) * 1j,
            "scalar": x.sum() + bias,
        }


def test_every_kind_of_answer_is_kept_to_the_bit(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 2.0], [-0.0, 3.0]]).T
    vectors = recorded(Kinds(), (x, 0.5), [((x, 0.5), {})], tmp_path / "a.pt2")
    (vector,) = vectors.calls
    expected = list(Kinds()(x, 0.5).values())
    assert vector.inputs[1] == 0.5
    for value, other in zip([*vector.inputs, *vector.outputs], [x, 0.5, *expected], strict=True):
        assert type(value) is type(other)
        if isinstance(value, Tensor):
            assert (value.dtype, value.shape) == (other.dtype, other.shape)
            torch.testing.assert_close(value, other.contiguous(), rtol=0, atol=0, equal_nan=True)
        else:
            assert value == other
    assert replay(tmp_path / "a.pt2").ok


class Writer(nn.Module):
    def forward(self, cache: Tensor, x: Tensor) -> Tensor:
        cache.add_(x)
        return cache * 2


def test_a_written_input_is_an_answer_too(tmp_path: Path) -> None:
    cache = torch.zeros(2)
    path = tmp_path / "a.pt2"
    vectors = recorded(Writer(), (cache, torch.ones(2)), [((cache, torch.ones(2)), {})], path)
    assert torch.equal(cache, torch.zeros(2))
    assert torch.equal(vectors.calls[0].written[0], torch.ones(2))
    assert [leaf.name for leaf in replay(path).leaves] == ["output", "input 'cache'"]
    changed = replace(vectors.calls[0], written={0: torch.full((2,), 3.0)})
    program = export(Writer(), (cache, torch.ones(2)))
    save_methods({"forward": program}, path, facts={"forward": {}}, vectors=replace(vectors, calls=(changed,)))
    assert [leaf.ok for leaf in replay(path).leaves] == [True, False]


@pytest.fixture
def methods(model: Sum) -> dict[str, Any]:
    return {"add": export(model, (X,), {"y": Y}), "read": export(Reader(model), (Y,))}


class Reader(nn.Module):
    def __init__(self, model: Sum) -> None:
        super().__init__()
        self.total = model.total

    def forward(self, z: Tensor) -> Tensor:
        return z + self.total


ACROSS: Any = [("add", (X,), {"y": Y}), ("read", (Y,), {}), ("add", (X,), {"y": Y}), ("read", (Y,), {})]


def test_calls_of_several_methods_are_made_in_order_on_one_state(methods: dict[str, Any], tmp_path: Path) -> None:
    intarsia.save(methods, tmp_path / "a.pt2", test_vectors=ACROSS)
    loaded = intarsia.load(tmp_path / "a.pt2")
    vectors = loaded.test_vectors
    assert vectors is not None
    assert [vector.method for vector in vectors.calls] == ["add", "read", "add", "read"]
    reads = [vector.outputs[0] for vector in vectors.calls if vector.method == "read"]
    assert torch.equal(reads[0], X.sum(0) + 2 * Y)
    assert torch.equal(reads[1], 2 * X.sum(0) + 3 * Y)
    result = intarsia.verify(tmp_path / "a.pt2")
    assert result.ok
    assert result.replay is not None
    assert [leaf.name for leaf in result.replay.leaves] == [
        "add: output['moved']",
        "add: output['total']",
        "read: output",
    ]
    assert "test vectors: ok, 4 calls" in str(result)
    intarsia.save(loaded, tmp_path / "b.pt2")
    assert (tmp_path / "b.pt2").read_bytes() == (tmp_path / "a.pt2").read_bytes()


def test_a_loaded_program_keeps_its_vectors(saved: Path, tmp_path: Path) -> None:
    program = intarsia.load(saved)
    program(X, y=Y)
    again = tmp_path / "b.pt2"
    intarsia.save(program.session(), again)
    assert again.read_bytes() == saved.read_bytes()
    intarsia.save(program, saved)  # over the file that they are read from
    assert again.read_bytes() == saved.read_bytes()
    intarsia.save(program, again, test_vectors=GIVEN[:1])
    assert len(intarsia.load(again).test_vectors.calls) == 1
    intarsia.save(program, again, test_vectors=[])
    assert intarsia.load(again).test_vectors is None
    assert not read_members(again).keys() & {CALLS, TENSORS}


def test_what_would_lose_the_vectors_of_a_file_is_refused(saved: Path, methods: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "b.pt2"
    with pytest.raises(ConventionError, match="method 'one': found a part of a file with test vectors"):
        intarsia.save({"one": intarsia.load(saved)}, path)
    intarsia.save(methods, saved, test_vectors=ACROSS)
    loaded = intarsia.load(saved)
    for part, name in ((loaded.read, "program"), ({name: getattr(loaded, name) for name in loaded}, "method 'add'")):
        with pytest.raises(ConventionError, match=f"{name}: found a part of a file with test vectors"):
            intarsia.save(part, path)
        assert not path.exists()
        intarsia.save(part, path, test_vectors=[])
        assert intarsia.load(path).test_vectors is None
        path.unlink()


def test_a_load_does_not_read_them(saved: Path) -> None:
    flip_bit(saved, TENSORS)
    program = intarsia.load(saved)
    assert torch.equal(program(X, y=Y)["total"], X.sum(0) + Y)
    with pytest.raises(FormatError, match=TENSORS):
        _ = program.test_vectors
    with pytest.raises(FormatError, match=TENSORS):
        intarsia.verify(saved)
    with pytest.raises(FormatError, match=TENSORS):
        intarsia.load(saved, verify=True)


def test_verify_compares_the_weights_with_their_hashes(saved: Path) -> None:
    flip_bit(saved, "data/weights/weight_0")
    with pytest.raises(FormatError, match="weight_0"):
        intarsia.verify(saved)


class Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids - 100)


def test_the_vectors_tell_what_integers_may_be_drawn(tmp_path: Path) -> None:
    ids = torch.tensor([100, 107])
    intarsia.save(export(Ids(), (ids,)), tmp_path / "a.pt2", test_vectors=[((ids,), {})])
    result = intarsia.verify(tmp_path / "a.pt2")
    assert result.ok
    assert isinstance(result, Verification)
    assert "from 100 to 107" in result.findings[0]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([((X,), {})], ArgumentError, "test vector 1, input 'y': found no value"),
        ([*GIVEN, ((X.double(),), {"y": Y})], ArgumentError, "test vector 3, input 'x': found dtype f64"),
        ([((torch.ones(2, 2),), {"y": Y})], ArgumentError, r"test vector 1, input 'x': found size 2"),
        ([(X, {"y": Y})], ConventionError, "test_vectors: found Tensor and dict in one"),
        ([("forward", (X,), {"y": Y})], ConventionError, "test_vectors: found a tuple"),
        (X, ConventionError, "test_vectors: found a Tensor"),
    ],
)
def test_bad_vectors_are_one_error_and_the_old_file_is_whole(
    saved: Path, model: Sum, given: Any, error: type[Exception], message: str
) -> None:
    before = saved.read_bytes()
    with pytest.raises(error, match=message):
        intarsia.save(export(model, (X,), {"y": Y}), saved, test_vectors=given)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["a.pt2"]


def test_a_call_that_raises_is_told(tmp_path: Path) -> None:
    ids = torch.tensor([100, 99])
    with pytest.raises(ArgumentError, match="test vector 2, call: found that it raises IndexError"):
        intarsia.save(export(Ids(), (ids,)), tmp_path / "a.pt2", test_vectors=[((ids + 1,), {}), ((ids,), {})])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("raed", (Y,), {})], "the method 'raed', expected one of add, read"),
        ([((Y,), {})], "expected a list of calls, each a method, a tuple"),
    ],
)
def test_vectors_of_several_methods_name_them(methods: Any, tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(ConventionError, match=message):
        intarsia.save(methods, tmp_path / "a.pt2", test_vectors=given)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("calls", 1, "method"), "other", "test vector 2: found the method 'other'"),
        (("calls", 0, "inputs", 0), ["int", 3], "and 1 tensors of none"),
        (("calls", 0, "inputs", 0), ["tensor", "call_0.input_1"], "KeyError"),
        (("calls", 0, "inputs", 0), ["text", "x"], "'x' for a value of kind 'text'"),
        (
            ("calls", 0, "inputs"),
            [["tensor", "call_0.input_0"], ["tensor", "call_0.input_1"], ["int", 3]],
            "3 inputs, where the program has 2",
        ),
        (("calls", 0, "outputs", 0), ["float", 3], "3 for a value of kind 'float'"),
        (("calls", 0, "written"), [[-1, ["int", 3]]], "-1 for the position"),
        (("calls", 0, "written"), [[7, ["int", 3]]], "int written into input 7"),
        (("calls", 0, "written"), [[0, ["int", 3]]], "int written into input 0"),
        (("tolerances", "f32"), {"relative": -1, "absolute": 0}, r"\(-1, 0\) for a tolerance"),
        (("tolerances", "f32"), {"relative": 0, "absolute": math.inf}, r"\(0, inf\) for a tolerance"),
        (("tolerances", "f33"), {"relative": 0, "absolute": 0}, "KeyError: 'f33'"),
        (("coarsest", "forward"), ["f32"], "the coarsest dtypes of 1 outputs, where the program has 2"),
        (("coarsest",), {}, "the coarsest dtypes of 0 outputs"),
        (("calls",), [], "0 calls where the manifest says 2"),
        (("calls",), None, "TypeError"),
    ],
)
def test_vectors_that_do_not_fit_are_one_error(saved: Path, path: Any, value: Any, message: str) -> None:
    def change(values: Any) -> None:
        *steps, last = path
        functools.reduce(lambda inner, step: inner[step], steps, values)[last] = value

    program = intarsia.load(change_json(saved, CALLS, change))
    assert torch.equal(program(X, y=Y)["total"], X.sum(0) + Y)
    with pytest.raises(FormatError, match=message):
        intarsia.verify(saved)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("call_0.input_0", torch.ones(3, 2, dtype=torch.float64), r"f64\[3, 2\] for input 0, which is f32\[3, 2\]"),
        ("call_0.output_1", torch.ones(3), r"f32\[3\] for output 1, which is f32\[2\]"),
        ("call_0.output_1", torch.ones(()), r"f32\[\] for output 1"),
        ("more", torch.ones(1), "1 tensors of none"),
    ],
)
def test_tensors_that_do_not_fit_are_one_error(saved: Path, name: str, value: Tensor, message: str) -> None:
    members = read_members(saved)
    tensors = {**safetensors.torch.load(members[TENSORS]), name: value}
    pack(saved, {**members, TENSORS: safetensors.torch.save(tensors)})
    with pytest.raises(FormatError, match=message):
        _ = intarsia.load(saved).test_vectors


@pytest.mark.parametrize("data", [b"", b"\xff" * 80, (1 << 40).to_bytes(8, "little") + b"{}"])
def test_what_is_no_safetensors_file_is_one_error(saved: Path, data: bytes) -> None:
    pack(saved, {**read_members(saved), TENSORS: data})
    with pytest.raises(FormatError, match="test vectors that cannot be read"):
        _ = intarsia.load(saved).test_vectors


def test_vectors_that_the_manifest_does_not_tell_are_refused(saved: Path) -> None:
    members = read_members(saved)
    pack(saved, {name: data for name, data in members.items() if name != TENSORS})
    with pytest.raises(FormatError, match="1 members with test vectors"):
        intarsia.load(saved)


def test_vectors_that_are_changed_at_random_are_read_or_refused(saved: Path) -> None:
    members, programs = read_members(saved), {"forward": load_pt2(saved).program}
    text, tensors = members[CALLS], members[TENSORS]
    for seed in range(400):
        draw = random.Random(seed)  # noqa: S311 - the same files at every run
        changed = (
            (json.dumps(mutate_json(draw, json.loads(text))).encode(), tensors)
            if seed % 2
            else (text, mutate_bytes(draw, tensors))
        )
        with contextlib.suppress(FormatError):
            vectors = read_vectors(*map(memoryview, changed), programs, 2, "a.pt2")
            assert len(vectors.calls) == 2
