"""`intarsia.verify`: right programs pass, and each way to break one is told."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

import intarsia
from builders.hybrids import Buffer, Draft, aten, captured, describe, hybrid, parameter, split, tensor
from intarsia import surgery
from intarsia._torch import bounds_of
from intarsia.errors import (
    ArgumentError,
    CaptureError,
    ConventionError,
    EngineBuildFailed,
    EngineRefused,
    EngineUnavailable,
    FormatError,
)
from intarsia.runtime.methods import run_methods
from intarsia.runtime.program import Program
from intarsia.verification import Check, Drawing, Stages, Verification, verify
from intarsia.verification.symbols import ranges_difference

CORNERS = ("x.shape[0] = 1", "x.shape[0] = 2", "x.shape[0] = 3", "x.shape[0] = 6")
SHAPES = {"x": {0: Dim("batch", min=1, max=6)}}


class Counter(torch.nn.Module):
    """Two outputs, weights, and a buffer that every call writes and the next one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.linear(x).tanh()
        self.total.add_(y.sum(0))
        return {"rows": [y, y - self.total], "count": x.shape[0]}


def counter() -> tuple[Counter, GraphModule]:
    torch.manual_seed(0)
    model = Counter().eval()
    module = split(captured(model, (torch.ones(3, 4),), dynamic_shapes=SHAPES), lambda index: index // 2)
    (x,) = [node for node in module.graph.find_nodes(op="placeholder") if node.name == "x"]
    module.meta["range_constraints"] = {x.meta["val"].shape[0].node.expr: bounds_of(1, 6)}
    return model, module


def stages(**replaced: Callable[..., Any]) -> Stages:
    return dataclasses.replace(Stages(surgery.export, surgery.retrace, Program, run_methods), **replaced)


def broken(damage: Callable[[ExportedProgram], ExportedProgram | None]) -> Stages:
    """Stages whose export is damaged afterwards."""

    def export(module: GraphModule, args: Any, kwargs: Any) -> ExportedProgram:
        program = surgery.export(module, args, kwargs)
        return damage(program) or program

    return stages(export=export)


def failed(result: Verification) -> set[str]:
    assert not result.ok
    assert "FAILED" in str(result)
    return {check.name for check in result.parity if check.ok is False}


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_hybrid_passes_at_every_corner_against_its_model_and_nothing_is_changed() -> None:
    model, module = counter()
    before = state_of(model), state_of(module), str(module.graph)
    result = intarsia.verify(module, model)
    assert result.ok, str(result)
    assert result.sizes == CORNERS
    assert result.calls == 12
    assert all(check.ok for check in result.parity)
    names = ["output['rows'][0]", "output['rows'][1]", "output['count']", "state 'total'"]
    assert [leaf.name for leaf in result.leaves] == names
    assert result.findings == ()
    for held, now in zip(before[:2], (state_of(model), state_of(module)), strict=True):
        assert all(torch.equal(held[name], now[name]) for name in held)
    assert str(module.graph) == before[2]


@pytest.mark.parametrize("decompose", [False, True])
def test_a_program_a_loaded_one_and_a_file_pass(tmp_path: Path, decompose: bool) -> None:
    model, _ = counter()
    program = torch.export.export(model, (torch.ones(3, 4),), dynamic_shapes=SHAPES)
    program = program.run_decompositions({}) if decompose else program
    path = tmp_path / "counter.pt2"
    intarsia.save(program, path)
    for subject in (program, intarsia.load(path), path, str(path)):
        result = intarsia.verify(subject, model)
        assert result.ok, str(result)
        assert result.sizes == CORNERS
    assert not program.state_dict["total"].any()


@pytest.mark.parametrize("from_file", [False, True])
def test_a_program_that_reads_a_number_from_a_tensor_passes(tmp_path: Path, from_file: bool) -> None:
    class Chooses(torch.nn.Module):
        def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return x[row] * 2

    model, subject = Chooses(), tmp_path / "chooses.pt2"
    inputs = [((torch.randn(3, 4), torch.tensor(row)), {}) for row in (0, 2)]
    hybrid = intarsia.compile(model, inputs[0][0])
    intarsia.save(hybrid, subject)
    assert intarsia.verify(subject if from_file else hybrid, model, inputs).ok


def test_engines_pass_and_their_bytes_are_not_copied() -> None:
    model, _ = counter()
    module = intarsia.compile(model, (torch.ones(3, 4),), dynamic_shapes=SHAPES)
    result = intarsia.verify(module, model)
    assert result.ok, str(result)
    assert 0 < max(leaf.absolute_error for leaf in result.leaves) < 1e-4


def test_a_wrong_reference_fails_on_its_leaves_alone() -> None:
    model, module = counter()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.linear.bias += 0.01
    result = intarsia.verify(module, other)
    assert failed(result) == set()
    assert [leaf.name for leaf in result.leaves if leaf.ok] == ["output['count']"]
    with torch.no_grad():
        rows = other(torch.ones(1, 4))["rows"][0] - copy.deepcopy(model)(torch.ones(1, 4))["rows"][0]
    assert 0 < float(rows.abs().max()) < 0.02


def test_swapped_outputs_are_told() -> None:
    def exchange(program: ExportedProgram) -> None:
        (output,) = program.graph.find_nodes(op="output")
        values = list(output.args[0])
        tensors = [i for i, node in enumerate(values) if node.name.startswith(("tanh", "sub"))]
        first, second = tensors[-2:]
        values[first], values[second] = values[second], values[first]
        output.args = (tuple(values),)
        program.graph_module.recompile()

    _, module = counter()
    result = verify(module, None, None, stages=broken(exchange))
    assert {"outputs", "graph"} <= failed(result)
    assert "call 1 (x.shape[0] = 1): output['rows'][0]: other bits" in result.check("outputs").detail


def pair_hybrid() -> GraphModule:
    """`(x + w, x * v)`, and `v` is written with `x`."""

    def fill(g: Draft) -> Any:
        x, w, v = g.placeholder("x"), g.get_attr("w"), g.get_attr("v")
        results = g.op(aten.add.Tensor, x, w), g.op(aten.mul.Tensor, x, v)
        g.op(aten.copy_.default, v, x)
        return results

    attributes = {"w": parameter(tensor(1, 3)), "v": Buffer(tensor(2, 3))}
    return describe(hybrid(fill, attributes), (tensor(3, 3),))


def lose_write(program: ExportedProgram) -> None:
    signature = program.graph_signature
    (output,) = program.graph.find_nodes(op="output")
    kept = [i for i, spec in enumerate(signature.output_specs) if spec.kind.name == "USER_OUTPUT"]
    output.args = (tuple(output.args[0][i] for i in kept),)
    signature.output_specs = [signature.output_specs[i] for i in kept]
    program.graph_module.recompile()


def test_a_lost_write_is_told() -> None:
    assert verify(pair_hybrid(), None, None, stages=stages()).ok
    result = verify(pair_hybrid(), None, None, stages=broken(lose_write))
    assert failed(result) == {"outputs", "state", "graph"}
    assert result.check("state").detail.startswith("call 1: 'v': other bits")
    assert result.check("outputs").detail.startswith("call 2: output[1]")
    assert "'v' is left as nothing" in result.check("graph").detail


def test_a_lost_write_leaves_the_hybrid_as_it_was() -> None:
    module = pair_hybrid()
    verify(module, None, None, stages=broken(lose_write))
    assert torch.equal(module.v, tensor(2, 3))


def test_a_weight_that_differs_in_one_bit_is_told() -> None:
    def flip(program: ExportedProgram) -> None:
        other = program.state_dict["w"].detach().clone()
        other.view(torch.int32)[1] ^= 1
        program.state_dict["w"] = parameter(other)

    result = verify(pair_hybrid(), None, None, stages=broken(flip))
    assert failed(result) == {"outputs", "graph", "signature"}


def test_state_of_another_kind_is_told() -> None:
    def turn(program: ExportedProgram) -> None:
        (spec,) = [spec for spec in program.graph_signature.input_specs if spec.target == "v"]
        spec.persistent = False
        program.constants["v"] = program.state_dict.pop("v")

    result = verify(pair_hybrid(), None, None, stages=broken(turn))
    assert failed(result) == {"signature"}
    assert result.check("signature").detail == "'v' is a non-persistent buffer, and a buffer in the retraced program"


def test_a_wrong_range_is_told() -> None:
    def narrow(program: ExportedProgram) -> None:
        ranges = program.range_constraints
        (symbol,) = ranges
        ranges[symbol] = type(ranges[symbol])(1, 5)

    result = verify(counter()[1], None, None, stages=broken(narrow))
    assert failed(result) == {"ranges"}
    assert result.check("ranges").detail == "size_0 is 1 to 5, and 1 to 6 in the retraced program"


def test_another_structure_of_outputs_is_told() -> None:
    def flatten(program: ExportedProgram) -> None:
        spec = torch.utils._pytree.tree_structure([0, 0])
        entry = program.module_call_graph[0]
        entry.signature = dataclasses.replace(entry.signature, out_spec=spec)

    result = verify(pair_hybrid(), None, None, stages=broken(flatten))
    assert failed(result) == {"structure"}


def test_a_range_that_the_graph_itself_refuses_is_told() -> None:
    def fill(g: Draft) -> Any:
        return g.op(aten.add.Tensor, g.placeholder("x"), g.get_attr("w"))

    module = describe(hybrid(fill, {"w": parameter(tensor(1, 3))}), (tensor(2, 3),))
    program = surgery.export(module)
    (node,) = [node for node in program.graph.nodes if node.name == "x"]
    node.meta["val"] = node.meta["val"][:2]
    result = intarsia.verify(program)
    assert "calls" in failed(result)
    assert "the graph itself raises RuntimeError" in result.check("calls").detail
    assert "pass inputs that do" in result.check("calls").detail
    assert ".." not in result.check("calls").detail
    assert [result.check(name).ok for name in ("outputs", "state", "inputs")] == [None] * 3
    assert result.check("outputs").detail == "no call succeeded"
    assert str(result).startswith("verification: FAILED, 1 call\n")


@pytest.mark.parametrize("kind", [EngineUnavailable, EngineRefused, EngineBuildFailed])
def test_an_engine_that_cannot_be_made_here_is_no_difference(kind: type[Exception]) -> None:
    class Unable(Program):
        def __call__(self, *_: Any, **__: Any) -> Any:
            raise kind("backend 'mine'", found="none", expected="one", fix="Install it.")  # type: ignore[call-arg]

    with pytest.raises(kind, match=r"^backend 'mine': found none, expected one. Install it.$"):
        verify(pair_hybrid(), None, None, stages=stages(run=Unable))


def test_a_retrace_that_fails_is_a_finding_and_no_failure() -> None:
    def refuse(*_: Any) -> ExportedProgram:
        raise CaptureError("the hybrid", found="a fault", expected="none", fix="Mend it.")

    result = verify(pair_hybrid(), None, None, stages=stages(retrace=refuse))
    assert result.ok
    assert [check.ok for check in result.parity] == [True] * 4 + [None] * 4
    assert result.findings[0].startswith("the retrace itself is wrong: the hybrid: found a fault")


def test_a_retrace_that_is_wrong_is_a_finding_and_no_failure() -> None:
    """torch 2.13 binds the keywords of a graph module by position."""

    def fill(g: Draft) -> Any:
        x, key, value = g.inputs("x key value")
        return g.op(aten.sub.Tensor, g.op(aten.mul.Tensor, x, key), value)

    def naive(module: GraphModule, args: Any, kwargs: Any) -> ExportedProgram:
        return torch.export.export(module, args, kwargs)

    x, key, value = (tensor(seed, 3) for seed in (1, 2, 3))
    module = describe(hybrid(fill), (x, key, value))
    calls = [((x,), {"value": value, "key": key})]
    result = verify(module, None, calls, stages=stages(retrace=naive))
    assert result.ok, str(result)
    assert "the retrace itself is wrong: call 1: output: other bits" in result.findings[1]
    assert result.check("graph").ok is None
    assert "not held against the program" in result.check("graph").detail
    assert all(check.ok for check in verify(module, None, calls, stages=stages()).parity)


def test_a_program_that_torch_cannot_decompose_is_compared_as_it_is() -> None:
    """Two entries share one storage, and one is written."""

    def fill(g: Draft) -> Any:
        v, w = g.get_attr("v"), g.get_attr("w")
        g.op(aten.add_.Tensor, v, g.placeholder("x"))
        return g.op(aten.mul.Tensor, w, 2.0)

    storage = tensor(1, 3)
    module = describe(hybrid(fill, {"v": Buffer(storage), "w": Buffer(storage.view(3))}), (tensor(3, 3),))
    result = verify(module, None, None, stages=stages())
    assert result.ok, str(result)
    assert "compared as they are, for run_decompositions fails on the program" in result.check("graph").detail

    def rewire(program: ExportedProgram) -> None:
        (node,) = program.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        node.args = (node.args[0], 3.0)
        program.graph_module.recompile()

    wrong = verify(module, None, None, stages=broken(rewire))
    assert failed(wrong) == {"outputs"}
    assert wrong.check("graph").ok is None


def test_a_write_that_casts_is_compared_by_what_the_calls_do_alone() -> None:
    def fill(g: Draft) -> Any:
        v, x = g.get_attr("v"), g.placeholder("x")
        g.op(aten.copy_.default, v, x)
        return g.op(aten.mul.Tensor, v, 3)

    module = describe(hybrid(fill, {"v": Buffer(tensor(1, 3))}), (tensor(2, 3, dtype=torch.float64),))
    result = verify(module, None, None, stages=stages())
    assert result.ok, str(result)
    assert result.check("graph").ok is None
    assert "torch does not keep the cast" in result.check("graph").detail


def test_random_numbers_are_the_same_on_all_sides_and_the_callers_go_on() -> None:
    def fill(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("x"), g.op(aten.rand.default, [3]))

    module = describe(hybrid(fill), (tensor(1, 3),))
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    result = intarsia.verify(module)
    assert result.ok, str(result)
    assert torch.equal(torch.rand(2), expected)


def test_random_numbers_are_others_in_every_call() -> None:
    def fill(g: Draft) -> Any:
        return g.op(aten.mul.Tensor, g.placeholder("x"), g.op(aten.rand.default, [3]))

    returned: list[torch.Tensor] = []

    class Watched(Program):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            returned.append(super().__call__(*args, **kwargs))
            return returned[-1]

    inputs = [((torch.ones(3),), {})]
    result = verify(describe(hybrid(fill), (torch.ones(3),)), None, inputs, stages=stages(run=Watched))
    assert result.ok, str(result)
    first, second, third = {tuple(value.tolist()) for value in returned}
    assert len({*first, *second, *third}) == 9


def test_drawn_inputs_are_others_at_every_corner() -> None:
    rows: set[tuple[float, ...]] = set()

    class Watched(Program):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            rows.add(tuple(args[0][0].tolist()))
            return super().__call__(*args, **kwargs)

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("b", min=1, max=6)},))
    assert verify(program, None, None, stages=stages(run=Watched)).ok
    assert len(rows) == len(CORNERS)


def test_the_ranges_of_a_program_are_those_of_its_retrace() -> None:
    """Without them torch takes 1 out of a range that begins there."""
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("b", min=1, max=6)},))
    result = intarsia.verify(program)
    assert result.check("ranges") == Check("ranges", True)
    assert result.findings == ()


def test_bodies_of_conditions_are_compared_by_what_they_compute() -> None:
    class Choice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))

    def swap(program: ExportedProgram) -> None:
        one, other = program.graph.find_nodes(op="get_attr")
        one.target, other.target = other.target, one.target
        program.graph_module.recompile()

    module = captured(Choice(), (torch.ones(3),))
    assert verify(module, None, None, stages=stages()).ok
    assert {"outputs", "graph"} <= failed(verify(module, None, None, stages=broken(swap)))


@pytest.mark.parametrize("writes", [False, True])
def test_a_check_of_a_constants_type_that_the_retrace_repeats_is_no_difference(writes: bool) -> None:
    class Converts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if writes:
                self.calls.add_(1)
            return x + self.table.to(torch.float16).to(torch.float64) + torch.tensor(2).to(torch.float32)

    program = torch.export.export(Converts(), (torch.ones(4),))
    for decomposed in (program, program.run_decompositions({})):
        result = intarsia.verify(decomposed, Converts())
        assert result.ok, str(result)
        assert result.check("graph").ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_check_of_a_type_that_was_lost_is_told(dtype: torch.dtype) -> None:
    """Of two checks, each of another tensor, the first or the second one."""

    class Converts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float16).to(torch.float64)

    def lose(program: ExportedProgram) -> None:
        checks = program.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default)
        (lost,) = [node for node in checks if node.kwargs["dtype"] is dtype]
        program.graph.erase_node(lost)
        program.graph_module.recompile()

    module = torch.export.export(Converts(), (torch.ones(4),)).module(check_guards=False)
    result = verify(module, None, None, stages=broken(lose))
    assert result.check("graph").ok is False
    assert "effect" in result.check("graph").detail


def test_given_inputs_are_used_and_said() -> None:
    model, module = counter()
    result = intarsia.verify(module, model, inputs=[((torch.full((2, 4), math.nan),), {}), ((torch.ones(5, 4),), {})])
    assert result.ok, str(result)
    assert result.calls == 6
    assert result.sizes == ()
    assert result.findings == ("inputs were given, so the corners of the ranges were not tried",)


def test_given_inputs_are_left_as_they_are() -> None:
    def fill(g: Draft) -> Any:
        x = g.placeholder("x")
        return g.op(aten.mul.Tensor, g.op(aten.add_.Tensor, x, 1.0), 2.0)

    x = tensor(1, 3)
    result = intarsia.verify(describe(hybrid(fill), (x,)), inputs=[((x,), {})])
    assert result.ok, str(result)
    assert torch.equal(x, tensor(1, 3))


def test_inputs_of_another_type_are_told() -> None:
    def exported(*args: Any, **options: Any) -> ExportedProgram:
        return torch.export.export(torch.nn.ReLU(), args, **options)

    floats, dynamic = exported(torch.ones(3, 4)), exported(torch.ones(3, 4), dynamic_shapes=({0: Dim("b")},))
    assert not ranges_difference(floats, exported(torch.ones(3, 4)))
    told = ranges_difference(floats, exported(torch.ones(3, 4).double()))
    assert told == "input 'input' is float32[3, 4], and float64[3, 4] in the retraced program"
    assert "float32[size_0, 4], and float32[3, 4]" in ranges_difference(dynamic, floats)


def test_given_inputs_that_do_not_fit_are_refused() -> None:
    program = surgery.export(counter()[1])
    with pytest.raises(ArgumentError, match="1 to 6"):
        intarsia.verify(program, inputs=[((torch.ones(7, 4),), {})])


@pytest.mark.parametrize("inputs", [torch.ones(3, 4), [torch.ones(3, 4)], [], [((torch.ones(3, 4),), ())]])
def test_inputs_in_another_form_are_refused(inputs: Any) -> None:
    with pytest.raises(ConventionError, match="pairs of positional"):
        intarsia.verify(counter()[1], inputs=inputs)


class Tokens(torch.nn.Module):
    """Tokens that only engines see: in the rows of two tables, and perhaps compared in an engine too."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = torch.nn.Embedding(11, 4), torch.nn.Embedding(5, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.large(tokens) + self.small(tokens).tanh()


def test_tokens_that_only_an_engine_reads_are_drawn_from_the_smaller_table() -> None:
    torch.manual_seed(0)
    model = Tokens().eval()
    program = intarsia.export(intarsia.compile(model, (torch.zeros(30, dtype=torch.int64),)))
    assert [node.name for node in program.graph.find_nodes(op="call_function", target=aten.embedding.default)] == []
    (tokens,) = Drawing(program).draw({}, 0).args
    assert set(tokens.tolist()) == set(range(5))
    result = intarsia.verify(program, model)
    assert result.ok, str(result)
    assert result.findings == ()


def test_integers_that_an_engine_takes_for_something_else_are_asked_for() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens.float() * 0.5

    model = Scaled().eval()
    module = intarsia.compile(model, (torch.zeros(3, dtype=torch.int32),))
    assert intarsia.coverage(module).engines
    with pytest.raises(ConventionError, match=r"'tokens'.*integers whose use.*inputs="):
        intarsia.verify(module)
    assert intarsia.verify(module, model, [((torch.tensor([10, 0, 3], dtype=torch.int32),), {})]).ok
    result = intarsia.verify(module, model, example=((torch.tensor([4, 2, 4], dtype=torch.int32),), {}))
    assert result.ok, str(result)
    assert result.findings == ("the integers of input 'tokens' were drawn from 2 to 4, as in the example",)


def test_progress_counts_the_calls_that_the_result_tells_of() -> None:
    told: list[tuple[int, int, str]] = []
    result = intarsia.verify(counter()[1], progress=lambda *step: told.append(step))
    assert [done for done, _, _ in told] == [0, *range(12), 12, 12]
    assert {total for _, total, _ in told} == {result.calls} == {12}
    assert [told[i][2] for i in (0, 1, 13, 14)] == ["retracing", "call 1 (x.shape[0] = 1)", "comparing graphs", ""]


def test_a_result_is_json_also_where_nothing_could_be_compared() -> None:
    class Fewer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    told = json.loads(json.dumps(intarsia.verify(pair_hybrid(), Fewer()).to_json(), allow_nan=False))
    assert told["ok"] is False
    assert {leaf["absolute_error"] for leaf in told["leaves"]} == {None}
    assert {check["name"]: check["ok"] for check in told["parity"]}["graph"] is True
    fine = intarsia.verify(*counter()[::-1]).to_json()
    assert fine["ok"] is True
    assert [leaf["shape"] for leaf in fine["leaves"]] == [(6, 3), (6, 3), None, (3,)]


def test_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConventionError, match="found a Linear"):
        intarsia.verify(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        intarsia.verify(tmp_path / "missing.pt2")


def test_a_reference_that_refuses_the_inputs_is_told() -> None:
    with pytest.raises(ConventionError, match=r"the reference: found a model that raises RuntimeError"):
        intarsia.verify(counter()[1], torch.nn.Linear(5, 2))


def test_a_reference_that_returns_other_leaves_fails() -> None:
    class Fewer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    result = intarsia.verify(pair_hybrid(), Fewer())
    assert not result.ok
    assert {leaf.note for leaf in result.leaves} == {"the model does not return it", "the program does not return it"}
    assert "inf" not in str(result)


def test_written_state_is_compared_with_the_models() -> None:
    class Forgetful(Counter):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = self.linear(x).tanh()
            return {"rows": [y, y - y], "count": x.shape[0]}

    model, module = counter()
    assert "state 'total'" in {leaf.name for leaf in intarsia.verify(module, model).leaves}
    forgetful = Forgetful()
    forgetful.load_state_dict(model.state_dict())
    result = intarsia.verify(module, forgetful)
    assert {leaf.name for leaf in result.leaves if not leaf.ok} == {"output['rows'][1]", "state 'total'"}


def test_a_model_that_was_called_before_is_told(tmp_path: Path) -> None:
    model, module = counter()
    intarsia.save(module, tmp_path / "counter.pt2")
    assert intarsia.verify(tmp_path / "counter.pt2", model).findings == ()
    model(torch.ones(2, 4))
    result = intarsia.verify(tmp_path / "counter.pt2", model)
    assert failed(result) == set()
    (finding,) = result.findings
    assert finding.startswith("before the first call, state 'total' of the model was not the program's")
    assert f"note: {finding}" in str(result)


class Filling(torch.nn.Module):
    """A cache of a few rows, of which every call fills the next one."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(rows, 4))
        self.register_buffer("next", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, self.next, x)
        self.next.add_(1)
        return self.cache.sum(0)


@pytest.mark.parametrize("inputs", [None, [((torch.ones(1, 4),), {})]], ids=["drawn", "given"])
def test_state_that_runs_out_on_both_sides_ends_the_calls_and_is_no_failure(inputs: Any) -> None:
    model = Filling(2)
    program = torch.export.export(model, (torch.ones(1, 4),))
    result = intarsia.verify(program, model, inputs)
    assert (result.ok, result.calls) == (True, 2), str(result)
    assert any(
        finding.startswith("not compared after call 2: program and graph both raise (") for finding in result.findings
    )


def test_a_position_that_is_wrong_in_the_first_call_is_a_failure() -> None:
    program = torch.export.export(Filling(2), (torch.ones(1, 4),))
    program.state_dict["next"] = torch.tensor([2])
    assert failed(intarsia.verify(program)) == {"calls"}
    with pytest.raises(ArgumentError, match="index 2"):
        intarsia.verify(program, inputs=[((torch.ones(1, 4),), {})])


def test_state_that_runs_out_in_the_program_alone_is_a_failure() -> None:
    def narrow(program: ExportedProgram) -> None:
        program.state_dict["cache"] = program.state_dict["cache"][:2]
        for node in program.graph.find_nodes(op="placeholder"):
            if node.name == "b_cache":
                node.meta["val"] = node.meta["val"][:2]

    module = torch.export.export(Filling(9), (torch.ones(1, 4),)).run_decompositions({}).module(check_guards=False)
    result = verify(module, None, None, stages=broken(narrow))
    assert "calls" in failed(result)
    assert "call 3: the program raises PositionError" in result.check("calls").detail


def test_a_size_that_was_not_reached_is_not_among_those_tried() -> None:
    class Summing(Filling):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.sum(0, keepdim=True))

    program = torch.export.export(Summing(4), (torch.ones(3, 4),), dynamic_shapes=SHAPES)
    result = intarsia.verify(program)
    assert (result.ok, result.calls, result.sizes) == (True, 4, CORNERS[:2]), str(result)


def test_sizes_of_nested_inputs_have_the_names_that_the_caller_knows() -> None:
    class Nested(torch.nn.Module):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            return batch["left"]["x"] * 2

    shapes = {"batch": {"left": {"x": {0: Dim("rows", min=1, max=2)}}}}
    program = torch.export.export(Nested(), ({"left": {"x": torch.ones(2, 3)}},), dynamic_shapes=shapes)
    assert intarsia.verify(program).sizes == ("batch['left']['x'].shape[0] = 1", "batch['left']['x'].shape[0] = 2")


def test_a_loaded_program_with_a_derived_size_is_compared_in_full(tmp_path: Path) -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool1d(x, 2).relu()

    shapes = {"x": {2: 2 * torch.export.Dim("half", min=2, max=8)}}
    program = torch.export.export(Halves(), (torch.ones(1, 3, 8),), dynamic_shapes=shapes)
    intarsia.save(program, tmp_path / "halves.pt2")
    result = intarsia.verify(tmp_path / "halves.pt2", Halves())
    assert {(check.ok, check.detail) for check in result.parity} == {(True, "")}, str(result)
