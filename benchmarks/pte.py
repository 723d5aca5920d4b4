"""`.pte` files: calls, the export, and the memory that it takes. Needs the extra `pte`.

    python benchmarks/pte.py [calls] [export] [memory]

Prints medians of several rounds, taken in turns, and ratios. Each part runs in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from timing import medians

import intarsia
from intarsia.core.container import EngineContainer
from intarsia.executorch import to_edge

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import minilm

BATCH, LENGTH = 8, 64


def compile_encoder(encoder: torch.nn.Module) -> torch.fx.GraphModule:
    """The demo's hybrid: engines for everything but attention."""
    return intarsia.compile(
        encoder,
        kwargs=minilm.tokenize(minilm.SENTENCES),
        dynamic_shapes=minilm.DYNAMIC_SHAPES,
        torch_executed_ops={"aten.scaled_dot_product_attention"},
    )


def measure_calls(rounds: int) -> None:
    """The demo's encoder: through both files, by XNNPACK alone, and in eager torch."""
    encoder = minilm.load_encoder()
    program = intarsia.export(compile_encoder(encoder))
    with TemporaryDirectory() as folder:
        own, before, theirs = (f"{folder}/{name}" for name in ("own.pte", "own.pt2", "xnnpack.pte"))
        intarsia.save(program, own)
        intarsia.save(program, before)
        lower_by_xnnpack(encoder, theirs)
        ids = torch.randint(1000, 2000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        loaded, loaded_before, run = intarsia.load(own), intarsia.load(before), load_flat(theirs)
        calls: dict[str, Callable[[], Any]] = {
            ".pte": lambda: loaded(**inputs),
            ".pt2": lambda: loaded_before(**inputs),
            "XNNPACK alone": lambda: run([*inputs.values()]),
            "eager": lambda: encoder(**inputs),
        }
        with torch.no_grad():
            expected = encoder(**inputs)["tokens"]
            torch.testing.assert_close(loaded(**inputs)["tokens"], expected, atol=1e-4, rtol=0)
            torch.testing.assert_close(run([*inputs.values()])[1], expected, atol=1e-4, rtol=0)
            found = medians(calls, rounds)
    print(f"MiniLM, batch {BATCH}, {LENGTH} tokens, {torch.get_num_threads()} threads")
    for name, microseconds in found.items():
        print(f"  {name:14} {microseconds / 1e3:8.2f} ms   .pte relative to it {found['.pte'] / microseconds:.2f}")


def lower_by_xnnpack(encoder: torch.nn.Module, path: str) -> None:
    """What a user of ExecuTorch writes without intarsia."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    inputs = minilm.tokenize(minilm.SENTENCES)
    exported = torch.export.export(encoder, (), inputs, dynamic_shapes=minilm.DYNAMIC_SHAPES)
    to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch().save(path)


def load_flat(path: str) -> Callable[[list[torch.Tensor]], Any]:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)

    def run(inputs: list[torch.Tensor]) -> Any:
        return program.load_method("forward").execute(inputs)  # which holds the program

    return run


def measure_export(rounds: int) -> None:
    """From the demo's hybrid to the bytes of a `.pte`, by surgery and traced again; what both spend in ExecuTorch."""
    hybrid = compile_encoder(minilm.load_encoder())
    inputs = minilm.tokenize(minilm.SENTENCES)

    def retrace() -> torch.export.ExportedProgram:
        return intarsia.export(hybrid, kwargs=inputs, dynamic_shapes=minilm.DYNAMIC_SHAPES, retrace=True)

    def lower(program: torch.export.ExportedProgram) -> None:
        to_edge(program).to_executorch()

    ready = intarsia.export(hybrid)
    calls: dict[str, Callable[[], Any]] = {
        "retrace-free": lambda: lower(intarsia.export(hybrid)),
        "retraced": lambda: lower(retrace()),
        "lowering alone": lambda: lower(ready),
        "export alone": lambda: intarsia.export(hybrid),
        "retrace alone": retrace,
    }
    found = medians(calls, rounds)
    print("from the hybrid of MiniLM to a .pte")
    for name, microseconds in found.items():
        ratio = microseconds / found["retrace-free"]
        print(f"  {name:14} {microseconds / 1e6:8.2f} s   relative to retrace-free {ratio:.3f}")


def measure_memory(engines: int, size_mb: int) -> None:
    """Peak memory that a save adds, with engines of some megabytes each."""
    with TemporaryDirectory() as folder:
        layers = [build_layer(size_mb) for _ in range(engines)]
        model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU()))).eval()
        hybrid = intarsia.compile(model, (torch.randn(2, layers[0].in_features),), torch_executed_ops={"aten.gelu"})
        intarsia.save(hybrid, f"{folder}/large.pt2")
        command = [sys.executable, __file__, "save-one", "--folder", folder]
        subprocess.run(command, check=True)


def build_layer(size_mb: int) -> torch.nn.Linear:
    width = round((size_mb * 2**18) ** 0.5)
    return torch.nn.Linear(width, width)


def save_one(folder: str) -> None:
    small = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    intarsia.save(small, f"{folder}/small.pte")  # so that everything is imported
    program = torch.export.load(f"{folder}/large.pt2")
    constants = [value.numpy().data for value in program.constants.values() if value.dtype is torch.uint8]
    sizes = [EngineContainer.unpack(data).payload_bytes / 2**20 for data in constants]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = _peak_mb()
    intarsia.save(program, f"{folder}/large.pte")
    added, bound = _peak_mb() - before, sum(sizes) + 2 * max(sizes)
    print(f"{len(sizes)} engines, {sum(sizes):.0f} MB, the largest {max(sizes):.0f} MB")
    print(f"  a save adds {added:.0f} MB to the peak, {added / bound:.2f} times the engines and twice the largest")


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


PARTS = ("calls", "export", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS], metavar="PART", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="of calls 30, of the export 3")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--size-mb", type=int, default=64, help="of an engine")
    parser.add_argument("--folder", help="of one save: where the file is")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", ".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning)
    if options.parts == ["save-one"]:
        save_one(options.folder)
    elif options.parts == ["calls"]:
        measure_calls(options.rounds or 30)
    elif options.parts == ["export"]:
        measure_export(options.rounds or 3)
    elif options.parts == ["memory"]:
        measure_memory(options.engines, options.size_mb)
    else:
        for part in options.parts:
            rounds = ["--rounds", str(options.rounds)] if options.rounds else []
            sizes = ["--engines", str(options.engines), "--size-mb", str(options.size_mb)]
            subprocess.run([sys.executable, __file__, part, *rounds, *sizes], check=True)


if __name__ == "__main__":
    main()
