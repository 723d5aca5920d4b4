"""`intarsia doctor` and a backend that runs engines which another tool builds."""

from __future__ import annotations

import pytest

from intarsia.cli import doctor
from intarsia.core import registry
from intarsia.engines.tensorrt import TensorRTBackend
from intarsia.report import installation


@pytest.mark.parametrize(("missing", "state"), [(None, "works"), ("torch finds no CUDA GPU", "missing")])
def test_it_is_asked_what_is_missing(missing: str | None, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TensorRTBackend()
    monkeypatch.setattr(backend, "available", lambda: missing)
    monkeypatch.setattr(registry, "find_backend", lambda name: backend)
    monkeypatch.setattr(installation, "extra_requirements", lambda extra: {"torch": ">=2"})
    facts = doctor._examine_backend("tensorrt")
    assert (facts.state, facts.note) == (state, missing or "not tried: another tool builds its engines")
