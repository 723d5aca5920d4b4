"""Files of one program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from intarsia.formats.archive.layout import METHOD
from intarsia.formats.loading import LoadedMethod, load_methods
from intarsia.formats.saving import save_methods


def save_pt2(program: torch.export.ExportedProgram, path: str | Path, *, facts: Mapping[str, Any]) -> None:
    """Write a file of one program."""
    save_methods({METHOD: program}, path, facts={METHOD: facts})


def load_pt2(path: str | Path) -> LoadedMethod:
    """What a file of one program holds."""
    (method,) = load_methods(path).values()
    return method
