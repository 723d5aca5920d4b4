"""Keywords and nested values: a program is called as its model is, and returns what its model returns.

python examples/structures.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import intarsia
from intarsia.errors import ArgumentError


@dataclass
class Detection:
    """Where something is, and what."""

    box: torch.Tensor
    scores: torch.Tensor


# torch's way to say that a class holds tensors; a file knows the class by this name.
torch.export.register_dataclass(Detection, serialized_type_name="examples.Detection")


class Detector(torch.nn.Module):
    """Takes a dict and keywords, and returns a list of dataclasses, an input as it is, and None."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.scores = torch.nn.Linear(8, 4), torch.nn.Linear(8, 3)

    def forward(self, features: dict[str, torch.Tensor], *, mask: torch.Tensor, shift: list[torch.Tensor]) -> object:
        levels = [value * mask for value in features.values()]
        found = [Detection(self.box(level) + x, self.scores(level)) for level, x in zip(levels, shift, strict=True)]
        return {"found": found, "mask": mask, "previous": None}


torch.manual_seed(0)
model = Detector().eval()
features = {"near": torch.randn(2, 8), "far": torch.randn(2, 8)}
keywords = {"mask": torch.ones(2, 1), "shift": [torch.zeros(4), torch.ones(4)]}

hybrid = intarsia.compile(model, (features,), keywords)
intarsia.save(hybrid, "structures.pt2")
program = intarsia.load("structures.pt2")

outputs = program(features, **keywords)
print("keys:", ", ".join(outputs))
near, _ = outputs["found"]
print("near:", type(near).__name__, tuple(near.box.shape), tuple(near.scores.shape))
print("the mask is the caller's own tensor:", outputs["mask"] is keywords["mask"])
try:
    program({"near": features["near"], "fra": features["far"]}, **keywords)
except ArgumentError as error:
    print("refused:", error)
print("right:", intarsia.verify("structures.pt2", model).ok)
