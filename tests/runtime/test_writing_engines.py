"""Engines that write into their inputs: a stand-in that really does, exported, saved and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

import intarsia
from builders.hybrids import Buffer, Draft, aten, describe, hybrid
from builders.standin import engine_tensor, standin
from intarsia.core.op import RUN_ENGINE, run_engine_in_place
from intarsia.errors import EngineError, MutationError
from intarsia.runtime.program import Program

__all__ = ["standin"]

RECORD = "(f32[1, 3], f32[5, 3], i64[1]) -> (f32[1, 3], f32[5, 3] into 1)"
ACCUMULATE = "(f32[5, 3], f32[5, 3]) -> (f32[5, 3] into 0)"

pytestmark = pytest.mark.usefixtures("standin")


def recorder(name: str, function: str = "record", *, shown: bool = True) -> GraphModule:
    """A partition whose engine records a row in a cache and triples the row."""

    def fill(g: Draft) -> Any:
        row, cache, position = g.inputs("row cache position")
        made = g.op(RUN_ENGINE, [row, cache, position], g.get_attr("engine"), RECORD)
        tripled, written = g.item(made, 0), g.item(made, 1)
        if shown:
            g.op(aten.copy_.default, cache, written)
        return tripled

    return hybrid(fill, {"engine": engine_tensor(function, RECORD, name=name)})


def decoder(*parts: GraphModule, before: bool = False) -> GraphModule:
    """Partitions that record into one cache one after the other; returns the last row and the cache's sum."""

    def fill(g: Draft) -> Any:
        row, position = g.inputs("row position")
        cache = g.get_attr("cache")
        given = g.op(aten.mul.Tensor, cache, 1) if before else cache
        for index in range(len(parts)):
            row = g.part(f"part_{index}", row, given, position)
        return row, g.op(aten.sum.dim_IntList, g.get_attr("cache"), [0])

    attributes: dict[str, Any] = {f"part_{index}": part for index, part in enumerate(parts)}
    built = hybrid(fill, {"cache": Buffer(torch.zeros(5, 3)), **attributes})
    return describe(built, (torch.ones(1, 3), torch.tensor([0])))


def eager(calls: int, times: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What plain torch computes: each recorder writes the row that it is given."""
    cache, results = torch.zeros(5, 3), []
    for call in range(calls):
        row = torch.full((1, 3), call + 1.0)
        for _ in range(times):
            cache[call] = row
            row = row * 3
        results.append((row, cache.sum(0)))
    return results


@pytest.mark.parametrize("form", ["hybrid", "memory", "file", "module", "decomposed"])
@pytest.mark.parametrize("times", [1, 2])
def test_equals_eager_over_five_calls(times: int, form: str, tmp_path: Path) -> None:
    built = decoder(*[recorder(f"engine_{index}") for index in range(times)])
    exported = intarsia.export(built)
    assert list(exported.graph_signature.buffers_to_mutate.values()) == ["cache"]
    if form == "file":
        intarsia.save(exported, tmp_path / "decoder.pt2")
    runs: dict[str, Any] = {
        "hybrid": lambda: built,
        "memory": lambda: Program(exported),
        "file": lambda: intarsia.load(tmp_path / "decoder.pt2"),
        "module": exported.module,
        "decomposed": lambda: Program(exported.run_decompositions({})),
    }
    run = runs[form]()
    with torch.no_grad():
        for call, (row, total) in enumerate(eager(5, times)):
            found = run(torch.full((1, 3), call + 1.0), torch.tensor([call]))
            assert torch.equal(found[0], row)
            assert torch.equal(found[1], total)
    if isinstance(run, Program):
        assert run.writes["cache"].in_place, run.writes["cache"].reason
        assert run.writes["cache"].operators == ("intarsia.run_engine",)
        assert not exported.state_dict["cache"].any()


def test_writes_into_the_live_buffer() -> None:
    program = Program(intarsia.export(decoder(recorder("engine_0"))))
    live = program.state["cache"]
    address = live.data_ptr()
    program(torch.ones(1, 3), torch.tensor([2]))
    assert program.state["cache"] is live
    assert live.data_ptr() == address
    assert live[2].tolist() == [1, 1, 1]


def test_the_operator_changes_nothing_that_it_is_given() -> None:
    cache, row, position = torch.zeros(5, 3), torch.ones(1, 3), torch.tensor([1])
    engine = engine_tensor("record", RECORD)
    _, written = torch.ops.intarsia.run_engine([row, cache, position], engine, RECORD)
    assert written[1].tolist() == [1, 1, 1]
    assert not cache.any()
    _, written = run_engine_in_place([row, cache, position], engine, RECORD, (1,))
    assert written.data_ptr() == cache.data_ptr()
    assert cache[1].tolist() == [1, 1, 1]


def test_a_write_into_a_computed_value_is_refused() -> None:
    built = decoder(recorder("engine_0"), before=True)
    state = {name: value.clone() for name, value in built.named_buffers()}
    message = (
        r"engine 'part_0': found output 1 aliases input 1, which is computed \(%mul.*\), "
        r"expected a buffer or an input of the program\. Its update would be lost\. Register what the engine writes"
    )
    with pytest.raises(MutationError, match=message):
        intarsia.export(built)
    assert all(torch.equal(value, state[name]) for name, value in built.named_buffers())


def test_a_write_that_the_graph_does_not_show_is_refused() -> None:
    with pytest.raises(MutationError, match=r"output 1 aliases input 1 \('cache'\), and nothing shows it"):
        intarsia.export(decoder(recorder("engine_0", shown=False)))


def test_a_user_input_is_written() -> None:
    def fill(g: Draft) -> Any:
        total, x = g.inputs("total x")
        written = g.item(g.op(RUN_ENGINE, [total, x], g.get_attr("engine"), ACCUMULATE), 0)
        return g.op(aten.neg.default, g.op(aten.copy_.default, total, written))

    built = hybrid(fill, {"engine": engine_tensor("accumulate", ACCUMULATE)})
    exported = intarsia.export(describe(built, (torch.zeros(5, 3), torch.ones(5, 3))))
    assert list(exported.graph_signature.user_inputs_to_mutate.values()) == ["total"]
    total = torch.zeros(5, 3)
    assert torch.equal(Program(exported)(total, torch.ones(5, 3)), -torch.ones(5, 3))
    assert torch.equal(total, torch.ones(5, 3))


def test_an_engine_that_does_not_write_as_it_says_is_an_error() -> None:
    program = Program(intarsia.export(decoder(recorder("engine_0", "record a copy"))))
    with pytest.raises(EngineError, match=r"found output 1 in memory of its own, expected it in the memory of input 1"):
        program(torch.ones(1, 3), torch.tensor([0]))


def test_the_ledger_tells_the_write() -> None:
    program = intarsia.export(decoder(recorder("engine_0"), recorder("engine_1")))
    (entry,) = (entry for entry in intarsia.ledger(program).entries if entry.kind == "mutation")
    assert (entry.subject, entry.fate) == ("cache", "kept")
