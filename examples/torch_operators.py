"""Choosing what stays in torch: by operator, by the size of a partition, and reading why.

python examples/torch_operators.py
"""

from __future__ import annotations

import torch

import intarsia


class Ranker(torch.nn.Module):
    """Two layers, and how undecided the four best of what they say are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.first(x))
        ordered = torch.sort(self.second(hidden), dim=-1, descending=True)[0]
        entropies: torch.Tensor = torch.special.entr(ordered[:, :4].softmax(-1))
        return entropies


torch.manual_seed(0)
model = Ranker().eval()
x = torch.randn(5, 8)

# Everything that the backend takes. The last operator stays in torch, and the table says why.
everything = intarsia.compile(model, (x,))
print(intarsia.coverage(everything), end="\n\n")

# Operators are named as that table names them, with the overload or without, or given as objects.
kept = intarsia.compile(model, (x,), torch_executed_ops={"aten.gelu", torch.ops.aten.sort.default})
print(intarsia.coverage(kept), end="\n\n")

# Engines of a single operator are seldom worth their call: partitions of fewer than two operators stay in torch.
large = intarsia.compile(model, (x,), torch_executed_ops={"aten.gelu", "aten.sort"}, min_block_size=2)
print(intarsia.coverage(large), end="\n\n")

for name, hybrid in {"everything": everything, "kept": kept, "large": large}.items():
    intarsia.save(hybrid, f"{name}.pt2")
    result = intarsia.verify(f"{name}.pt2", model)
    print(f"{name}: {len(intarsia.coverage(hybrid).engines)} engines, right: {result.ok}")
