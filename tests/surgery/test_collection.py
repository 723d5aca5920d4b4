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


def test_what_was_made_is_old_and_what_was_frozen_stays_so() -> None:
    gc.collect()
    with collection_paused():
        made = [[] for _ in range(2000)]
    assert not any(made is young for young in gc.get_objects(generation=0))
    assert any(made is old for old in gc.get_objects(generation=2))
    gc.freeze()
    try:
        with collection_paused():
            pass
        assert not any(made is thawed for thawed in gc.get_objects())  # what is frozen is not among them
    finally:
        gc.unfreeze()
