"""Loading without the compiled forms of engines, which a file could have replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

import intarsia
from builders.standin import StandInBackend, standin
from intarsia.core.backend import BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.errors import EngineError, FormatError
from intarsia.runtime.methods import Methods

__all__ = ["standin"]
SIGNATURE = "(f32[2, 3]) -> (f32[2, 3])"
WEIGHT = "w" * 5000


def hybrid(payload: str, *, source: bool = True, weight: str = "") -> ExportedProgram:
    """A program of one engine, whose source doubles, whatever its payload does."""
    text = json.dumps({"function": "double", "weight": weight})
    places = [(text.index(weight), len(weight))] if weight else []
    built = BuiltEngine(payload.encode(), text.encode() if source else None, "1.0", "anything", {}, places)
    data = pack_engine(built, name="standin_0", backend="standin", signature=SIGNATURE)

    class Hybrid(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.engine = torch.frombuffer(bytearray(data), dtype=torch.uint8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.intarsia.run_engine.default([x], self.engine, SIGNATURE)[0]

    return export(Hybrid(), (torch.ones(2, 3),))


X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize("foreign", [False, True])
def test_compiled_forms_are_ignored(standin: StandInBackend, tmp_path: Path, *, foreign: bool) -> None:
    program = hybrid("halve")  # what a file with an exchanged payload would compute
    (torch.export.save if foreign else intarsia.save)(program, tmp_path / "a.pt2")
    loaded = intarsia.load(tmp_path / "a.pt2", engines="rebuild")
    assert torch.equal(loaded(X), 2 * X)
    assert standin.loaded == ["source of double"]


def test_the_payload_of_one_file_does_not_answer_for_another(standin: StandInBackend, tmp_path: Path) -> None:
    intarsia.save(hybrid("negate"), tmp_path / "hostile.pt2")
    intarsia.save(hybrid("double"), tmp_path / "good.pt2")
    hostile, good = intarsia.load(tmp_path / "hostile.pt2"), intarsia.load(tmp_path / "good.pt2")
    rebuilt = intarsia.load(tmp_path / "hostile.pt2", engines="rebuild")
    assert torch.equal(hostile(X), -X)
    assert torch.equal(good(X), 2 * X)
    assert torch.equal(rebuilt(X), 2 * X)


def test_engines_that_share_weights_are_rebuilt_and_saved_again(standin: StandInBackend, tmp_path: Path) -> None:
    methods = {"one": hybrid("halve", weight=WEIGHT), "two": hybrid("repeat", weight=WEIGHT)}
    intarsia.save(methods, tmp_path / "a.pt2")
    loaded: Any = intarsia.load(tmp_path / "a.pt2", engines="rebuild")
    assert isinstance(loaded, Methods)
    assert torch.equal(loaded.one(X), 2 * X)
    assert torch.equal(loaded.two(X), 2 * X)
    intarsia.save(loaded, tmp_path / "b.pt2")
    again: Any = intarsia.load(tmp_path / "b.pt2")
    assert torch.equal(again.two(X), 2 * X)
    assert not {"halve", "repeat"} & set(standin.loaded)


def test_an_engine_without_a_portable_form_is_one_error(standin: StandInBackend, tmp_path: Path) -> None:
    intarsia.save(hybrid("double", source=False), tmp_path / "a.pt2")
    with pytest.raises(EngineError, match=r"engine 'standin_0' in .*a\.pt2: found no portable form of it"):
        intarsia.load(tmp_path / "a.pt2", engines="rebuild")
    assert torch.equal(intarsia.load(tmp_path / "a.pt2")(X), 2 * X)


def test_another_word_is_one_error(tmp_path: Path) -> None:
    choice: Any = "rebuilt"
    with pytest.raises(FormatError, match=r"engines: found 'rebuilt', expected 'verify' or 'rebuild'\. Did you mean"):
        intarsia.load(tmp_path / "a.pt2", engines=choice)
