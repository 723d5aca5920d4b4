"""Your own module, in five lines: compile, save, load, call, verify.

python examples/own_module.py
"""

from __future__ import annotations

import torch

import intarsia

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
x = torch.randn(2, 8)

hybrid = intarsia.compile(model, (x,))
intarsia.save(hybrid, "own_module.pt2")
program = intarsia.load("own_module.pt2")
outputs = program(x)
result = intarsia.verify("own_module.pt2", model)

print(intarsia.coverage(hybrid))
print("outputs:", tuple(outputs.shape), outputs.dtype)
print(f"largest error against the model: {(outputs - model(x)).abs().max():.0e}")
print(result)
