"""A stand-in backend, so that what concerns engines is tested without any engine library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch

from intarsia.core import instance, registry
from intarsia.core.backend import BuiltEngine, Engine
from intarsia.core.container import pack_engine
from intarsia.errors import EngineRefused


class StandInBackend:
    """Its payload is the name of a function in `FUNCTIONS`; a payload that starts with `other:` it refuses."""

    name = "standin"
    FUNCTIONS: Mapping[str, Any] = {
        "double": lambda inputs: [2 * inputs[0]],
        "negate": lambda inputs: [-inputs[0]],
        "repeat": lambda inputs: [torch.cat([inputs[0], inputs[0], inputs[0][:1]])],
        "sum": lambda inputs: [inputs[0].sum(), inputs[0].sum(0)],
        "longest": lambda inputs: [max(inputs, key=len).clone()],
        "halve": lambda inputs: [inputs[0][::2].clone()],
        "record": lambda inputs: [inputs[0] * 3, inputs[1].index_copy_(0, inputs[2], inputs[0])],
        "record a copy": lambda inputs: [inputs[0] * 3, inputs[1].index_copy(0, inputs[2], inputs[0])],
        "accumulate": lambda inputs: [inputs[0].add_(inputs[1])],
    }

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.missing: str | None = None

    def check_options(self, options: Mapping[str, Any]) -> None:
        """It takes any option."""

    def supports(self, node: torch.fx.Node) -> str | None:
        return None

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        raise NotImplementedError

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> Engine:
        text = bytes(payload).decode()
        if text.startswith("other:"):
            raise EngineRefused("payload", found="another version", expected="this one", fix="Rebuild it.")
        self.loaded.append(text)
        return self._engine(text)

    def rebuild(self, source: memoryview, options: Mapping[str, Any]) -> Engine:
        name = json.loads(bytes(source))["function"]
        self.loaded.append(f"source of {name}")
        return self._engine(name)

    def available(self) -> str | None:
        return self.missing

    def accepts(self, version: str, target: str) -> str | None:
        return None if (version, target) == ("1.0", "anything") else f"version {version} built it for {target}"

    def _engine(self, name: str) -> Engine:
        function = self.FUNCTIONS[name]

        def engine(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            result: list[torch.Tensor] = function(inputs)
            return result

        return engine


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInBackend]:
    """The stand-in backend, found by its name as an installed one would be."""
    group = "intarsia.backends"
    entries = EntryPoints(
        [
            EntryPoint("standin", f"{__name__}:StandInBackend", group),
            EntryPoint("broken", "no_such_module:Backend", group),
            EntryPoint("dotted.name", f"{__name__}:StandInBackend", group),
            EntryPoint("torch", f"{__name__}:StandInBackend", group),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", entries.select)
    backend = StandInBackend()
    monkeypatch.setattr(EntryPoint, "load", lambda entry: _loaded(entry, backend))
    monkeypatch.setattr(instance, "_entries", {})
    monkeypatch.setattr(instance, "_by_identity", WeakValueDictionary())
    registry.find_backend.cache_clear()
    yield backend
    registry.find_backend.cache_clear()


def _loaded(entry: EntryPoint, backend: StandInBackend) -> Callable[[], StandInBackend]:
    if entry.name != "standin":
        raise ModuleNotFoundError("No module named 'no_such_module'")
    return partial(_same, backend)


def _same(backend: StandInBackend) -> StandInBackend:
    return backend


def engine_tensor(function: str, signature: str, *, source: str | None = None, name: str = "standin_0") -> torch.Tensor:
    """A stand-in engine's container as the constant that a graph holds."""
    encoded = None if source is None else json.dumps({"function": source}).encode()
    built = BuiltEngine(function.encode(), encoded, "1.0", "anything", {})
    data = pack_engine(built, name=name, backend="standin", signature=signature)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
