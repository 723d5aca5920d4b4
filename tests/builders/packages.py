"""Packages that are installed as a user installs them, in a folder of their own and without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def install(source: Path, folder: Path) -> Path:
    """Install the package whose pyproject.toml lies in `source`; the folder that Python then has to look in.

    Args:
        source: Left as it is.
        folder: An empty folder.
    """
    shutil.copytree(source, folder / "source")
    site = folder / "site"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(folder / "source")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return site
