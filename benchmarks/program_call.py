"""What a call of a Program costs: beside the flat graph alone, `ep.module()`, and the eager model.

    python benchmarks/program_call.py

Prints medians of several rounds in microseconds, and each as a ratio to the eager model. One thread.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable
from typing import Any

import torch
from torch.export import Dim, export

import intarsia
from intarsia.runtime.program import Program

ROUNDS = 7
SECONDS_PER_ROUND = 0.2


class Increment(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Chain(torch.nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.length):
            x = x + 1
        return x


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median time of each call; the rounds of all calls are interleaved, so that drift hits all alike."""
    timers = {name: timeit.Timer(call) for name, call in calls.items()}
    loops = {name: max(1, int(SECONDS_PER_ROUND / (timer.timeit(50) / 50))) for name, timer in timers.items()}
    rounds = [{name: timer.timeit(loops[name]) / loops[name] for name, timer in timers.items()} for _ in range(ROUNDS)]
    return {name: 1e6 * statistics.median(times[name] for times in rounds) for name in calls}


def measure_calls(title: str, model: torch.nn.Module, x: torch.Tensor, dynamic_shapes: Any = None) -> None:
    exported = export(model, (x,), dynamic_shapes=dynamic_shapes)
    state = [*exported.state_dict.values()]
    flat, module, program = exported.graph_module, exported.module(), Program(exported)
    with torch.no_grad():
        times = microseconds(
            {
                "eager": lambda: model(x),
                "flat graph": lambda: flat(*state, x),
                "Program": lambda: program(x),
                "ep.module()": lambda: module(x),
            }
        )
    print(f"\n{title}")
    for name, time in times.items():
        print(f"  {name:12} {time:8.2f} us  {time / times['eager']:6.2f} times eager")
    print(f"  Program beyond the flat graph: {times['Program'] - times['flat graph']:.2f} us")


def measure_engine(title: str, model: torch.nn.Module, x: torch.Tensor) -> None:
    """A program that is one OpenVINO engine, against the eager model and `ep.module()` of the same program."""
    exported = intarsia.export(intarsia.compile(model, (x,)))
    program, module = Program(exported), exported.module()
    with torch.no_grad():
        times = microseconds(
            {"eager": lambda: model(x), "Program": lambda: program(x), "ep.module()": lambda: module(x)}
        )
    print(f"\n{title}")
    for name, time in times.items():
        print(f"  {name:12} {time:8.2f} us  {time / times['eager']:6.2f} times eager")


def measure_construction(length: int) -> None:
    exported = export(Chain(length), (torch.ones(2),))
    times = {
        name: min(timeit.repeat(call, number=1, repeat=3))
        for name, call in {"Program": lambda: Program(exported), "ep.module()": exported.module}.items()
    }
    print(f"\nconstruction, {len(exported.graph.nodes)} nodes")
    for name, time in times.items():
        print(f"  {name:12} {1e3 * time:8.1f} ms  {time / times['ep.module()']:6.3f} times ep.module()")


def main() -> None:
    torch.set_num_threads(1)
    measure_calls("one addition, f32[4, 4]", Increment(), torch.ones(4, 4))
    measure_calls("one addition, f32[b, 4]", Increment(), torch.ones(4, 4), ({0: Dim("b", min=1, max=64)},))
    measure_calls("linear 64x64, f32[1, 64]", torch.nn.Linear(64, 64), torch.ones(1, 64))
    measure_engine("linear 64x64 as one engine, f32[1, 64]", torch.nn.Linear(64, 64), torch.ones(1, 64))
    measure_construction(3600)


if __name__ == "__main__":
    main()
