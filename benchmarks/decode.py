"""A decode step of `examples/moe_decode.py` beside three other ways to run it, and what the second method adds.

    python benchmarks/decode.py

Prints medians of several rounds, taken in turns, and ratios. One thread, for torch and for the engines.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timing import medians

import intarsia

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import moe_decode
from moe_decode import DYNAMIC_SHAPES, EXAMPLES, HEAD_WIDTH, KEY_HEADS

MEGABYTES = 16
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1}


def measure_step(title: str, length: int, position: int, rounds: int) -> None:
    """All four are given the same token at the same position, of caches that hold nothing else."""
    model = moe_decode.build_decoder(length)
    token, at = torch.tensor([[5]]), torch.tensor([position])
    hybrid = intarsia.compile(model.decode, EXAMPLES["decode"], options=ONE_THREAD)
    exported = intarsia.export(hybrid)
    program, module, compiled = intarsia.Program(exported), exported.module(), torch.compile(model.decode)
    calls = {
        "eager": lambda: model.decode(token, at),
        "torch.compile": lambda: compiled(token, at),
        "ep.module()": lambda: module(token, at),
        "Program": lambda: program(token, at),
    }
    with torch.no_grad():
        if not torch.equal(program(token, at), module(token, at)):
            raise SystemExit("the program and ep.module() differ")
        torch.testing.assert_close(compiled(token, at), model.decode(token, at), atol=0.02, rtol=0)
        found = medians(calls, rounds)
    print(title)
    for name, microseconds in found.items():
        print(f"  {name:14} {microseconds:8.0f} us   Program relative to it {found['Program'] / microseconds:.2f}")


def measure_example() -> None:
    measure_step("decode step, caches of 64 KB", moe_decode.LENGTH, 80, 200)


def measure_large() -> None:
    length = MEGABYTES * 2**20 // (4 * KEY_HEADS * HEAD_WIDTH)
    measure_step(f"\ndecode step, four caches of {MEGABYTES} MB", length, length - 1, 20)


def measure_size() -> None:
    model = moe_decode.build_decoder()
    hybrids = intarsia.compile(
        {"prefill": model.prefill, "decode": model.decode}, EXAMPLES, dynamic_shapes=DYNAMIC_SHAPES
    )
    programs = intarsia.export(hybrids)
    one = {"decode": programs["decode"]}
    print("\nbytes of the file")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "moe.pt2"
        for payloads in (True, False):
            sizes = []
            for methods in (one, programs):
                intarsia.save(methods, path, payloads=payloads)
                sizes.append(path.stat().st_size)
            added = f"prefill adds {100 * (sizes[1] / sizes[0] - 1):.1f} %"
            print(f"  {'with' if payloads else 'without'} payloads: decode {sizes[0]:,}, both {sizes[1]:,}, {added}")


PARTS: dict[str, Callable[[], None]] = {"example": measure_example, "large": measure_large, "size": measure_size}


def main(parts: Iterable[str]) -> None:
    torch.set_num_threads(1)
    # Experts are chosen by numbers, at which torch.compile breaks the graph and says so at length.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS], metavar="PART", help=f"any of {', '.join(PARTS)}")
    main(parser.parse_args().parts)
