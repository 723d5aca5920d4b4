"""Weights of more than 2 GB the whole way: built, called, saved, read by the command line, loaded in a new process.

    python benchmarks/large_weights.py [--backend onnxruntime] [--weights 2] [--size 17000]

The model is a chain of linear layers without bias, with size x size f32 weights: two of 17000 x 17000 are 2.3 GB
together, and one of 24000 x 24000 is so by itself. 2 GB is what one message of protobuf holds, and with it an ONNX
model that has its weights inside. For each step the seconds, and the peak of the process's memory, relative to the
weights: the model, the engine's bytes and the pages of the file that were read are part of it. The file is written into
the current folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

import intarsia

T = TypeVar("T")
ROWS = ({0: torch.export.Dim("rows", min=1, max=8)},)


class Steps:
    """Prints what each step of a process takes, relative to the weights."""

    def __init__(self, weight_bytes: int) -> None:
        self.weight_bytes = weight_bytes
        self.base = _status("VmRSS")

    def take(self, name: str, function: Callable[[], T]) -> T:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        start = time.perf_counter()
        found = function()
        self.show(name, time.perf_counter() - start, _status("VmHWM") - self.base)
        return found

    def show(self, name: str, seconds: float, peak: int) -> None:
        print(f"  {name:24} {seconds:6.1f} s, peak {peak / self.weight_bytes:.2f} times the weights", flush=True)


def _status(field: str) -> int:
    """Bytes of a field of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


@torch.no_grad()
def make_file(path: Path, backend: str, weights: int, size: int) -> None:
    """Compile and save the model, and put a call with eager's answer beside the file."""
    weight_bytes = 4 * weights * size * size
    print(f"{backend}: {weights} of {size} x {size}, {weight_bytes / 1e9:.2f} GB")
    steps = Steps(weight_bytes)
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(weights))).eval()
    x = torch.randn(2, size)
    expected = steps.take("eager call", lambda: model(x))
    torch.save((x, expected, weight_bytes), path.with_suffix(".call"))
    hybrid = steps.take(
        "compile",
        lambda: intarsia.compile(model, (x,), dynamic_shapes=ROWS, backend=backend, fallback=False),
    )
    _compare(steps.take("first call", lambda: hybrid(x)), expected)
    program = steps.take("export", lambda: intarsia.export(hybrid))
    steps.take("save", lambda: intarsia.save(program, path))
    print(f"  the file has {path.stat().st_size / weight_bytes:.2f} times the bytes of the weights")


def read_file(path: Path) -> None:
    """Load the file, and call what it holds."""
    x, expected, weight_bytes = torch.load(path.with_suffix(".call"))
    steps = Steps(weight_bytes)
    for command in ("inspect", "check"):
        start = time.perf_counter()
        call = [sys.executable, "-m", "intarsia", command, str(path)]
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        steps.show(f"intarsia {command}", time.perf_counter() - start, usage.ru_maxrss * 1024 - steps.base)
        if status:
            sys.exit(f"intarsia {command} ended with {os.waitstatus_to_exitcode(status)}")
    program = steps.take("load, in a new process", lambda: intarsia.load(path, allow={"native"}))
    _compare(steps.take("first call", lambda: program(x)), expected)
    steps.take("second call", lambda: program(x))


def _compare(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found - expected).abs().max() / expected.abs().max()
    print(f"  largest error, relative to the largest output of eager: {error:.1e}")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--weights", type=int, default=2, help="how many there are")
    parser.add_argument("--size", type=int, default=17000, help="rows and columns of each")
    parser.add_argument("--read", type=Path, help="only the second half: a file that the first has written")
    options = parser.parse_args()
    if options.read:
        read_file(options.read)
        return
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "model.pt2")
        make_file(path, options.backend, options.weights, options.size)
        subprocess.run([sys.executable, __file__, "--read", str(path)], check=True)


if __name__ == "__main__":
    main()
