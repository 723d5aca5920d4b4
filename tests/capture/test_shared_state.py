"""State that shares memory: one entry where it is one tensor, a clear error where torch cannot tell its writes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intarsia.capture import capture
from intarsia.errors import CaptureError
from intarsia.runtime.program import Program


class Store:
    """A plain object that holds a tensor, as caches do."""

    def __init__(self):
        self.values = torch.zeros(4)


class Cached(nn.Module):
    """Writes through a plain object what is registered as a buffer too."""

    def __init__(self):
        super().__init__()
        self.store = Store()
        self.register_buffer("values", self.store.values, persistent=False)

    def forward(self, position, x):
        self.store.values.index_copy_(0, position, x)
        return self.store.values * 2


class Tied(nn.Module):
    """Writes a buffer under one name, and reads it under another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(4))
        self.register_buffer("second", self.first)

    def forward(self, position, x):
        self.first.index_copy_(0, position, x)
        return self.second * 2


class Returned(Cached):
    """Returns the tensor itself, as the plain object holds it."""

    def forward(self, position, x):
        self.values.index_copy_(0, position, x)
        return self.store.values


class Overlapping(nn.Module):
    """Writes a row of a buffer, whose whole it reads."""

    def __init__(self):
        super().__init__()
        whole = torch.zeros(2, 4)
        self.register_buffer("whole", whole)
        self.register_buffer("row", whole[1])

    def forward(self, position, x):
        self.row.index_copy_(0, position, x)
        return self.whole + 1


class Reinterpreted(nn.Module):
    """Writes a buffer whose bytes it reads in another dtype."""

    def __init__(self):
        super().__init__()
        self.register_buffer("numbers", torch.zeros(4))
        self.register_buffer("bits", self.numbers.view(torch.int32))

    def forward(self, position, x):
        self.numbers.index_copy_(0, position, x)
        return self.bits + 1


def arguments(position=0):
    return torch.tensor([position]), torch.ones(1)


def state_of(program):
    return [spec.target for spec in program.graph_signature.input_specs if spec.target]


@pytest.mark.parametrize(("kind", "name"), [(Cached, "values"), (Tied, "first"), (Returned, "values")])
@pytest.mark.parametrize("exported", [False, True])
def test_a_written_tensor_of_two_names_is_one_entry(kind, name, exported):
    model = kind().eval()
    if exported:
        program = capture(torch.export.export(model, arguments(), strict=False))
    else:
        program = capture(model, arguments())
    assert state_of(program) == [name]
    held = {**program.state_dict, **program.constants}
    assert held[name].data_ptr() == getattr(model, name).data_ptr()
    run, fresh = Program(program), kind().eval()
    for position in (1, 3):
        assert torch.equal(run(*arguments(position)), fresh(*arguments(position)))
    assert not getattr(model, name).any()  # neither capture nor the program's calls write the model


def test_the_exported_program_is_left_as_it_is():
    program = torch.export.export(Cached().eval(), arguments(), strict=False)
    before = (state_of(program), str(program.graph), list(program.constants))
    capture(program)
    assert (state_of(program), str(program.graph), list(program.constants)) == before


def test_ties_that_nobody_writes_keep_their_names():
    class Reading(Tied):
        def forward(self, position, x):
            return self.first * self.second

    assert state_of(capture(Reading(), arguments())) == ["first", "second"]


@pytest.mark.parametrize(
    ("kind", "names"), [(Overlapping, "'whole' and 'row'"), (Reinterpreted, "'numbers' and 'bits'")]
)
def test_parts_of_one_memory_are_told_with_the_remedy(kind, names):
    with pytest.raises(CaptureError) as caught:
        capture(kind(), arguments())
    assert caught.value.subject == f"model '{kind.__name__}', state {names}"
    assert "one memory" in caught.value.found
    assert caught.value.fix.startswith("Register the whole tensor as one buffer")


def test_other_faults_of_a_model_with_shared_state_keep_their_own_text():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.store = Store()
            self.register_buffer("whole", torch.zeros(2, 4))
            self.register_buffer("row", self.whole[1])

        def forward(self, position, x):
            self.store.values.index_copy_(0, position, x)
            return self.store.values + self.whole + self.row

    with pytest.raises(CaptureError) as caught:
        capture(Held(), arguments())
    assert caught.value.fix == "Register the tensor as a buffer of its module: self.register_buffer(name, tensor)."
