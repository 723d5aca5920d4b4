"""A hybrid that another tool made: torch's `split_module` cuts, and intarsia exports without tracing again.

python examples/split_module.py
"""

from __future__ import annotations

import torch
from torch.export import Dim
from torch.fx.passes.split_module import split_module

import intarsia


class Counter(torch.nn.Module):
    """Scales its input, and counts its calls in a buffer: a write that no export may lose."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        scaled = self.scale(x).relu()
        return scaled, scaled.mean(0) / self.calls


torch.manual_seed(0)
model = Counter().eval()
sizes = {"x": {0: Dim("batch", min=1, max=16)}}
graph_module = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=sizes).module()

# split_module keeps no structure of outputs. This model returns a tuple; for a dict see "How" in docs/export.md.
# Where to cut is up to you: here the second partition begins after the relu.
order = [node.name for node in graph_module.graph.nodes]
hybrid = split_module(
    graph_module,
    graph_module,
    lambda node: int(order.index(node.name) > order.index("relu")),
    keep_original_order=True,
)
print("partitions:", ", ".join(str(node.target) for node in hybrid.graph.find_nodes(op="call_module")))

# Nothing is run, and no example input is needed. What became of everything stands in the ledger.
program = intarsia.export(hybrid, dynamic_shapes=sizes)
print(intarsia.ledger(program).summary())

intarsia.save(program, "split_module.pt2")
print("right:", intarsia.verify("split_module.pt2", model).ok)
loaded = intarsia.load("split_module.pt2")
for batch in (1, 5):
    scaled, mean = loaded(torch.randn(batch, 3))
    print(f"scaled {tuple(scaled.shape)}, mean {tuple(mean.shape)}, calls so far {loaded.state['calls']:.0f}")
