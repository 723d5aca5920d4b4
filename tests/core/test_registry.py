"""Backends are found by their entry points."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.core.registry import available_backends, find_backend
from intarsia.errors import EngineUnavailable


def test_openvino_is_registered() -> None:
    assert "openvino" in available_backends()


def test_a_backend_is_made_once(standin: Any) -> None:
    assert find_backend("standin") is standin
    assert find_backend("standin") is find_backend("standin")


def test_an_unknown_name_lists_the_known_ones(standin: Any) -> None:
    with pytest.raises(EngineUnavailable, match=r"backend 'openvina': .* one of broken, dotted.name, standin"):
        find_backend("openvina")


def test_a_mistyped_name_is_answered_with_the_near_one(standin: Any) -> None:
    with pytest.raises(EngineUnavailable, match=r"Did you mean 'standin'\?$"):
        find_backend("Standln")


def test_an_entry_point_that_fails_is_named(standin: Any) -> None:
    with pytest.raises(EngineUnavailable, match="no_such_module:Backend fails with ModuleNotFoundError"):
        find_backend("broken")


@pytest.mark.parametrize("name", ["dotted.name", "torch"])
def test_a_name_of_which_no_engine_can_have_its_own_is_refused(standin: Any, name: str) -> None:
    with pytest.raises(
        EngineUnavailable, match=rf"backend '{name}': .*StandInBackend is announced so, expected a name"
    ):
        find_backend(name)
