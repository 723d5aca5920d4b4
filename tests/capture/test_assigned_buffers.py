"""A program keeps the buffers that its model assigns, as the model does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from intarsia.capture import capture, capture_methods
from intarsia.core.examples import Examples
from intarsia.errors import CaptureError

X = torch.tensor([1.0, 2.0, 3.0])


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", None)
        self.register_buffer("now", torch.zeros(3))
        self.register_buffer("before", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.now = self.now * 2 + x
        return self.now + self.before

    def shift(self, x: Tensor) -> Tensor:
        self.before = self.now
        self.now = x * 2
        return self.now + self.before

    def swap(self, x: Tensor) -> Tensor:
        self.now, self.before = self.before, self.now
        return self.now + x

    def old(self, x: Tensor) -> dict[str, Tensor]:
        old = self.now
        self.now = old + x
        return {"old": old, "part": old[1:], "new": self.now}

    def scratch(self, x: Tensor) -> Tensor:
        kept, self.now = self.now, x * 2
        found = self.now + 1
        self.now = kept
        return found

    def register(self, x: Tensor) -> Tensor:
        self.register_buffer("more", x * 2)
        return self.more + self.now

    def wide(self, x: Tensor) -> Tensor:
        self.now = self.now.double() + x
        return self.now * 2

    def scalar(self, x: Tensor) -> Tensor:
        self.now = self.now.sum() + x.sum()
        return self.now * 2


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()
        self.same = self.cell

    def forward(self, x: Tensor) -> Tensor:
        return self.same(self.cell(x))


METHODS = ("forward", "shift", "swap", "old", "scratch")


def assert_same_calls(found: Callable[[Tensor], object], expected: Callable[[Tensor], object]) -> None:
    """All results are compared after the last call: none may change in a later one."""
    with torch.no_grad():
        pairs = [(found(X + i), expected(X + i)) for i in range(3)]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_program_keeps_what_its_model_assigns(method: str) -> None:
    model, reference = Cell(), Cell()
    assert_same_calls(capture(getattr(model, method), (X,)).module(), getattr(reference, method))
    if method != "shift":
        assert torch.equal(model.now, reference.now)
        assert torch.equal(model.before, reference.before)


@pytest.mark.parametrize("method", METHODS)
def test_a_program_keeps_what_a_part_of_its_model_assigns(method: str) -> None:
    model, reference = Whole(), Whole()
    entries = {"whole": model, "part": getattr(model.cell, method)}
    programs = capture_methods(entries, {name: Examples((X,), None, None) for name in entries})
    assert_same_calls(programs["whole"].module(), reference)
    assert_same_calls(programs["part"].module(), getattr(reference.cell, method))


@pytest.mark.parametrize("method", [*METHODS, "register"])
def test_the_model_has_its_buffers_after_a_capture(method: str) -> None:
    model = Whole()
    before = dict(model.cell._buffers)
    entries = {"whole": model, "part": getattr(model.cell, method)}
    capture_methods(entries, {name: Examples((X,), None, None) for name in entries})
    assert list(model.cell._buffers) == list(before)
    assert all(model.cell._buffers[name] is value for name, value in before.items())
    assert not model._forward_hooks


@pytest.mark.parametrize(("method", "found"), [("wide", r"float64\[3\]"), ("scalar", r"float32\[\]")])
def test_a_value_that_the_buffer_cannot_hold_is_an_error(method: str, found: str) -> None:
    with pytest.raises(CaptureError, match=rf"found {found} that is assigned to self\.now, a buffer of float32\[3\]"):
        capture(getattr(Cell(), method), (X,))


def test_one_of_two_names_of_a_buffer_that_is_assigned_is_an_error() -> None:
    model = Whole()
    model.register_buffer("outer", model.cell.now)
    with pytest.raises(CaptureError, match=r"assignment to self\.cell\.now, whose tensor is the buffer 'outer' too"):
        capture(model, (X,))


@pytest.mark.parametrize("name", ["nothing", "new"])
def test_a_buffer_without_a_tensor_that_is_assigned_is_an_error(name: str) -> None:
    class Late(Cell):
        def forward(self, x: Tensor) -> Tensor:
            self.register_buffer(name, x * 2)
            return x + 1

    with pytest.raises(CaptureError, match=rf"assigned to self\.{name}, a buffer that holds none"):
        capture(Late(), (X,))


@pytest.mark.parametrize(
    ("method", "name"),
    [("weight", r"part\.weight, a par"), ("data", r"part\.weight\.data, "), ("buffer", r"now\.data, ")],
)
@pytest.mark.parametrize("bound", [False, True])
def test_what_torch_does_not_see_is_an_error(method: str, name: str, *, bound: bool) -> None:
    class Unseen(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = getattr(self, method)(x)
            return found

        def weight(self, x: Tensor) -> Tensor:
            self.part.weight = nn.Parameter(self.part.weight * 2)
            return self.part(x)

        def data(self, x: Tensor) -> Tensor:
            self.part.weight.data = self.part.weight * 2
            return self.part(x)

        def buffer(self, x: Tensor) -> Tensor:
            self.now.data = self.now + x
            return self.now * 2

    model = Unseen()
    before = model.part.weight
    with pytest.raises(CaptureError, match=rf"found an assignment to self\.{name}"):
        capture(getattr(model, method) if bound else model, (X,))
    assert model.part.weight is before


def test_an_input_that_is_assigned_is_told() -> None:
    class Keeper(Cell):
        def forward(self, x: Tensor) -> Tensor:
            self.now = x
            return x * 2

    with pytest.raises(CaptureError, match=r"assign a copy: self\.buffer = x\.clone\(\)"):
        capture(Keeper(), (X,))


def test_a_tensor_that_one_method_assigns_and_another_one_reads_is_an_error() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.zeros(3)

        def write(self, x: Tensor) -> Tensor:
            self.plain = x * 2
            return x + 1

        def read(self, x: Tensor) -> Tensor:
            return self.plain + x

    model = Split()
    entries = {"write": model.write, "read": model.read}
    with pytest.raises(CaptureError, match=r"method 'write': found an assignment to self\.plain, a tensor that is no"):
        capture_methods(entries, {name: Examples((X,), None, None) for name in entries})


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model_is_refused_in_torch_s_words() -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    with pytest.raises(CaptureError, match="Exporting a ScriptModule is not supported"):
        capture(torch.jit.script(Double()), (X,))
