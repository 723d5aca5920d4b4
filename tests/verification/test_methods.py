"""Verification of several methods: each alone, and all in turn on one state."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intarsia
from intarsia.errors import ConventionError, StateError
from intarsia.verification import MethodsVerification


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def scale(self, x: Tensor) -> Tensor:
        return x * self.weight


class Decoder(nn.Module):
    """Counts in `prefill` and `decode`; `read` tells the count."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("rows", torch.zeros(4, 2), persistent=False)

    def prefill(self, x: Tensor) -> dict[str, Tensor]:
        self.count.add_(x.shape[0])
        return {"out": self.part.scale(x) + self.count}

    def decode(self, x: Tensor, *, position: Tensor) -> Tensor:
        self.rows.index_copy_(0, position, x)
        self.count.add_(1)
        return self.rows.sum(0) + self.count

    def read(self, x: Tensor) -> Tensor:
        return x + self.count

    def total(self, y: Tensor, to: Tensor) -> Tensor:
        return to + y.sum()


X = (torch.ones(1, 2),)
ARGS = {"prefill": (torch.ones(3, 2),), "decode": X, "read": X}
KWARGS = {"decode": {"position": torch.tensor([1])}}


def compile_decoder(model: Any, **replaced: Any) -> dict[str, torch.fx.GraphModule]:
    entries = {name: getattr(model, name) for name in ARGS} | replaced
    return intarsia.compile(entries, ARGS, KWARGS)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder().eval()


@pytest.fixture(scope="module")
def hybrids(model: Decoder) -> dict[str, torch.fx.GraphModule]:
    return compile_decoder(model)


def forms(hybrids: dict[str, torch.fx.GraphModule], folder: Path) -> dict[str, Any]:
    intarsia.save(hybrids, folder / "m.pt2")
    return {
        "hybrids": hybrids,
        "programs": intarsia.export(hybrids),
        "methods": intarsia.load(folder / "m.pt2"),
        "path": folder / "m.pt2",
    }


@pytest.mark.parametrize("form", ["hybrids", "programs", "methods", "path"])
def test_methods_are_verified_alone_and_in_turn(
    form: str, model: Decoder, hybrids: dict[str, torch.fx.GraphModule], tmp_path: Path
) -> None:
    before = copy.deepcopy(model.state_dict())
    told: list[tuple[int, int, str]] = []
    found = intarsia.verify(forms(hybrids, tmp_path)[form], model, progress=lambda *step: told.append(step))
    assert isinstance(found, MethodsVerification)
    assert found.ok, str(found)
    assert list(found.methods) == ["prefill", "decode", "read"]
    assert found.in_turn.calls == 9
    assert {leaf.name for leaf in found.in_turn.leaves} == {
        "prefill: output['out']", "decode: output", "read: output", "state 'count'", "state 'rows'"
    }  # fmt: skip
    done = [step[0] for step in told]
    assert done == sorted(done)
    assert set(done) == set(range(told[0][1] + 1))
    assert {name.partition(":")[0] for _, _, name in told} >= {"prefill", "decode", "read"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.to_json()["ok"] is True
    assert "all methods in turn, on one state: ok, 9 calls" in str(found)


def test_without_a_reference_only_graphs_are_compared(hybrids: dict[str, torch.fx.GraphModule]) -> None:
    found = intarsia.verify(hybrids)
    assert found.ok
    assert not found.in_turn.leaves


def test_state_that_one_method_does_not_share_is_found_in_turn(model: Decoder) -> None:
    apart = intarsia.compile(model.read, X)  # its engine holds the count as a constant
    found = intarsia.verify({**compile_decoder(model), "read": apart}, model)
    assert all(one.ok for one in found.methods.values())
    assert not found.ok
    assert [leaf.name for leaf in found.in_turn.leaves if not leaf.ok] == ["read: output"]
    assert str(found).startswith("verification: FAILED, 3 methods")


def test_another_model_differs(hybrids: dict[str, torch.fx.GraphModule]) -> None:
    other = Decoder()
    with torch.no_grad():
        other.part.weight.add_(1)
    found = intarsia.verify(hybrids, other)
    assert [name for name, one in found.methods.items() if not one.ok] == ["prefill"]
    assert [leaf.name for leaf in found.in_turn.leaves if not leaf.ok] == ["prefill: output['out']"]


def test_entry_points_of_parts_are_compared_with_the_state_of_the_model(model: Decoder) -> None:
    entries = {"scale": model.part.scale, "decode": model.decode}
    hybrids = intarsia.compile(entries, {"scale": X, "decode": X}, KWARGS)
    found = intarsia.verify(hybrids, entries)
    assert found.ok, str(found)
    assert {leaf.name for leaf in found.methods["decode"].leaves} == {"output", "state 'count'", "state 'rows'"}


def test_one_bound_method_is_a_reference(model: Decoder) -> None:
    found = intarsia.verify(intarsia.compile(model.read, X), model.read)
    assert found.ok, str(found)
    with pytest.raises(ConventionError, match=r"the reference: .* Its total takes y, to; the program takes x"):
        intarsia.verify(intarsia.compile(model.read, X), model.total)


def test_inputs_and_examples_go_to_their_methods(hybrids: dict[str, torch.fx.GraphModule]) -> None:
    made = [((torch.ones(1, 2),), {"position": torch.tensor([position])}) for position in (0, 3)]
    found = intarsia.verify(hybrids, inputs={"decode": made})
    assert found.methods["decode"].calls == 6
    assert found.methods["decode"].findings == ("inputs were given, so the corners of the ranges were not tried",)
    assert found.ok


@pytest.mark.parametrize("argument", ["inputs", "example", "reference"])
def test_a_name_that_is_no_method_s_is_an_error(argument: str, hybrids: dict[str, torch.fx.GraphModule]) -> None:
    with pytest.raises(ConventionError, match=rf"{argument}: found the name 'decod', .* Did you mean 'decode'"):
        intarsia.verify(hybrids, **{argument: {"decod": []}})
    if argument != "reference":
        with pytest.raises(ConventionError, match=rf"{argument}: found an object of type 'list', expected a mapping"):
            intarsia.verify(hybrids, **{argument: []})


def test_a_model_without_the_method_is_an_error(hybrids: dict[str, torch.fx.GraphModule]) -> None:
    with pytest.raises(ConventionError, match="the reference, model 'Part': found no method 'prefill'"):
        intarsia.verify(hybrids, Part())
    with pytest.raises(ConventionError, match="the reference: found no method 'prefill'"):
        intarsia.verify(hybrids, {"read": Decoder().read})


def test_faults_name_the_method(hybrids: dict[str, torch.fx.GraphModule]) -> None:
    with pytest.raises(ConventionError, match="method 'decode', argument 'inputs': found no calls"):
        intarsia.verify(hybrids, inputs={"decode": []})
    with pytest.raises(ConventionError, match="methods: found none"):
        intarsia.verify({})


def test_unrelated_programs_are_refused(hybrids: dict[str, torch.fx.GraphModule]) -> None:
    with pytest.raises(StateError, match="state 'count' of the methods 'prefill' and 'read': found two tensors"):
        intarsia.verify({"prefill": hybrids["prefill"], "read": compile_decoder(Decoder())["read"]})
