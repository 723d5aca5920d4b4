"""Garbage collection is put off while a graph is built, and is afterwards as it was before."""

from __future__ import annotations

import gc

import pytest

from intarsia.surgery.collection import collection_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_as_it_was_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(KeyError, match="False"), collection_paused():
            raise KeyError(gc.isenabled())
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
