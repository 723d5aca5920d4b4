"""The five lines of the README run as they stand, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_prints_what_it_says(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    promised = re.search(r"print\(.*# (.*)", code)
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert promised is not None
    assert run.stdout.strip() == promised[1]
