"""Load and use files with parts changed at random: each answers as the good file does, or is refused by one error.

    python benchmarks/fuzz.py [--files 20000] [--first-seed 0] [--workers 2] [--seconds 20] [--memory-mb 2048]

A file is made of a good one: bits flipped, cut short, members exchanged, JSON edited, offsets in its headers doctored;
also with hashes and manifest made right again. In another process, with limits on the time of each step and on memory,
it is loaded and the calls are made that the good one answers; the command check gets it, and every fifth file one of
inspect, diff, run, verify and bench, which take longer. What is not made right again must answer to the bit as the good
file. Exit code 1 when something else happens than that, or than one of our errors.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

_START_SECONDS = 120
_TOLD_FILES = 1000
_COMMAND_EVERY = 5


class Step(NamedTuple):
    """What a worker is about to do with a file."""

    seed: int
    kind: str
    mutation: str
    stage: str


class Result(NamedTuple):
    """What became of a step: an outcome, or what must not be; with the memory that the process had at its peak."""

    step: Step
    outcome: str
    fault: str
    seconds: float
    peak_mb: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="the most that a step may take")
    parser.add_argument("--memory-mb", type=int, default=2048, help="the most that a worker may add to its memory")
    options = parser.parse_args()
    begin, record = time.perf_counter(), Record()
    with tempfile.TemporaryDirectory() as folder:
        seeds = iter(range(options.first_seed, options.first_seed + options.files))
        workers = [Worker(Path(folder, str(number)), seeds, options) for number in range(options.workers)]
        while running := [worker for worker in workers if worker.is_running]:
            wait([worker.results for worker in running], timeout=1)
            for worker in running:
                for result in worker.poll():
                    record.add(result)
    print(f"{record.files} files in {time.perf_counter() - begin:.0f} s, each step at most {options.seconds:.0f} s")
    record.print()
    return 1 if record.faults else 0


@dataclass
class Record:
    """What became of all files."""

    files: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    mutations: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[Result] = field(default_factory=list)
    slowest: dict[str, Result] = field(default_factory=dict)
    largest: Result | None = None

    def add(self, result: Result) -> None:
        step = result.step
        if step.stage == "load and call":
            self.files += 1
            self.outcomes[result.outcome or "fault"] += 1
            self.mutations[step.mutation, result.outcome or "fault"] += 1
            if self.files % _TOLD_FILES == 0:
                print(f"{self.files} files, {len(self.faults)} faults", file=sys.stderr, flush=True)
        if result.fault:
            self.faults.append(result)
            print(f"seed {step.seed} ({step.kind}, {step.mutation}), {step.stage}: {result.fault}", flush=True)
        known = self.slowest.get(step.stage)
        if known is None or known.seconds < result.seconds:
            self.slowest[step.stage] = result
        if self.largest is None or self.largest.peak_mb < result.peak_mb:
            self.largest = result

    def print(self) -> None:
        print(", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common()))
        for mutation in sorted({mutation for mutation, _ in self.mutations}):
            told = {outcome: count for (name, outcome), count in self.mutations.items() if name == mutation}
            print(f"  {mutation}: {', '.join(f'{count} {outcome}' for outcome, count in told.items())}")
        for stage, result in self.slowest.items():
            print(f"slowest {stage}: {result.seconds:.2f} s (seed {result.step.seed}, {result.step.mutation})")
        if self.largest is not None:
            step = self.largest.step
            print(f"most memory added in a step: {self.largest.peak_mb} MB (seed {step.seed}, {step.stage})")
        print(f"{len(self.faults)} faults: foreign exceptions, crashes, hangs, wrong answers")


class Worker:
    """A process that tries files, and is replaced when one of them ends it or keeps it too long.

    Attributes:
        results: Where it tells what it does.
        is_running: Whether it has files to try.
    """

    def __init__(self, folder: Path, seeds: Iterator[int], options: argparse.Namespace) -> None:
        folder.mkdir()
        self._folder, self._seeds, self._options = folder, seeds, options
        self._step: Step | None = None
        self.is_running = True
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.results, there = spawn.Pipe()
        self._process = spawn.Process(
            target=try_files, args=(there, self._folder, self._options.memory_mb), daemon=True
        )
        self._process.start()
        there.close()
        self._step, self._since = None, time.perf_counter() + _START_SECONDS
        self._give_seed()

    def _give_seed(self) -> None:
        seed = next(self._seeds, None)
        self.is_running = seed is not None
        self.results.send(seed)

    def poll(self) -> Iterator[Result]:
        """What has become of steps since this was last asked."""
        try:
            while self.is_running and self.results.poll():
                told = self.results.recv()
                if isinstance(told, Step):
                    self._step, self._since = told, time.perf_counter()
                elif isinstance(told, Result):
                    yield told
                else:
                    self._step, self._since = None, time.perf_counter()
                    self._give_seed()
        except (EOFError, ConnectionResetError):
            self._process.join()
            yield self._ended(f"the process ended with {self._process.exitcode}")
        if self.is_running and time.perf_counter() - self._since > self._options.seconds:
            self._process.kill()
            yield self._ended("it took too long")

    def _ended(self, fault: str) -> Result:
        if self._step is None:
            raise RuntimeError(f"a worker before its first file: {fault}")
        result = Result(self._step, "", fault, time.perf_counter() - self._since, 0)
        self._start()
        return result


# In the worker


def try_files(results: Connection, folder: Path, memory_mb: int) -> None:
    """Try the files whose seeds come, until None comes."""
    import torch

    from builders.good_files import read_good_files, write_good_files

    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    if not any(folder.iterdir()):
        write_good_files(folder)
    good = read_good_files(folder)
    limit = _memory_mb("VmSize") + memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while (seed := results.recv()) is not None:
        _try_file(results, seed, good, folder / "changed.pt2")
        results.send(None)


def _try_file(results: Connection, seed: int, good: list[Any], path: Path) -> None:
    from builders.mutations import MUTATIONS, applies, mutate_file
    from builders.trial import COMMANDS, Fault, Trial

    draw = random.Random(seed)  # noqa: S311
    chosen = draw.choice(good)
    mutation = draw.choice([name for name in MUTATIONS if applies(name, chosen)])
    is_honest = mutate_file(draw, chosen, path, mutation)
    trial = Trial(path, chosen, is_honest)
    commands = ["check", draw.choice(COMMANDS)][: 1 + (seed % _COMMAND_EVERY == 0)]
    stages = {"load and call": trial.load_and_call, **{name: trial.command(name) for name in commands}}
    for stage, take in stages.items():
        step = Step(seed, chosen.kind, mutation, stage)
        results.send(step)
        outcome = fault = ""
        _forget_peak()
        before, begin = _memory_mb("VmRSS"), time.perf_counter()
        try:
            outcome = take() or ""
        except Fault as found:
            fault = str(found)
        seconds = time.perf_counter() - begin
        results.send(Result(step, outcome, fault, seconds, _memory_mb("VmHWM") - before))


def _memory_mb(field: str) -> int:
    """A figure of this process in /proc: VmSize, VmRSS or its peak, VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{field}:"))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    sys.exit(main())
