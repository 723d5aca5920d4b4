"""Real models: what went to engines, how long the export takes, and the error against eager torch.

    python benchmarks/models.py [--rounds 5]

Prints the table of docs/models.md. The ratio is of medians of rounds in which the two take turns.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import intarsia

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import minilm
from tests.models.cases import CASES, Call, Case


def tokenize_first(count: int) -> Call:
    return (), minilm.tokenize(minilm.SENTENCES[:count])


MINILM = Case(minilm.load_encoder, tokenize_first, ((4,), (1,), (2,)), minilm.DYNAMIC_SHAPES)
KEPT: Mapping[str, set[str]] = {"MiniLM": {"aten.scaled_dot_product_attention"}}


def row(name: str, case: Case, rounds: int) -> list[str]:
    calls = case.calls()
    args, kwargs = calls[0]
    hybrid = intarsia.compile(
        case.build(), args, kwargs, dynamic_shapes=case.dynamic_shapes, torch_executed_ops=KEPT.get(name, ())
    )
    coverage = intarsia.coverage(hybrid)
    inside = sum(placement.place != "torch" for placement in coverage.placements)
    retraced, exported = medians(
        lambda: intarsia.export(hybrid, args, kwargs, dynamic_shapes=case.dynamic_shapes, retrace=True),
        lambda: intarsia.export(hybrid),
        rounds=rounds,
    )
    error = largest_error(intarsia.Program(intarsia.export(hybrid)), case.build(), calls)
    counts = [inside, len(coverage.placements) - inside, len(coverage.engines)]
    return [name, *map(str, counts), f"{exported * 1e3:.0f} ms", f"{retraced / exported:.0f}", f"{error:.0e}"]


def medians(*runs: Callable[[], Any], rounds: int) -> list[float]:
    """The median time of each run, in seconds."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, kept in zip(runs, times, strict=True):
            gc.collect()
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    # The first round pays for what is made once.
    return [statistics.median(kept[1:]) for kept in times]


def largest_error(program: intarsia.Program, model: torch.nn.Module, calls: list[Call]) -> float:
    pairs = []
    with torch.no_grad():
        for args, kwargs in calls:
            found, expected = program(*args, **kwargs), model(*args, **kwargs)
            pairs += zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    return max((found - expected).abs().max().item() for found, expected in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("| model | in engines | in torch | engines | export | retrace / export | largest error |")
    print("|---|---|---|---|---|---|---|")
    for name, case in {"MiniLM": MINILM, **CASES}.items():
        print(f"| {' | '.join(row(name, case, rounds))} |", flush=True)


if __name__ == "__main__":
    main()
