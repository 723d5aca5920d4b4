"""What torch's own files tell without importing torch, which takes longer than reading a manifest by far.

Like `_torch`, the only place of its kind: each function says why no public name does. Tried on torch 2.13.0.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_SCHEMA = re.compile(r"^SCHEMA_VERSION = \((\d+), (\d+)\)$", re.MULTILINE)


def read_schema_version() -> tuple[int, int] | None:
    """The version of `intarsia._torch.graph_schema`, or None where the installed torch does not say it in this way.

    No public name tells it; it stands in a private module.
    """
    try:
        file = distribution("torch").locate_file("torch/_export/serde/schema.py")
        found = _SCHEMA.search(Path(str(file)).read_text(encoding="utf-8"))
    except (PackageNotFoundError, OSError):
        return None
    return (int(found[1]), int(found[2])) if found else None
