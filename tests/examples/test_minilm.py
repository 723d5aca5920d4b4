"""The demo runs to its end in a folder of its own, and what it prints is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "minilm.py"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path_factory.mktemp("demo"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_attention_stays_in_torch_between_engines(printed: str) -> None:
    engines = int(re.search(r"nodes, (\d+) engines", printed)[1])  # type: ignore[index]
    assert 6 <= engines < 20
    assert re.search(r"^torch +6  aten.scaled_dot_product_attention", printed, re.MULTILINE)


def test_the_error_against_eager_is_small(printed: str) -> None:
    error = float(re.search(r"largest error against the eager model: (\S+)", printed)[1])  # type: ignore[index]
    assert error <= 1e-4


def test_the_export_equals_the_retraced_one(printed: str) -> None:
    assert "equal to the bit to the retraced export: True" in printed


def test_meaning_survives(printed: str) -> None:
    row = next(line for line in printed.splitlines() if line.endswith("A cat sleeps on the sofa."))
    itself, kitten, _, market = (float(value) for value in row.split()[:4])
    assert itself == 1
    assert kitten > 0.5
    assert abs(market) < 0.2
