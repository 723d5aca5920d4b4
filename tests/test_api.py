"""The public functions together, as a user calls them; compared with the eager model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import intarsia
from builders.damage import flip_bit
from intarsia.core.backend import BuiltEngine
from intarsia.core.coverage import Coverage
from intarsia.engines.openvino import OpenVINOBackend
from intarsia.errors import (
    ArgumentError,
    ConventionError,
    EngineBuildFailed,
    EngineUnavailable,
    FormatError,
    HybridError,
    PartitionError,
    StateError,
)


class Model(torch.nn.Module):
    """Counts its calls, and returns nested values; the sort between its layers is left to torch where asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> dict[str, Any]:
        self.calls.add_(1)
        hidden = torch.sort(torch.relu(self.first(x)), dim=-1)[0]
        return {"out": self.second(hidden) + bias + self.calls, "given": [x]}


def inputs(batch: int) -> tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(batch)
    return (torch.randn(batch, 6, generator=generator),), {"bias": torch.randn(batch, 4, generator=generator)}


def compile_model(**options: Any) -> torch.fx.GraphModule:
    batch = {0: Dim("batch", min=1, max=16)}
    shapes = {"x": batch, "bias": batch}
    return intarsia.compile(Model(), *inputs(3), dynamic_shapes=shapes, **options)


def assert_answers_like_eager(subject: Any) -> None:
    model = Model()
    for batch in (1, 5, 16, 5):
        args, kwargs = inputs(batch)
        found = subject(*args, **kwargs)
        with torch.no_grad():
            expected = model(*args, **kwargs)
        assert list(found) == ["out", "given"]
        assert type(found) is dict
        assert type(found["given"]) is list
        torch.testing.assert_close(found["out"], expected["out"], rtol=1e-5, atol=1e-5)
        assert torch.equal(found["given"][0], args[0])


@pytest.mark.parametrize("kept", [(), {"aten.sort"}, {torch.ops.aten.linear.default}])
def test_a_hybrid_its_export_and_its_file_answer_like_the_model(kept: Any, tmp_path: Path) -> None:
    hybrid = compile_model(torch_executed_ops=kept)
    program = intarsia.export(hybrid)
    intarsia.save(hybrid, tmp_path / "model.pt2")
    assert_answers_like_eager(hybrid)
    assert_answers_like_eager(intarsia.load(tmp_path / "model.pt2"))
    module = program.module()
    module.calls.zero_()  # the hybrid shares the buffer, and was called above
    assert_answers_like_eager(module)


def test_the_range_that_compile_was_given_is_the_programs(tmp_path: Path) -> None:
    (bounds,) = intarsia.export(compile_model()).range_constraints.values()
    assert (int(bounds.lower), int(bounds.upper)) == (1, 16)


def test_the_retraced_export_answers_to_the_same_bit() -> None:
    hybrid = compile_model(torch_executed_ops={"aten.sort"})
    args, kwargs = inputs(3)
    ours = intarsia.export(hybrid).module()
    theirs = intarsia.export(hybrid, args, kwargs, retrace=True).module()
    for batch in (2, 16):
        args, kwargs = inputs(batch)
        ours.calls.zero_()
        found = ours(*args, **kwargs)["out"].clone()
        ours.calls.zero_()
        assert torch.equal(found, theirs(*args, **kwargs)["out"])


def test_ledger_and_coverage_are_told_and_travel_in_the_file(tmp_path: Path) -> None:
    hybrid = compile_model(torch_executed_ops={"aten.sort"})
    program = intarsia.export(hybrid)
    assert [entry.fate for entry in intarsia.ledger(program).select("engine")] == ["kept"] * 2
    assert sorted(intarsia.coverage(hybrid).engines) == ["openvino_0", "openvino_1"]
    intarsia.save(hybrid, tmp_path / "model.pt2")
    loaded = intarsia.load(tmp_path / "model.pt2")
    assert intarsia.ledger(loaded) == intarsia.ledger(program)


def test_a_file_loads_with_torch_alone_in_a_new_process(tmp_path: Path) -> None:
    intarsia.save(compile_model(), tmp_path / "model.pt2")
    script = (
        "import intarsia, torch, sys\n"
        "program = torch.export.load(sys.argv[1])\n"
        "print(program.module()(torch.ones(2, 6), bias=torch.zeros(2, 4))['out'].shape)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "torch.Size([2, 4])\n"


def test_programs_of_other_tools_are_saved_and_have_no_ledger(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    intarsia.save(program, tmp_path / "model.pt2")
    loaded = intarsia.load(tmp_path / "model.pt2")
    with pytest.raises(ConventionError, match="ledger: found none"):
        intarsia.ledger(loaded)
    with pytest.raises(HybridError, match="without coverage"):
        intarsia.coverage(program.module())


@pytest.mark.parametrize("subject", ["model.pt2", None, torch.nn.Linear(2, 2)], ids=["text", "nothing", "model"])
def test_what_is_no_program_is_not_saved(subject: Any, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a hybrid or a torch"):
        intarsia.save(subject, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(EngineUnavailable, match="openvino"):
        compile_model(backend="opnvino")


class Uncapturable(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        message = "captured"
        raise AssertionError(message)


@pytest.mark.parametrize("options", [{"PERFORMANCE_HNT": "LATENCY"}, {"PERFORMANCE_HINT": "SLOW"}, ["THREADS"]])
def test_a_wrong_option_is_told_before_the_capture(options: Any) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(ArgumentError, match="option"):
        intarsia.compile(Uncapturable(), (torch.ones(2),), options=options)


def test_a_missing_library_is_told_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(EngineUnavailable, match=r"intarsia\[openvino\]"):
        intarsia.compile(Uncapturable(), (torch.ones(2),))


def test_an_operator_name_that_matches_nothing_is_named() -> None:
    with pytest.raises(PartitionError, match=r"aten\.srot"):
        compile_model(torch_executed_ops={"aten.srot"})


def test_compiling_leaves_the_model_as_it_was() -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    intarsia.compile(model, *inputs(3))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Decoder(torch.nn.Module):
    """Keeps what it was given; answers with a layer of the sum over it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(8, 6), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.seen.index_copy_(0, position, x)
        return self.layer(self.seen.sum(0, keepdim=True) / 8)


def tokens(count: int, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((count, 6), 0.5) + start, torch.arange(start, start + count)


@pytest.mark.parametrize("retrace", [False, True])
def test_methods_of_one_model_are_one_file_with_one_state(tmp_path: Path, retrace: bool) -> None:
    source = Decoder()
    calls = {"prefill": tokens(3, 0), "decode": tokens(1, 3)}
    hybrids = {name: intarsia.compile(source, call) for name, call in calls.items()}
    given = {name: intarsia.export(hybrids[name], calls[name], retrace=True) for name in calls} if retrace else hybrids
    intarsia.save(given, tmp_path / "both.pt2")
    loaded = intarsia.load(tmp_path / "both.pt2")
    assert isinstance(loaded, intarsia.Methods)
    assert loaded.methods == ("prefill", "decode")
    model = Decoder()
    for _ in range(2):
        for name, call in calls.items():
            with torch.no_grad():
                torch.testing.assert_close(getattr(loaded, name)(*call), model(*call), rtol=1e-4, atol=1e-5)
    assert torch.equal(loaded.state["seen"], model.seen)
    assert not source.seen.any()


def test_a_second_method_adds_little_to_a_file(tmp_path: Path) -> None:
    model = Decoder()
    model.layer = torch.nn.Linear(6, 200_000)
    programs = {name: torch.export.export(model, tokens(*call)) for name, call in {"a": (3, 0), "b": (1, 3)}.items()}
    intarsia.save(programs["a"], tmp_path / "one.pt2")
    intarsia.save(programs, tmp_path / "two.pt2")
    assert (tmp_path / "two.pt2").stat().st_size < 1.01 * (tmp_path / "one.pt2").stat().st_size


def test_loaded_methods_are_saved_as_they_were_loaded(tmp_path: Path) -> None:
    model = Decoder()
    hybrids = {"a": intarsia.compile(model, tokens(3, 0)), "b": intarsia.compile(model, tokens(1, 3))}
    intarsia.save(hybrids, tmp_path / "first.pt2")
    loaded = intarsia.load(tmp_path / "first.pt2")
    loaded.b(*tokens(1, 3))
    intarsia.save(loaded, tmp_path / "second.pt2")
    again = intarsia.load(tmp_path / "second.pt2")
    assert again.a.manifest == loaded.a.manifest
    assert not again.state["seen"].any()
    assert torch.equal(again.a(*tokens(3, 0)), loaded.session().a(*tokens(3, 0)))


def test_one_named_method_is_called_by_its_name(tmp_path: Path) -> None:
    intarsia.save({"encode": torch.export.export(torch.nn.ReLU(), (torch.ones(2),))}, tmp_path / "a.pt2")
    assert intarsia.load(tmp_path / "a.pt2").encode(torch.tensor([-1.0, 1.0])).tolist() == [0, 1]
    intarsia.save({"forward": torch.export.export(torch.nn.ReLU(), (torch.ones(2),))}, tmp_path / "a.pt2")
    assert isinstance(intarsia.load(tmp_path / "a.pt2"), intarsia.Program)


@pytest.mark.parametrize(
    ("names", "message"),
    [((), "methods: found none"), (("state",), "found a name that is taken"), (("a b",), "no name in Python")],
)
def test_method_names_are_checked_before_anything_is_written(
    names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(ConventionError, match=message):
        intarsia.save(dict.fromkeys(names, program), tmp_path / "a.pt2")
    assert list(tmp_path.iterdir()) == []


def test_methods_of_models_that_differ_are_refused(tmp_path: Path) -> None:
    programs = {name: torch.export.export(torch.nn.Linear(2, 2), (torch.ones(2),)) for name in ("a", "b")}
    with pytest.raises(StateError, match="state 'weight' of the methods 'a' and 'b': found two initial values"):
        intarsia.save(programs, tmp_path / "a.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_program_is_saved_as_it_was_loaded(tmp_path: Path) -> None:
    intarsia.save(compile_model(), tmp_path / "first.pt2")
    program = intarsia.load(tmp_path / "first.pt2")
    args, kwargs = inputs(3)
    program(*args, **kwargs)
    intarsia.save(program, tmp_path / "second.pt2")
    again = intarsia.load(tmp_path / "second.pt2")
    assert again.manifest == program.manifest
    assert again.manifest is not None
    assert again.manifest.coverage is not None
    assert str(intarsia.ledger(again)) == str(intarsia.ledger(program))
    assert again.state["calls"].item() == 0
    assert program.state["calls"].item() == 1
    assert_answers_like_eager(again)


def test_a_program_of_an_export_is_saved_with_its_ledger(tmp_path: Path) -> None:
    exported = intarsia.export(compile_model())
    intarsia.save(intarsia.Program(exported), tmp_path / "model.pt2")
    assert intarsia.ledger(intarsia.load(tmp_path / "model.pt2")) == intarsia.ledger(exported)


def test_a_damaged_weight_is_found_by_the_first_call_and_by_saving(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    intarsia.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), path)
    flip_bit(path, "data/weights/weight_0")
    program = intarsia.load(path)
    session = program.session()
    for use in (program, session, program, lambda x: intarsia.save(program, tmp_path / "b.pt2")):
        with pytest.raises(FormatError, match=r"a damaged member 'data/weights/weight_0'"):
            use(torch.ones(1, 2))
    assert not (tmp_path / "b.pt2").exists()
    with pytest.raises(FormatError, match=r"a damaged member 'data/weights/weight_0'"):
        intarsia.load(path, verify=True)


def test_a_method_needs_its_own_tensors_only(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    args = (torch.ones(1, 2),)
    models = {"one": torch.nn.Linear(2, 2), "two": torch.nn.Sequential(torch.nn.Linear(2, 2))}
    intarsia.save({name: torch.export.export(model, args) for name, model in models.items()}, path)
    flip_bit(path, "data/weights/weight_2")
    methods = intarsia.load(path)
    assert torch.equal(methods.one(*args), models["one"](*args))
    with pytest.raises(FormatError, match="weight_2"):
        methods.two(*args)


class Choosy(OpenVINOBackend):
    """Finds out while building that it does not take an operator."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        if any(str(node.target) == self.operator for node in program.graph.nodes):
            raise EngineBuildFailed(
                "it", found="tanh", expected="none", fix="Do.", operators=(self.operator, "aten.x.y")
            )
        return super().build(program, options)


class Wave(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).sort(0)[0].sin().tanh().cos()


def test_an_operator_that_turns_out_to_be_refused_goes_to_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.api.wanted.find_backend", lambda _: Choosy("aten.tanh.default"))
    x = torch.randn(4, 3)
    hybrid = intarsia.compile(Wave(), (x,), torch_executed_ops=iter(["aten.sort"]))
    torch.testing.assert_close(hybrid(x), Wave()(x))
    found = intarsia.coverage(hybrid)
    assert found.failed == (("aten.tanh.default", "a refusal by openvino: tanh"),)
    assert {p.operator: p.reason for p in found.placements if p.place == "torch"} == {
        "aten.sort.default": "named in torch_executed_ops",
        "aten.tanh.default": "could not be built: tanh",
    }
    (both,) = intarsia.compile({"both": Wave()}, {"both": (x,)}).values()
    torch.testing.assert_close(both(x), Wave()(x))
    with pytest.raises(EngineBuildFailed, match="partition 'openvino_1': found a refusal by openvino: tanh"):
        intarsia.compile(Wave(), (x,), fallback=False, torch_executed_ops={"aten.sort"})


def test_a_file_of_an_exported_program_tells_its_coverage(tmp_path: Path) -> None:
    hybrid = compile_model(torch_executed_ops={"aten.sort"})
    args, kwargs = inputs(3)
    for program in (intarsia.export(hybrid), intarsia.export(hybrid, args, kwargs, retrace=True)):
        intarsia.save(program, tmp_path / "model.pt2")
        manifest = intarsia.load(tmp_path / "model.pt2").manifest
        assert manifest is not None
        assert manifest.coverage is not None
        assert Coverage.from_json(manifest.coverage) == intarsia.coverage(hybrid)
