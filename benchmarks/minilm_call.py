"""Calls of the demo's encoder: eager, as one engine, as the demo's hybrid, and as a bare OpenVINO request.

    python benchmarks/minilm_call.py [--batch 8] [--length 64] [--threads N]

Prints ratios from one run, medians of several rounds in which all take turns. The bare request is the same model
converted by OpenVINO as a whole and called with the same tensors bound to it; it computes in f32 as the engines do.
OMP_WAIT_POLICY=PASSIVE in the environment lets torch's idle threads leave the cores to the engines.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino
import torch
from torch.export import Dim

import intarsia

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import minilm

SIZE = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=256)}


def make_program(encoder: torch.nn.Module, **options: Any) -> tuple[intarsia.Program, int]:
    """The encoder through a file, and how many engines it has."""
    example = minilm.tokenize(minilm.SENTENCES)
    hybrid = intarsia.compile(encoder, kwargs=example, dynamic_shapes=dict.fromkeys(example, SIZE), **options)
    with tempfile.TemporaryDirectory() as folder:
        intarsia.save(hybrid, Path(folder) / "encoder.pt2")
        return intarsia.load(Path(folder) / "encoder.pt2"), len(intarsia.coverage(hybrid).engines)


def make_request(encoder: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """A call of the whole model in OpenVINO, with its inputs bound once; the outputs stay in the request's memory."""
    program = torch.export.export(encoder, (), inputs, dynamic_shapes=dict.fromkeys(inputs, SIZE))
    model = openvino.convert_model(program.run_decompositions({}))
    request = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    for index, tensor in enumerate(inputs.values()):
        request.set_input_tensor(index, openvino.Tensor(tensor.numpy(), shared_memory=True))
    return request.infer


def measure(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            for _ in range(3):
                call()
            times[name].append((time.perf_counter() - start) / 3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    encoder = minilm.load_encoder()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 2000, (options.batch, options.length), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    whole, engines = make_program(encoder, min_block_size=3)
    demo, parts = make_program(encoder, torch_executed_ops={"aten.scaled_dot_product_attention"})
    calls = {
        "bare request": make_request(encoder, inputs),
        f"program, {engines} engine": lambda: whole(**inputs),
        f"program, {parts} engines (the demo)": lambda: demo(**inputs),
        "eager": lambda: encoder(**inputs),
    }
    with torch.no_grad():
        times = measure(calls, options.rounds)
    base = statistics.median(times["bare request"])
    print(f"batch {options.batch}, {options.length} tokens, {torch.get_num_threads()} threads")
    for name, row in times.items():
        ratio = statistics.median(row) / base
        print(f"  {name:36} {statistics.median(row) * 1e3:7.2f} ms  {ratio:5.2f} times the bare request")


if __name__ == "__main__":
    main()
