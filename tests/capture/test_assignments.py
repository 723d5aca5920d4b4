"""What a model assigns while it is captured: kept, refused, or taken away again."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from intarsia.capture import capture
from intarsia.errors import CaptureError

X = (torch.ones(3),)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.zeros(3)
        self.items: list[Tensor] = [torch.zeros(3)]
        self.named = {"a": torch.zeros(3)}
        self.count = 0
        self.register_buffer("kept", torch.zeros(3))

    def tensor(self, x: Tensor) -> Tensor:
        self.plain = self.plain + x
        return self.plain * 2

    def item(self, x: Tensor) -> Tensor:
        self.items[0] = self.items[0] + x
        return self.items[0] * 2

    def entry(self, x: Tensor) -> Tensor:
        self.named["a"] = self.named["a"] + x
        return self.named["a"] * 2

    def buffer(self, x: Tensor) -> Tensor:
        self.kept = self.kept + x
        return self.kept * 2

    def number(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count

    def scratch(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return self.last + 1


class Whole(nn.Module):
    """Calls a method of its part, beside a recurrent layer, of whose parameters torch says that they are assigned."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.part = Part()
        self.recurrent = nn.GRU(3, 3)
        self.method = method

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = getattr(self.part, self.method)(x)
        return found + self.recurrent(x[None])[0][0]


@pytest.mark.parametrize(("method", "name"), [("tensor", "plain"), ("item", "items"), ("entry", "named")])
def test_an_assignment_that_would_be_lost_is_an_error(method: str, name: str) -> None:
    part = Part()
    with pytest.raises(
        CaptureError, match=rf"method '{method}': found an assignment to self\.{name}, a tensor that is"
    ):
        capture(getattr(part, method), X)
    whole = Whole(method)
    with pytest.raises(CaptureError, match=rf"model 'Whole': found an assignment to self\.part\.{name}, a tensor"):
        capture(whole, X)
    for model in (part, whole.part):
        assert type(model.plain) is type(model.items[0]) is type(model.named["a"]) is Tensor
        assert not model.plain.any()


@pytest.mark.parametrize("method", ["buffer", "number"])
def test_other_assignments_are_no_fault(method: str) -> None:
    model = Whole(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(model, X)
    assert model.part.count == 0
    assert not model.part.kept.any()


def test_what_a_trace_leaves_in_the_model_is_taken_away() -> None:
    model = Whole("scratch")
    with pytest.warns(UserWarning, match=r"self\.part\.last.* assigned during export"):
        capture(model, X)
    assert not hasattr(model.part, "last")


def test_a_tensor_that_is_left_behind_and_read_by_nobody_may_be_lost() -> None:
    model = Whole("scratch")
    model(*X)
    before = model.part.last
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = capture(model, X)
    assert model.part.last is before
    torch.testing.assert_close(program.module()(*X), model(*X))
