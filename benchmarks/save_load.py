"""Save and load of large programs, side by side with safetensors and with `torch.export`.

    python benchmarks/save_load.py save [--weights 64] [--weight-mb 32] [--engine-mb 256] [--rounds 3]
    python benchmarks/save_load.py load [--weights 64] [--weight-mb 32] [--engine-mb 256] [--rounds 3]
    python benchmarks/save_load.py graph [--layers 360] [--rounds 5]

Medians of several rounds, in which the libraries take turns. Each round of saving and of loading weights is a process
of its own, and files are written into the current folder. `intarsia.save` returns when the file is on the disk; for the
others, the time until then is measured too. Peak memory is what the write adds to that of the process. The first call
of what `intarsia.load` gives compares the tensors with their hashes; the others have none. Of a large graph the load
is timed with the judgement of its JSON, without it, and beside `torch.export.load`: in one process, in processor time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import intarsia
from intarsia.formats import loading
from intarsia.formats.judgement import graph

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
    ratio = written["intarsia"] / written["safetensors"]
    print(f"intarsia on the disk, relative to save_file until it returns: {ratio:.2f}")


def loader(name: str, folder: Path) -> Callable[[], Callable[[], object]]:
    """Loads the file of one library, and gives a call that reads one row of the first weight."""
    row = torch.tensor([3])
    if name == "intarsia":
        return lambda: partial(intarsia.load(folder / "intarsia.pt2"), row)
    if name == "torch":
        return lambda: partial(torch.export.load(folder / "intarsia.pt2").module(), row)
    return lambda: partial(embed, safetensors.torch.load_file(folder / "a.safetensors"), row)


def embed(tensors: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(row, tensors["weights.0"]) + tensors["engine"][:1]


def measure_load(name: str, folder: Path) -> None:
    """Seconds until what was loaded can be called, seconds of the first call, and memory in MB that both add."""
    small = folder / "small"
    small.mkdir(exist_ok=True)
    write_files(small, (2, 1, 1))
    loader(name, small)()()  # so that libraries are loaded
    base, start = _resident_mb(), time.perf_counter()
    call = loader(name, folder)()
    loaded = time.perf_counter()
    call()
    print(loaded - start, time.perf_counter() - loaded, _resident_mb() - base)


def write_files(folder: Path, sizes: tuple[int, int, int]) -> None:
    program = build(*sizes)
    for name, file in {"intarsia": "intarsia.pt2", "safetensors": "a.safetensors"}.items():
        writer(name, program)(folder / file)


def run_load(largest: tuple[int, int, int], rounds: int) -> None:
    """A file of an eighth of the size first: what grows with the file shows in the ratio of the two."""
    weights, weight_mb, engine_mb = largest
    smaller: dict[str, float] = {}
    for sizes in ((weights, max(1, weight_mb // 8), max(1, engine_mb // 8)), largest):
        with tempfile.TemporaryDirectory(dir=".") as name:
            write_files(Path(name), sizes)
            print(f"{sizes[0] * sizes[1] + sizes[2]} MB, medians of {rounds} rounds:")
            found: dict[str, list[list[float]]] = {name: [] for name in WRITERS}
            for _ in range(rounds):
                for reader in WRITERS:
                    found[reader].append(_in_process("load-one", reader, (0, 0, 0), name))
        medians = {
            name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()
        }
        for reader, (loaded, called, added) in medians.items():
            growth = f", {loaded / smaller[reader]:.2f} times the smaller file's" if reader in smaller else ""
            ratio = (loaded + called) / sum(medians["torch"][:2])
            print(f"{reader:12} loaded after {loaded:.3f} s{growth}; first call {called:.3f} s; ", end="")
            print(f"both {ratio:.3f} of torch's; adds {added:.0f} MB")
            smaller[reader] = loaded


class Layers(torch.nn.Module):
    """Eleven nodes a layer, with sizes that vary."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            halves = layer(x).relu().reshape(x.shape[0], 2, 4)
            x = x + torch.cat([halves, halves], -1)[:, 0].softmax(-1) * x.shape[0]
        return x


def unjudged(text: bytes, *_: object, **__: object) -> tuple[Any, graph.Findings]:
    """Stands in for the judgement."""
    return json.loads(text), graph.Findings([], [])


def run_graph(layers: int, rounds: int) -> None:
    sizes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(Layers(layers), (torch.ones(4, 8),), dynamic_shapes=sizes)
    judged = loading.read_graph
    seconds: dict[str, list[float]] = {"judged": [], "unjudged": [], "torch": []}
    with tempfile.TemporaryDirectory(dir=".") as name:
        path = Path(name, "graph.pt2")
        intarsia.save(program, path)
        intarsia.load(path)  # so that libraries are loaded
        for turn in range(rounds):
            for one in [*seconds][turn % 3 :] + [*seconds][: turn % 3]:
                loading.read_graph = unjudged if one == "unjudged" else judged
                gc.collect()
                begin = time.process_time()
                torch.export.load(path) if one == "torch" else intarsia.load(path)
                seconds[one].append(time.process_time() - begin)
    loading.read_graph = judged
    found = {one: statistics.median(times) for one, times in seconds.items()}
    print(f"{len(program.graph.nodes)} nodes, medians of {rounds} rounds in processor time:")
    print(f"intarsia.load {found['judged']:.2f} s, {found['judged'] / found['torch']:.2f} of torch.export.load")
    judgement = found["judged"] - found["unjudged"]
    print(f"its judgement {judgement:.2f} s, {judgement / found['judged']:.3f} of it")


def _in_process(what: str, name: str, sizes: tuple[int, int, int], folder: str = ".") -> list[float]:
    command = [sys.executable, __file__, what, "--name", name, "--folder", folder, "--weights", str(sizes[0])]
    command += ["--weight-mb", str(sizes[1]), "--engine-mb", str(sizes[2])]
    result = subprocess.run(command, capture_output=True, check=True, text=True)
    return [float(number) for number in result.stdout.split()]


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = ["save", "load", "graph", "measure", "load-one"]
    parser.add_argument("what", choices=choices, help="the last two: one round")
    parser.add_argument("--name", help="of one round: the library")
    parser.add_argument("--folder", help="of one round of loading: where the files are")
    parser.add_argument("--weights", type=int, default=64)
    parser.add_argument("--weight-mb", type=int, default=32)
    parser.add_argument("--engine-mb", type=int, default=256)
    parser.add_argument("--layers", type=int, default=360)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = (options.weights, options.weight_mb, options.engine_mb)
    if options.what == "save":
        run_save(sizes, options.rounds)
    elif options.what == "load":
        run_load(sizes, options.rounds)
    elif options.what == "graph":
        run_graph(options.layers, options.rounds)
    elif options.what == "load-one":
        measure_load(options.name, Path(options.folder))
    else:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            measure_save(options.name, Path(folder, "a.pt2"), sizes)


if __name__ == "__main__":
    main()
