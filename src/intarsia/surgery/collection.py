"""Python's garbage collection, put off while a graph is built.

A graph is one large heap of objects that all live. Collections in between find nothing, and each walks over everything
that the process holds: time would grow faster than the graph, and with what else there is in the process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Put collection off, in the whole process, until the block ends; it is as it was before afterwards.

    What was made in the block counts as old afterwards, for it lives: freezing and thawing moves it there without
    walking over it. Where the process has frozen objects of its own that is left undone, for it would thaw them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()
