"""Engines of a `.pte` that the libraries of this machine do not take."""

from __future__ import annotations

from builders.standin import StandInBackend, standin  # noqa: F401 - a fixture
from intarsia.formats.manifest import EngineEntry
from intarsia.formats.pte.fitness import find_misfits


def entry(backend: str = "standin", version: str = "1.0") -> EngineEntry:
    return EngineEntry("engine", "engine_0", backend, version, "anything", "() -> ()", 1, 1, 0, "")


def test_an_engine_of_another_version_does_not_fit(standin: StandInBackend) -> None:  # noqa: F811
    (told,) = find_misfits([entry(), entry(version="2.0")])
    assert told.startswith("engine 'engine_0': version 2.0 built it for anything, and a .pte holds no portable form")


def test_a_library_that_python_does_not_see_is_not_judged(standin: StandInBackend) -> None:  # noqa: F811
    standin.missing = "it is not installed"
    assert list(find_misfits([entry(version="2.0"), entry(backend="unknown")])) == []
