"""A misfit of the examples, a misfit of the sizes and a fault of the model: each has its own cure."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from intarsia.capture import capture
from intarsia.errors import CaptureError


class Sum(nn.Module):
    def forward(self, x, y=None):
        return x * 2 if y is None else x + y


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(2, -1) if x.shape[0] == 4 else x


X = torch.ones(4, 3)
B = Dim("b")


def refusal(model, *args, **given):
    with pytest.raises(CaptureError) as caught:
        capture(model, args, **given)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((X, X, X), None, "too many positional arguments"),
        ((), {"y": X}, "missing a required argument: 'x'"),
        ((X,), {"z": X}, "got an unexpected keyword argument 'z'"),
        ((X,), {"x": X}, "multiple values for argument 'x'"),
    ],
)
def test_examples_that_forward_does_not_take(args, kwargs, found):
    error = refusal(Sum(), *args, kwargs=kwargs)
    assert error.subject == "model 'Sum', example inputs"
    assert found in error.found
    assert error.expected == "the arguments of forward(x, y=None)"
    assert error.fix == "Pass args and kwargs such that model(*args, **kwargs) runs."


def test_a_forward_that_does_not_tell_its_arguments():
    model = nn.Module()
    model.forward = torch.relu
    assert refusal(model, X).fix == "Wrap the model in an nn.Module whose forward calls it."


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        (({0: B}, {0: B}), "`inputs` has 1 elements, but `dynamic_shapes` has 2 elements"),
        ({"z": {0: B}}, "top-level keys must be the arg names ['x']"),
        (({5: B},), "a dimension that the input does not have"),
        (({0: "b"},), "Unexpected dimension"),
        (([B],), "same length as the actual tensor shape"),
        ((B,), "Unexpected input tensor shape"),
    ],
)
def test_dynamic_shapes_of_another_form(shapes, found):
    error = refusal(Sum(), X, dynamic_shapes=shapes)
    assert error.subject == "model 'Sum', dynamic_shapes"
    assert found in error.found
    assert error.expected == "an entry for each input, of its structure and rank"
    assert error.fix.startswith("Write {dimension: Dim(name)} for a tensor")


@pytest.mark.parametrize(("dim", "found"), [(5, "constraint of 5"), (Dim("b", min=8, max=9), "4 not in range [8, 9]")])
def test_example_sizes_outside_of_the_ranges(dim, found):
    error = refusal(Sum(), X, dynamic_shapes={"x": {0: dim}})
    assert error.subject == "model 'Sum', dynamic_shapes"
    assert found in error.found
    assert error.fix == "Change the ranges, or the example inputs."


def test_a_size_that_the_model_fixes():
    error = refusal(Fixed(), X, dynamic_shapes={"x": {0: B}})
    assert error.subject == "model 'Fixed', dynamic_shapes"
    assert error.found.endswith("your code specialized it to be a constant (4)")
    assert error.fix == "torch suggests for dynamic_shapes: b = 4."


def test_an_example_of_size_one_is_told_as_the_reason():
    error = refusal(Sum(), torch.ones(1, 3), dynamic_shapes={"x": {0: B}})
    assert error.fix == "Give example inputs with another size there: torch takes a size of 0 or 1 to be fixed."


@pytest.mark.parametrize("args", [(X, torch.ones(5, 3)), (X, "text")])
def test_what_an_operator_refuses_may_be_the_examples_or_the_models_fault(args):
    error = refusal(Sum(), *args)
    assert error.subject == "model 'Sum'"
    assert "test_faults.py" in error.found
    assert error.fix.startswith("Call model(*args, **kwargs): where that raises too, mend the example inputs.")


def test_what_only_torch_export_refuses_is_the_models_fault():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    assert refusal(Branching(), X).fix.startswith("Change the model at that place")


def test_an_input_of_an_unknown_class():
    error = refusal(Sum(), object())
    assert error.found == "Unsupported input type <class 'object'>"
    assert error.fix.startswith("Pass tensors and numbers in tuples, lists, dicts")
