"""Kill savers at random moments, and look at what is left of the file.

    python benchmarks/crashes.py [--kills 200] [--weight-mb 16] [--folder .]

A saver is a process that saves one program and then another to one path, again and again, until SIGKILL ends it. After
each kill the file must be one of the two, byte for byte, and what the saver left beside it must be gone after the next
save. Exit code 1 when it is not so.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import intarsia


def make_program(seed: int, weight_mb: int) -> torch.export.ExportedProgram:
    torch.manual_seed(seed)
    table = torch.nn.Embedding(weight_mb * 2**20 // 4 // 1024, 1024)
    return torch.export.export(table, (torch.tensor([0]),))


def save_for_ever(path: Path, weight_mb: int) -> None:
    programs = [make_program(seed, weight_mb) for seed in (0, 1)]
    path.with_suffix(".ready").touch()
    while True:
        for program in programs:
            intarsia.save(program, path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--weight-mb", type=int, default=16)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder, "model.pt2")
        programs = [make_program(seed, options.weight_mb) for seed in (1, 0)]
        whole, seconds = [], 0.0
        for program in programs:
            start = time.perf_counter()
            intarsia.save(program, path)
            seconds = time.perf_counter() - start
            whole.append(digest(path))
        damaged, left, changed = kill_savers(path, whole, seconds, options)
        intarsia.save(programs[0], path)
        debris = [entry.name for entry in path.parent.iterdir() if entry != path]
    print(f"{options.kills} savers killed, within {5 * seconds:.2f} s after they began to save")
    print(f"{damaged} files damaged; {changed} times the new file stood there, {options.kills - changed} the old one")
    print(f"{left} savers left an unfinished file; {len(debris)} of those are there after one more save")
    return 1 if damaged or debris else 0


def kill_savers(path: Path, whole: list[str], seconds: float, options: argparse.Namespace) -> tuple[int, int, int]:
    fork = multiprocessing.get_context("fork")
    ready = path.with_suffix(".ready")
    damaged = left = changed = 0
    before = digest(path)
    for _ in range(options.kills):
        saver = fork.Process(target=save_for_ever, args=(path, options.weight_mb))
        saver.start()
        while not ready.exists():
            time.sleep(0.001)
        time.sleep(random.uniform(0, 5 * seconds))  # noqa: S311
        saver.kill()
        saver.join()
        ready.unlink()
        after = digest(path)
        damaged += after not in whole
        changed += after != before
        left += len(list(path.parent.iterdir())) - 1
        before = after
    return damaged, left, changed


if __name__ == "__main__":
    sys.exit(main())
