"""Each example runs to its end in a folder of its own, and what it prints is right."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"

# transformers imports torchao where it is installed, as it is beside ExecuTorch. It complains of kernels that it lacks
# here and of its own use of torch. ExecuTorch's runtime logs what it finds.
OF_OTHERS = re.compile(
    r"Failed to load .*/torchao/|register_constant\(\) on Enum subclasses is deprecated|"
    r"\[(cpuinfo_utils|OpenvinoBackend)\.cpp:\d+\] "
)

# Beginnings of lines of what each one prints; `minilm.py` has a test of its own.
PRINTED = {
    "own_module": [
        "3 of 3 operators in 1 engine",
        "outputs: (2, 4) torch.float32",
        "verification: ok, 3 calls",
    ],
    "split_module": [
        "partitions: submod_0, submod_1",
        "right: True",
        "scaled (1, 2), mean (2,), calls so far 1",
        "scaled (5, 2), mean (2,), calls so far 2",
    ],
    "dynamic_shapes": [
        "inputs (1, 2): scores (1, 2, 4), sums (1, 4)",
        "inputs (8, 64): scores (8, 64, 4), sums (8, 4)",
        "inputs (2, 9): scores (2, 9, 4), sums (2, 4)",
        "refused: input 'tokens': found size 9 in dimension 0 (shape [9, 5]), expected 1 to 8.",
        "refused: input 'weights': found size 6 in dimension 1 (shape [2, 6]), expected 5, the same as dimension 1 of",
        "verification: ok, 6 calls",
    ],
    "structures": [
        "keys: found, mask, previous",
        "near: Detection (2, 4) (2, 3)",
        "the mask is the caller's own tensor: True",
        "refused: input 'features': found no key 'far' and key 'fra', expected the keys 'near', 'far'.",
        "right: True",
    ],
    "moe_decode": [
        "torch     8  aten._weight_int4pack_mm_for_cpu.default   is not known to OpenVINO",
        "torch     4  aten.index_copy.default                    writes part of the state, which torch does in place",
        "two conversations in turns, as each alone: 130 of 130 steps equal to the bit",
        "from the file, as in memory: 130 of 130 steps equal to the bit",
        "without a retrace, as with one: 130 of 130 steps equal to the bit",
        "as eager torch: 130 of 130 steps choose the same token, largest logit error",
    ],
    "mixtral_decode": [
        "torch     4  aten.bmm.default                           named in torch_executed_ops",
        "torch     4  aten.index_copy.default                    writes part of the state, which torch does in place",
        "caches: key_cache_0, value_cache_0, cumulative_length_0, key_cache_1, value_cache_1, cumulative_length_1",
        "two conversations in turns, as each alone: 130 of 130 steps equal to the bit",
        "from the file, as in memory: 130 of 130 steps equal to the bit",
        "without a retrace, as with one: 130 of 130 steps equal to the bit",
        "as transformers generates: 130 of 130 steps choose the same token, largest logit error",
    ],
    "torch_operators": [
        "6 of 7 operators in 1 engine",
        "torch    1  aten.special_entr.default  is not known to OpenVINO",
        "4 of 7 operators in 3 engines",
        "torch    1  aten.sort.default          named in torch_executed_ops",
        "2 of 7 operators in 1 engine",
        "torch    2  aten.linear.default        in a block of 1 operator, below min_block_size",
        "everything: 1 engines, right: True",
        "kept: 3 engines, right: True",
        "large: 1 engines, right: True",
    ],
}


FOR_EXECUTORCH = {
    "moe_decode_pte": [
        "as the .pt2 with torch's int4 operator: 66 of 66 steps choose the same token, largest logit error",
        "as eager torch: 66 of 66 steps choose the same token, largest logit error",
    ],
    "minilm_pte": [
        "1 x 9: largest error against the .pt2 ",
        "2 x 10: largest error against the .pt2 ",
        "1 x 16: largest error against the .pt2 ",
        "4 x 16: largest error against the .pt2 ",
        "64 x 16: largest error against the .pt2 ",
    ],
}
if importlib.util.find_spec("executorch") is not None:
    PRINTED |= FOR_EXECUTORCH


@cache
def run(name: str) -> subprocess.CompletedProcess[str]:
    with TemporaryDirectory() as folder:
        command = [sys.executable, str(FOLDER / f"{name}.py")]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_example_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PRINTED, *FOR_EXECUTORCH, "minilm", "tensorrt_check"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would go on")
def test_the_check_of_tensorrt_says_what_it_needs() -> None:
    found = run("tensorrt_check")
    needed = "This check needs an NVIDIA GPU and a build of torch for CUDA: torch finds no GPU."
    assert (found.returncode, found.stdout.splitlines()[-1], found.stderr) == (2, needed, "")


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_says(name: str) -> None:
    found = run(name)
    assert found.returncode == 0, found.stderr
    lines = "\n" + found.stdout
    assert [line for line in PRINTED[name] if f"\n{line}" not in lines] == [], found.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_warns_of_nothing(name: str) -> None:
    assert [line for line in run(name).stderr.splitlines() if not OF_OTHERS.search(line)] == []


def test_the_own_module_takes_five_lines_of_intarsia() -> None:
    text = (FOLDER / "own_module.py").read_text(encoding="utf-8")
    start = text.index("hybrid =")
    assert text[start : text.index("\n\n", start)].count("\n") == 4
