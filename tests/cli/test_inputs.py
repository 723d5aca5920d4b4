"""Inputs from files: by the names that `inspect` shows, and every misfit is one clear message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from intarsia import api
from intarsia.cli.inputs import call_program, draw_calls, drawing_faults, read_call
from intarsia.errors import ArgumentError, ConventionError
from intarsia.runtime.program import Program

X = torch.arange(8.0).view(2, 4)


def written(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    path = Path("in.safetensors")
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, metadata or None)
    return path


@pytest.fixture
def counter(here: Path) -> Program:
    return api.load(here / "counter.pt2")


def test_tensors_go_to_the_inputs_of_their_names_and_fixed_values_come_by_themselves(counter: Program) -> None:
    call = read_call(counter, written({"x": X}, {"format": "pt"}))
    assert torch.equal(call.args[0], X)
    assert call.kwargs == {"scale": 2.0}


def test_names_of_nested_inputs_are_those_of_inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.report.program import describe_program

    class Nested(torch.nn.Module):
        def forward(self, pair: list[torch.Tensor], *, cache: dict[str, torch.Tensor]) -> Any:
            return pair[0] - pair[1] * cache["k"]

    monkeypatch.chdir(tmp_path)
    args, kwargs = ([torch.ones(2), torch.zeros(2)],), {"cache": {"k": torch.full((2,), 3.0)}}
    program = Program(torch.export.export(Nested(), args, kwargs))
    names = [leaf.name for leaf in describe_program(program.exported_program).inputs]
    assert len(set(names)) == 3
    values = [torch.full((2,), float(index)) for index in range(3)]
    call = read_call(program, written(dict(zip(names, values, strict=True))))
    assert [value.tolist() for value in call.args[0]] == [[0, 0], [1, 1]]
    assert call.kwargs["cache"]["k"].tolist() == [2, 2]


def test_what_is_no_tensor_stands_in_the_metadata(here: Path) -> None:
    program = api.load(here / "bins.pt2")
    call = read_call(program, written({"ids": torch.tensor([1, 2])}, {"n": "7"}))
    assert call.args[1] == 7
    assert program(*call.args)[1] == 7


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {}, r"input 'x': found no value in 'in.safetensors', which holds no tensor, expected f32\[.*, 4\]"),
        ({"x": X, "y": X}, {}, r"in.safetensors: found a tensor 'y', expected the inputs .*\(x: f32.*scale: 2.0\)"),
        ({"X": X}, {}, r"a tensor 'X', .*"),
        ({"xx": X}, {}, r"a tensor 'xx', .*"),
        ({"x": X}, {"scale": "two"}, r"input 'scale': found 'two' in the metadata of 'in.safetensors', expected JSON"),
    ],
)
def test_a_name_or_value_that_does_not_fit_is_told(
    counter: Program, tensors: dict[str, torch.Tensor], metadata: dict[str, str], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_call(counter, written(tensors, metadata))


def test_a_near_name_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x * mask

    monkeypatch.chdir(tmp_path)
    program = Program(torch.export.export(Masked(), (torch.ones(2), torch.ones(2))))
    with pytest.raises(ArgumentError, match="Did you mean 'mask' by 'msk'"):
        read_call(program, written({"x": torch.ones(2), "msk": torch.ones(2)}))


def test_a_number_that_is_missing_is_asked_for_in_the_metadata(here: Path) -> None:
    with pytest.raises(ArgumentError, match=r"input 'n': found no value.*as JSON in the metadata"):
        read_call(api.load(here / "bins.pt2"), written({"ids": torch.tensor([1, 2])}))


@pytest.mark.parametrize(
    ("tensor", "metadata", "message"),
    [
        (X.double(), {}, "input 'x': found dtype f64, expected f32"),
        (torch.ones(7, 4), {}, "input 'x': found size 7 .*expected 1 to 6"),
        (torch.ones(2, 5), {}, "input 'x': found size 5 .*expected 4"),
        (torch.ones(4), {}, "input 'x': found 1 dimensions"),
        (X, {"scale": "3.0"}, "input 'scale': found float 3.0, expected 2.0"),
    ],
)
def test_a_tensor_that_does_not_fit_is_told_by_the_program(
    counter: Program, tensor: torch.Tensor, metadata: dict[str, str], message: str
) -> None:
    call = read_call(counter, written({"x": tensor}, metadata))
    with pytest.raises(ArgumentError, match=f"^{message}"):
        call_program(counter, call.args, call.kwargs)


def test_what_an_operator_raises_is_one_message(tmp_path: Path) -> None:
    program = Program(torch.export.export(torch.nn.Embedding(3, 2), (torch.tensor([1]),)))
    with pytest.raises(ArgumentError, match=r"a call of the program: found IndexError \(index out of range in self\)"):
        call_program(program, (torch.tensor([9]),), {})


def test_the_seed_decides_what_is_drawn_and_sizes_are_in_the_middle(counter: Program) -> None:
    one, same, other = (call.args[0] for call in draw_calls(counter, (1, 1, 2)).calls)
    assert one.shape == (3, 4)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_what_cannot_be_drawn_is_asked_for_in_the_words_of_the_command(here: Path) -> None:
    program = api.load(here / "bins.pt2")
    with (
        pytest.raises(ConventionError, match=r"input 'ids': .*mask\. Add a file\. Test"),
        drawing_faults("Add a file."),
    ):
        draw_calls(program, [0])
