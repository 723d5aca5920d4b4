"""Which state counts as constant, and what an attribute keeps when it moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intarsia.errors import PartitionError
from intarsia.partition.state import State


def read_and_write(written):
    """A graph module that reads `cache` and its view `head`, and writes the attribute `written`."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    nodes = {name: graph.get_attr(name) for name in ("cache", "head", "other")}
    graph.call_function(torch.ops.aten.copy_.default, (nodes[written], x))
    graph.output((nodes["head"],))
    module = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    module.register_buffer("cache", torch.zeros(4))
    module.register_buffer("head", module.cache[2:])
    module.other = torch.zeros(4)
    module.graph = graph
    return module, nodes


def constants(written):
    module, nodes = read_and_write(written)
    state = State(module)
    return {name for name, node in nodes.items() if state.is_constant(node)}


def test_state_that_shares_memory_with_written_state_is_no_constant():
    assert constants("cache") == {"other"}
    assert constants("head") == {"other"}
    assert constants("other") == {"cache", "head"}


def test_attributes_keep_their_kind():
    module, _ = read_and_write("other")
    module.inner = nn.Module()
    module.inner.weight = nn.Parameter(torch.ones(1), requires_grad=False)
    module.inner.register_buffer("scratch", torch.ones(1), persistent=False)
    state, target = State(module), nn.Module()
    for path in ("cache", "other", "inner.weight", "inner.scratch"):
        state.place(path, target)
    assert dict(target.named_parameters()) == {"inner.weight": module.inner.weight}
    assert dict(target.named_buffers()).keys() == {"cache", "inner.scratch"}
    assert target.state_dict().keys() == {"cache", "inner.weight"}
    assert target.other is module.other
    assert target.inner.scratch is module.inner.scratch


def test_write_whose_result_is_used_is_refused():
    module, _ = read_and_write("cache")
    (copy,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    with module.graph.inserting_after(copy):
        module.graph.call_function(torch.ops.aten.relu.default, (copy,))
    with pytest.raises(PartitionError, match="in-place operator"):
        State(module)
