"""Equal partitions are built once; what differs in any way that an engine sees is built for itself."""

from __future__ import annotations

import pytest
import torch
from tests.engines.test_build import EagerBackend, build
from torch import nn

import intarsia
from intarsia.capture import capture
from intarsia.core.container import EngineContainer
from intarsia.engines.equal import key_of_partition
from intarsia.partition import Wishes, partition


def keys(model, *args, dynamic_shapes=None):
    """The key of each partition, with `sort` in torch between them."""
    program = capture(model, args, dynamic_shapes=dynamic_shapes)
    supports = {"demo": lambda node: "no" if "sort" in str(node.target) else None}
    hybrid, found = partition(program, Wishes(supports))
    return [key_of_partition(hybrid.get_submodule(name)) for name in found.engines], program


class Sorted(nn.Module):
    """Two parts with a sort between them."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x):
        return self.last(self.first(x).sort(0)[0])


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


LINEAR = nn.Linear(4, 4)
TIED = nn.Linear(4, 4)
TIED.weight, TIED.bias = LINEAR.weight, LINEAR.bias


@pytest.mark.parametrize(
    ("first", "last", "equal"),
    [
        (Calls(lambda x: x.exp() + 1), Calls(lambda x: x.exp() + 1), True),
        (LINEAR, LINEAR, True),
        (LINEAR, TIED, True),
        (LINEAR, nn.Linear(4, 4), False),
        (Calls(lambda x: x.exp() + 1), Calls(lambda x: x.exp() + 2), False),
        (Calls(lambda x: x.exp() + 1), Calls(lambda x: x.exp() + 1.0), False),
        (Calls(lambda x: x.exp() + 1), Calls(lambda x: x.sin() + 1), False),
        (Calls(lambda x: x.exp() - x), Calls(lambda x: x - x.exp()), False),
        (Calls(lambda x: x.exp()), Calls(lambda x: x.exp().sum(0)), False),
        (Calls(lambda x: (x @ x.t()).exp()[:, :2] + 0), Calls(lambda x: (x @ x.t()).exp()[:, :2] + 0), False),
        (Calls(lambda x: x.softmax(0)), Calls(lambda x: x.softmax(1)), False),
        (Calls(lambda x: x.exp()), Calls(lambda x: x.double().exp()), False),
    ],
)
def test_partitions_are_equal_where_an_engine_would_be(first, last, equal):
    (one, other), _ = keys(Sorted(first, last), torch.randn(3, 4))
    assert (one == other) is equal


def test_sizes_of_two_captures_are_not_equal_for_their_names():
    function = Calls(lambda x: x.exp().sort(0)[0].exp())
    narrow, first = keys(function, torch.randn(3), dynamic_shapes={"x": {0: torch.export.Dim("n", max=9)}})
    wide, second = keys(function, torch.randn(3), dynamic_shapes={"x": {0: torch.export.Dim("n", max=99)}})
    assert narrow[0] == narrow[1]
    assert narrow[0] != wide[0]
    assert first is not second


class Repeated(nn.Module):
    def forward(self, x):
        for _ in range(3):
            x = (x.tanh() * 2).sort(0)[0]
        return x


def test_equal_partitions_are_built_once_and_named_each(monkeypatch):
    backend = EagerBackend()
    monkeypatch.setattr("intarsia.core.instance.find_backend", lambda name: backend)
    x = torch.randn(5)
    hybrid, found = build(capture(Repeated(), (x,)), backend)
    assert len(found.engines) == 3
    assert len(backend.programs) == 1
    containers = [getattr(hybrid.get_submodule(name), name) for name in found.engines]
    names = [EngineContainer.unpack(one.numpy().data).name for one in containers]
    assert names == list(found.engines)
    torch.testing.assert_close(hybrid(x), Repeated()(x), rtol=0, atol=0)


def test_what_was_built_before_a_refusal_is_not_built_again(monkeypatch):
    class Model(nn.Module):
        def forward(self, x):
            return (x.exp() + 1).sort(0)[0].tanh()

    backend = EagerBackend({"tanh": ValueError("no")})
    monkeypatch.setattr("intarsia.core.instance.find_backend", lambda name: backend)
    x = torch.randn(5)
    hybrid, found = build(capture(Model(), (x,)), backend)
    assert (found.engines, len(backend.programs)) == (("eager_0",), 1)
    torch.testing.assert_close(hybrid(x), Model()(x), rtol=0, atol=0)


def test_openvino_engines_of_equal_partitions_are_one_payload():
    pytest.importorskip("openvino")
    x = torch.randn(5)
    hybrid = intarsia.compile(Repeated(), (x,), torch_executed_ops={"aten.sort"})
    engines = [getattr(hybrid.get_submodule(name), name) for name in intarsia.coverage(hybrid).engines]
    payloads = {EngineContainer.unpack(one.numpy().data).payload_sha256 for one in engines}
    assert (len(engines), len(payloads)) == (3, 1)
    torch.testing.assert_close(hybrid(x), Repeated()(x))
