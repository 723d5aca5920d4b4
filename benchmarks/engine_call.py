"""Cost of one engine call through `intarsia::run_engine`, against eager torch and a bare OpenVINO request.

    python benchmarks/engine_call.py

Every figure is the median of several rounds in one process; read the ratios to the bare request.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import openvino
import torch

from intarsia.core.container import pack_engine
from intarsia.core.op import run_engine
from intarsia.core.registry import find_backend

RUN = torch.ops.intarsia.run_engine.default


class Encoder(torch.nn.Module):
    """Six transformer blocks, hidden size 384, as in MiniLM."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True, activation="gelu")
        self.layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def microseconds(rows: dict[str, Callable[[], Any]], calls: int, rounds: int = 15) -> dict[str, float]:
    """Median time of one call of each row; the rows take turns, so that a busy machine troubles all alike."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, call in rows.items():
            call()
            start = perf_counter()
            for _ in range(calls):
                call()
            times[name].append((perf_counter() - start) / calls * 1e6)
    return {name: median(values) for name, values in times.items()}


def compare(name: str, module: torch.nn.Module, x: torch.Tensor, calls: int) -> None:
    """Print eager, bare request, engine and operator, with their ratios to the bare request."""
    backend = find_backend("openvino")
    shape = ", ".join(map(str, x.shape))
    signature = f"(f32[{shape}]) -> (f32[{shape}])"
    built = backend.build(torch.export.export(module, (x,)), {})
    data = pack_engine(built, name="engine_0", backend="openvino", signature=signature)
    constant = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    engine = backend.load(memoryview(built.payload), {})
    properties = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().import_model(built.payload, "CPU", properties)
    request = compiled.create_infer_request()
    request.set_input_tensor(0, openvino.Tensor(x.numpy(), shared_memory=True))

    rows: dict[str, Callable[[], Any]] = {
        "eager torch": lambda: module(x),
        "bare request, bound input": lambda: request.infer(share_outputs=True),
        "request.infer([x])": lambda: request.infer([x.numpy()]),
        "engine": lambda: engine([x]),
        "operator, called in Python": lambda: run_engine([x], constant, signature),
        "operator": lambda: RUN([x], constant, signature),
    }
    times = microseconds(rows, calls)
    print(f"{name}, input [{shape}]")
    for row, time in times.items():
        print(f"  {row:28} {time:10.1f} us {time / times['bare request, bound input']:8.2f}")


def main() -> None:
    """Run both comparisons."""
    torch.manual_seed(0)
    with torch.no_grad():
        compare("linear 64x64", torch.nn.Linear(64, 64).eval(), torch.randn(1, 64), 300)
        compare("six transformer blocks", Encoder().eval(), torch.randn(8, 64, 384), 1)


if __name__ == "__main__":
    main()
