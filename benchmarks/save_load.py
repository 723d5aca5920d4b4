"""Save and load of large programs, side by side with safetensors and with `torch.export`.

    python benchmarks/save_load.py save [--weights 64] [--weight-mb 32] [--engine-mb 256] [--rounds 3]
    python benchmarks/save_load.py load

Prints ratios from one run, medians of several rounds. Each round of each writer is a process of its own, which makes
the program and writes one file into the current folder. `intarsia.save` returns when the file is on the disk; for the
others, the time until then is measured too. Peak memory is what the write adds to that of the process.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

import intarsia
from intarsia import Program

WRITERS = ("intarsia", "safetensors", "torch")


class Table(torch.nn.Module):
    """Weights and the bytes of an engine; a call reads one row of the first weight and one byte."""

    def __init__(self, weights: int, weight_mb: int, engine_mb: int) -> None:
        super().__init__()
        rows = weight_mb * 2**20 // 4 // 1024
        self.weights = torch.nn.ParameterList(torch.randn(rows, 1024) for _ in range(weights))
        self.engine = torch.randint(0, 256, (engine_mb * 2**20,), dtype=torch.uint8)

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(row, self.weights[0]) + self.engine[:1]


def build(weights: int, weight_mb: int, engine_mb: int) -> torch.export.ExportedProgram:
    return torch.export.export(Table(weights, weight_mb, engine_mb), (torch.tensor([3]),))


def writer(name: str, program: torch.export.ExportedProgram) -> Callable[[Path], None]:
    if name == "intarsia":
        return lambda path: intarsia.save(program, path)
    if name == "torch":
        return lambda path: torch.export.save(program, path)
    tensors = {**program.state_dict, **program.constants}
    plain = {key: value.detach() for key, value in tensors.items()}
    return lambda path: safetensors.torch.save_file(plain, path)


def measure_save(name: str, path: Path, sizes: tuple[int, int, int]) -> None:
    """Seconds until the file is written, seconds until it is on the disk, and added peak memory in MB."""
    write = writer(name, build(*sizes))
    # A small program first, so that libraries are loaded.
    writer(name, build(2, 1, 1))(path)
    path.unlink()
    base, start = _peak_mb(), time.perf_counter()
    write(path)
    written = time.perf_counter() - start
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    print(written, time.perf_counter() - start, _peak_mb() - base)
    path.unlink()


def run_save(sizes: tuple[int, int, int], rounds: int) -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in WRITERS}
    for _ in range(rounds):
        for name in WRITERS:
            found[name].append(_in_process("measure", name, sizes))
    written, synced, added = (
        {name: statistics.median(row[column] for row in rows) for name, rows in found.items()} for column in range(3)
    )
    print(f"{sizes[0]} weights of {sizes[1]} MB and an engine of {sizes[2]} MB, medians of {rounds} rounds:")
    for name in WRITERS:
        print(
            f"{name:12} on the disk {synced[name] / synced['safetensors']:.2f} "
            f"({synced[name]:.2f} s, written after {written[name]:.2f} s), adds {added[name]:.0f} MB to the peak"
        )


def measure_load(path: Path) -> None:
    """Seconds to a `Program`, and memory in MB that it and one call that reads one row add."""
    Program(build(2, 1, 1))(torch.tensor([3]))
    small = path.with_name("small.pt2")
    intarsia.save(build(2, 1, 1), small)
    intarsia.load(small)(torch.tensor([3]))
    base, start = _resident_mb(), time.perf_counter()
    program = intarsia.load(path)
    loaded = time.perf_counter() - start
    program(torch.tensor([3]))
    print(loaded, _resident_mb() - base, path.stat().st_size / 2**20)


def run_load(rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for sizes in ((64, 4, 32), (64, 32, 256)):
            path = Path(folder, "a.pt2")
            intarsia.save(build(*sizes), path)
            rows = [_in_process("load-one", str(path), (0, 0, 0)) for _ in range(rounds)]
            seconds, added, size = (statistics.median(row[column] for row in rows) for column in range(3))
            print(f"{size:.0f} MB: a Program after {seconds:.3f} s; with a call of one row, {added:.0f} MB more memory")


def _in_process(what: str, name: str, sizes: tuple[int, int, int]) -> list[float]:
    command = [sys.executable, __file__, what, "--name", name, "--weights", str(sizes[0])]
    command += ["--weight-mb", str(sizes[1]), "--engine-mb", str(sizes[2])]
    result = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603 - starts itself
    return [float(number) for number in result.stdout.split()]


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["save", "load", "measure", "load-one"], help="the last two: one round")
    parser.add_argument("--name", help="of one round: a writer, or a file")
    parser.add_argument("--weights", type=int, default=64)
    parser.add_argument("--weight-mb", type=int, default=32)
    parser.add_argument("--engine-mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = (options.weights, options.weight_mb, options.engine_mb)
    if options.what == "save":
        run_save(sizes, options.rounds)
    elif options.what == "load":
        run_load(options.rounds)
    elif options.what == "load-one":
        measure_load(Path(options.name))
    else:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            measure_save(options.name, Path(folder, "a.pt2"), sizes)


if __name__ == "__main__":
    main()
