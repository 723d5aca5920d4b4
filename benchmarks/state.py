"""What state costs: recording one position of a cache, a decode step, and sessions.

    python benchmarks/state.py

Prints medians of several rounds, taken in turns, and ratios. One thread.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from timing import Call, medians
from torch.export import ExportedProgram, export

from intarsia.runtime.program import Program

MEGABYTES = (1, 16, 128)
HEADS, WIDTH = 8, 64
SESSIONS = 10


class Recorder(torch.nn.Module):
    """Records one position of a cache f32[1, 8, n, 64], in the functional form that `run_decompositions` makes."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        positions = megabytes * 2**20 // (4 * HEADS * WIDTH)
        self.register_buffer("cache", torch.zeros(1, HEADS, positions, WIDTH), persistent=False)

    def forward(self, position: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(torch.index_copy(self.cache, 2, position, row))
        return position + 1


class NoState(torch.nn.Module):
    """Takes and returns the same, and records nothing: the fixed cost of a call."""

    def forward(self, position: torch.Tensor, row: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - as of `Recorder`
        return position + 1


class DecodeStep(torch.nn.Module):
    """One attention layer of width 512 over caches of keys and values, with its feed-forward layers."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        size = HEADS * WIDTH
        self.positions = megabytes * 2**20 // (4 * size)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, HEADS, self.positions, WIDTH), persistent=False)
        self.qkv, self.project = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, position: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.view(1, 1, HEADS, WIDTH).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        self.keys.copy_(torch.index_copy(self.keys, 2, position, key))
        self.values.copy_(torch.index_copy(self.values, 2, position, value))
        seen = torch.arange(self.positions) <= position
        read = torch.nn.functional.scaled_dot_product_attention(query, self.keys, self.values, seen[None, None, None])
        x = x + self.project(read.transpose(1, 2).reshape(1, 1, -1))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def exported(model: torch.nn.Module, *args: torch.Tensor) -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns of a class of its own
        return export(model, args).run_decompositions({})


def measure_recording() -> None:
    print("recording one position, beyond the fixed cost of a call")
    position, row = torch.tensor([5]), torch.randn(1, HEADS, 1, WIDTH)
    fixed = Program(exported(NoState(), position, row))
    costs = []
    for megabytes in MEGABYTES:
        program = exported(Recorder(megabytes), position, row)
        ours, bare = Program(program), torch.zeros_like(program.constants["cache"])
        module = program.module()
        if not ours.writes["cache"].in_place:
            raise SystemExit(f"the cache is copied: {ours.writes['cache'].reason}")
        calls: dict[str, Call] = {
            "bare": lambda bare=bare: bare.index_copy_(2, position, row),
            "fixed": lambda: fixed(position, row),
            "Program": lambda ours=ours: ours(position, row),
        }
        with torch.no_grad():
            found = medians(calls, 1500)
            theirs = medians({"ep.module()": lambda module=module: module(position, row)}, 15)["ep.module()"]
        cost = found["Program"] - found["fixed"]
        costs.append(cost)
        print(
            f"  {megabytes:4} MB  index_copy_ {found['bare']:6.1f} us   Program {cost:6.1f} us,"
            f" {cost / found['bare']:.2f} times that   ep.module() {theirs:9.0f} us"
        )
    print(f"  largest cost relative to the smallest: {max(costs) / min(costs):.2f}")


def measure_decode_step() -> None:
    position, x = torch.tensor([1000]), torch.randn(1, 1, HEADS * WIDTH)
    program = exported(DecodeStep(16), position, x)
    ours, module = Program(program), program.module()
    with torch.no_grad():
        torch.testing.assert_close(ours(position, x), module(position, x))
        found = medians({"Program": lambda: ours(position, x), "ep.module()": lambda: module(position, x)}, 60)
    ratio = found["Program"] / found["ep.module()"]
    print(f"\none-layer decode step, two caches of 16 MB: Program relative to ep.module() {ratio:.2f}")
    print(f"  Program {found['Program'] / 1000:.2f} ms, ep.module() {found['ep.module()'] / 1000:.2f} ms")


def measure_sessions() -> None:
    position, x = torch.tensor([1000]), torch.randn(1, 1, HEADS * WIDTH)
    program = Program(exported(DecodeStep(16), position, x))
    program(position, x)
    state = sum(program.state[name].nbytes for name in program.writes)
    before = resident_bytes()
    sessions = [program.session() for _ in range(SESSIONS)]
    for session in sessions:
        session(position, x)
    added = resident_bytes() - before
    print(f"\n{SESSIONS} sessions add {added / 2**20:.0f} MB, {added / (SESSIONS * state):.3f} times {SESSIONS} states")


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


PARTS: dict[str, Callable[[], None]] = {
    "recording": measure_recording,
    "decode": measure_decode_step,
    "sessions": measure_sessions,
}


def main(parts: Iterable[str]) -> None:
    torch.set_num_threads(1)
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS], metavar="PART", help=f"any of {', '.join(PARTS)}")
    main(parser.parse_args().parts)
