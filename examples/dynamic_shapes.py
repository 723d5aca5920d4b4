"""Dynamic shapes: named sizes and their ranges hold for the engines, in the file, and for every call.

python examples/dynamic_shapes.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.export import Dim

import intarsia
from intarsia.errors import ArgumentError


class Tagger(torch.nn.Module):
    """Scores of four tags for each token, and a weighted sum of them for each sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(100, 16)
        self.tags = torch.nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.tags(torch.relu(self.words(tokens)))
        return scores, (scores * weights.unsqueeze(-1)).sum(1)


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(100, (batch, length)), torch.rand(batch, length)


def refusal(program: Callable[..., object], *args: torch.Tensor) -> str:
    try:
        program(*args)
    except ArgumentError as error:
        return str(error)
    return "nothing"


torch.manual_seed(0)
model = Tagger().eval()

# One `Dim` in two places says that both sizes are the same. A size without a `Dim` is fixed by the example inputs.
sizes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=64)}
hybrid = intarsia.compile(model, inputs(3, 5), dynamic_shapes={"tokens": sizes, "weights": sizes})
intarsia.save(hybrid, "dynamic_shapes.pt2")

program = intarsia.load("dynamic_shapes.pt2")
print(program)

for shape in ((1, 2), (8, 64), (2, 9)):
    scores, sums = program(*inputs(*shape))
    print(f"inputs {shape}: scores {tuple(scores.shape)}, sums {tuple(sums.shape)}")

print("refused:", refusal(program, *inputs(9, 5)))
print("refused:", refusal(program, inputs(2, 5)[0], inputs(2, 6)[1]))

# The engine does not tell what its integers mean, so the calls to compare are given.
print(intarsia.verify("dynamic_shapes.pt2", model, inputs=[(inputs(1, 2), {}), (inputs(8, 64), {})]))
