"""What capture keeps whole, leaves alone and refuses."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest
import torch
from torch import nn

from intarsia.capture import capture
from intarsia.errors import CaptureError


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        y = self.linear(self.norm(x)).unsqueeze(1)
        return nn.functional.gelu(nn.functional.scaled_dot_product_attention(y, y, y))


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the branch
            return x
        return -x


def test_large_operators_stay_whole():
    found = operators(capture(Block(), (torch.randn(2, 3, 8),)))
    for name in ("linear", "layer_norm", "gelu", "scaled_dot_product_attention"):
        assert f"aten.{name}.default" in found


def test_model_is_left_as_it_is():
    model = Block().eval()
    model.linear.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = capture(model, (torch.randn(2, 3, 8),))
    assert not model.training
    assert model.linear.weight.requires_grad
    assert not model.linear.bias.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert program.state_dict["linear.weight"] is model.linear.weight


def test_training_mode_is_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    trained = operators(capture(model, (torch.randn(2, 4),)))
    assert model.training
    assert len(trained) > len(operators(capture(model.eval(), (torch.randn(2, 4),))))


def test_keywords_and_dynamic_shapes():
    dim = torch.export.Dim("b", min=1, max=9)
    x = torch.randn(3, 4)
    program = capture(nn.Linear(4, 2), kwargs={"input": x}, dynamic_shapes={"input": {0: dim}})
    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (1, 9)


def test_one_example_tensor_in_two_places_stands_for_two_inputs():
    class Weighted(nn.Module):
        def forward(self, x, pair, *, scale):
            return x * 2 + pair[0] * scale

    x, y, z = torch.ones(3), torch.full((3,), 5.0), torch.full((3,), 7.0)
    program = capture(Weighted(), (x, [x]), {"scale": x})
    assert torch.equal(program.module()(x, [y], scale=z), x * 2 + y * z)


def test_an_example_that_is_state_too_stands_for_an_input():
    model = nn.Linear(2, 2)
    program = capture(model, (model.weight,))
    x = torch.randn(2, 2)
    with torch.no_grad():
        assert torch.equal(program.module()(x), model(x))


def test_exported_program_is_accepted():
    model = Block().eval()
    x = torch.randn(2, 3, 8)
    program = torch.export.export(model, (x,))
    assert any(name.endswith("add_.Tensor") for name in operators(program))
    captured = capture(program)
    assert not any(name.endswith("add_.Tensor") for name in operators(captured))
    assert torch.equal(captured.module()(x), model(x))


@pytest.mark.parametrize("given", [{"args": (torch.ones(1),)}, {"kwargs": {"x": 1}}, {"dynamic_shapes": {"x": None}}])
def test_exported_program_with_inputs_is_refused(given):
    program = torch.export.export(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(CaptureError, match=f"found {next(iter(given))} beside it"):
        capture(program, **given)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (lambda x: x, {"args": (torch.ones(1),)}, "found an object of type 'function'"),
        (nn.ReLU(), {}, "found no example inputs"),
        (nn.ReLU(), {"args": torch.ones(1)}, "args: found an object of type 'Tensor'"),
        (nn.ReLU(), {"args": (), "kwargs": [1]}, "kwargs: found an object of type 'list'"),
    ],
)
def test_wrong_types_are_refused(model, given, message):
    with pytest.raises(CaptureError, match=message):
        capture(model, **given)


def test_model_that_cannot_be_captured_is_told_with_its_line():
    with pytest.raises(CaptureError) as caught:
        capture(Branches(), (torch.ones(2),))
    message = str(caught.value)
    assert message.startswith("model 'Branches': found ")
    assert "test_capture.py:" in message
    assert "if x.sum() > 0" in message
    assert "\n" not in message
    assert caught.value.__cause__ is not None


def test_violated_range_is_told_with_the_remedy():
    class Shifted(nn.Module):
        def forward(self, x):
            return x[1:] - x[:-1] if x.shape[0] > 3 else x

    with pytest.raises(CaptureError) as caught:
        capture(Shifted(), (torch.ones(6),), dynamic_shapes={"x": {0: torch.export.Dim("size", max=9)}})
    assert "Constraints violated (size): Not all values of size" in caught.value.found
    assert caught.value.fix == "torch suggests for dynamic_shapes: size = Dim('size', min=4, max=9)."


def test_output_of_an_unknown_class_is_told_with_the_remedy():
    class Holder:
        def __init__(self, value):
            self.value = value

    class Holding(nn.Module):
        def forward(self, x):
            return {"held": Holder(x + 1)}

    with pytest.raises(CaptureError) as caught:
        capture(Holding(), (torch.ones(2),))
    assert re.search(r"Holder'> in output, which is not a known type, expected", str(caught.value))
    assert caught.value.fix.startswith("Return tensors in tuples")


def test_wrong_call_is_told():
    with pytest.raises(CaptureError, match="model 'ReLU'"):
        capture(nn.ReLU(), (torch.ones(1), torch.ones(1)))


@pytest.fixture(params=["torch", "torch.somewhere"])
def torch_log(request):
    """What a handler writes: that of all of torch, or that of one logger, for several have their own."""
    log, stream = logging.getLogger(request.param), io.StringIO()
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


class Failing(nn.Module):
    def forward(self, x):
        logging.getLogger("torch.somewhere").error("Traceback: there is a fault")
        sys.stderr.write("the model's own text\n")
        return x @ torch.ones(5, 2)


def test_torch_tells_nothing_beside_the_error(torch_log, capfd):
    with pytest.raises(CaptureError, match="reduction dim"):
        capture(Failing(), (torch.ones(2, 4),))
    assert torch_log.getvalue() == ""
    assert capfd.readouterr().err == "the model's own text\n"


def test_torch_prints_no_graph_beside_the_error(capfd):
    with pytest.raises(CaptureError):
        capture(Branches(), (torch.ones(2, 4),))
    assert capfd.readouterr().err == ""


class Telling(nn.Module):
    def forward(self, x):
        logging.getLogger("torch.somewhere").warning("take care")
        sys.stderr.write("the model's own text\n")
        return x + 1


def test_what_torch_tells_of_a_model_that_it_captures_is_kept(torch_log, capfd):
    capture(Telling(), (torch.ones(2, 4),))
    assert torch_log.getvalue() == "take care\n"
    assert "the model's own text" in capfd.readouterr().err
