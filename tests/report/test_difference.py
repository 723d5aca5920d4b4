"""How two programs differ: each kind of change is found, and what does not count is not."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram

from builders.standin import engine_tensor
from intarsia.core.backend import BuiltEngine
from intarsia.core.container import MIN_CONSTANT_BYTES, pack_engine
from intarsia.core.engine_calls import read_containers
from intarsia.formats.boundary import boundary_of
from intarsia.report.difference import Side, compare_methods
from intarsia.report.graph_lines import Symbols, graph_lines

SIGNATURE = "(f32[b, 3]) -> (f32[b, 3])"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(2))
        self.engine = engine_tensor("double", SIGNATURE, source="double")

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        return {"y": torch.ops.intarsia.run_engine.default([self.linear(x)], self.engine, SIGNATURE)[0].relu()}


def export(model: torch.nn.Module | None = None, *, maximum: int | None = 8) -> ExportedProgram:
    batch = None if maximum is None else Dim("batch", min=1, max=maximum)
    return torch.export.export(model or Model(), (torch.ones(2, 3),), dynamic_shapes=({0: batch},))


def changes(before: ExportedProgram, after: ExportedProgram) -> list[tuple[Any, ...]]:
    found = compare_methods({"forward": Side(before, {})}, {"forward": Side(after, {})})
    assert all(change.method == "forward" for change in found)
    return [tuple(change)[1:] for change in found]


def changed(change: Callable[[Model], None], **options: Any) -> list[tuple[Any, ...]]:
    model = Model()
    change(model)
    return changes(export(), export(model, **options))


def function(body: Callable[..., Any]) -> torch.nn.Module:
    module = torch.nn.Module()
    module.forward = body  # type: ignore[assignment]
    return module


def test_a_program_does_not_differ_from_itself_whoever_stored_it() -> None:
    program = export()
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    assert changes(program, torch.export.load(stored)) == []
    assert changes(program.run_decompositions({}), copy.deepcopy(program).run_decompositions({})) == []


def test_the_numbering_of_nodes_and_sizes_does_not_count() -> None:
    program, other = export(), export()
    returned = {spec.arg.name for spec in other.graph_signature.output_specs}  # the signature names them
    for node in other.graph.nodes:
        if node.op == "call_function" and node.name not in returned:
            node._rename(f"{node.name}_77")
    assert changes(program, other) == []

    batch = Dim("batch")
    bodies = {"x": lambda x, y: torch.cat([x, y]).relu(), "z": lambda z, y: torch.cat([z, y]).relu()}
    lines = []
    for name, body in bodies.items():  # torch names a size after the input that it is read from
        shapes = {name: {0: batch}, "y": {0: Dim("other")}}
        made = torch.export.export(function(body), (torch.ones(2), torch.ones(3)), dynamic_shapes=shapes)
        lines.append((str(next(iter(made.graph.nodes)).meta["val"].shape), graph_lines(made, Symbols())))
    assert lines[0][0] != lines[1][0]
    assert lines[0][1] == lines[1][1]


def test_ranges() -> None:
    assert changes(export(), export(maximum=9)) == [("signature", "size s0", "1 to 8", "1 to 9")]


def test_types_of_inputs_and_outputs() -> None:
    found = changes(export(), export(maximum=None))
    assert ("signature", "input x", "f32[s0, 3]", "f32[2, 3]") in found
    assert ("signature", "output['y']", "f32[s0, 3]", "f32[2, 3]") in found
    assert ("signature", "size s0", "1 to 8", None) in found


def test_the_structure_of_outputs() -> None:
    x = (torch.ones(2),)
    one, other = (torch.export.export(function(body), x) for body in (lambda x: [x + 1], lambda x: (x + 1,)))
    ((part, subject, _, _),) = changes(one, other)
    assert (part, subject) == ("signature", "structure of the outputs")


def test_values_of_state_to_the_bit() -> None:
    def flip(model: Model) -> None:
        model.calls[1] = -0.0

    ((part, name, before, after),) = changed(flip)
    assert (part, name) == ("state", "calls")
    assert before != after
    assert before.startswith("buffer f32[2], ")


def test_nan_is_nan() -> None:
    def spoil(model: Model) -> None:
        model.calls[1] = torch.nan

    one, other = Model(), Model()
    spoil(one)
    spoil(other)
    assert changes(export(one), export(other)) == []


def test_dtypes_shapes_kinds_and_names_of_state() -> None:
    for change, expected in [
        (lambda m: m.register_buffer("calls", torch.zeros(3)), ("state", "calls", "buffer f32[2]", "buffer f32[3]")),
        (lambda m: setattr(m, "calls", torch.zeros(2).double()),
         ("state", "calls", "buffer f32[2]", "buffer f64[2]")),
        (lambda m: m.register_buffer("calls", torch.zeros(2), persistent=False),
         ("state", "calls", "buffer f32[2]", "non-persistent buffer f32[2]")),
        (lambda m: setattr(m, "linear", torch.nn.Linear(3, 3, bias=False)),
         ("state", "linear.bias", "parameter f32[3]", None)),
    ]:  # fmt: skip
        assert expected in changed(change)


def test_the_names_of_sizes_in_signatures_of_engines_do_not_count() -> None:
    programs = []
    for size in ("s4", "s9"):
        signature = SIGNATURE.replace("b", size)
        engine = engine_tensor("double", signature)
        call = function(lambda x, e=engine, s=signature: torch.ops.intarsia.run_engine.default([x], e, s))
        call.engine = engine
        programs.append(export(call))
    assert changes(*programs) == []


@pytest.mark.parametrize(
    ("engine", "subject"),
    [
        (lambda: engine_tensor("repeat", SIGNATURE, source="double"), "engine, payload"),
        (lambda: engine_tensor("double", SIGNATURE, source="other"), "engine, source"),
        (lambda: engine_tensor("double", SIGNATURE), "engine, source"),
        (lambda: engine_tensor("double", SIGNATURE, source="double", name="other"), "engine, name"),
    ],
    ids=["payload", "source", "no source", "name"],
)
def test_engines(engine: Callable[[], torch.Tensor], subject: str) -> None:
    found = changed(lambda model: setattr(model, "engine", engine()))
    assert {change[:2] for change in found} == {("engine", subject)}


def test_large_constants_of_engines() -> None:
    def engine(fill: bytes) -> torch.Tensor:
        source = b"{}" + fill * MIN_CONSTANT_BYTES
        built = BuiltEngine(b"double", source, "1.0", "anything", {}, constants=[(2, MIN_CONSTANT_BYTES)])
        data = pack_engine(built, name="standin_0", backend="standin", signature=SIGNATURE)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    one, other = Model(), Model()
    one.engine, other.engine = engine(b"a"), engine(b"b")
    (found,) = changes(export(one), export(other))
    assert found[:2] == ("engine", "engine, large constants")
    assert found[2].startswith(f"{MIN_CONSTANT_BYTES} bytes, ")


def test_operators_and_wiring() -> None:
    x = (torch.ones(2), torch.ones(2))
    bodies = (lambda a, b: a - b, lambda a, b: b - a, lambda a, b: (a - b).relu(), lambda a, b: a - b * 1.5)
    base, swapped, longer, scaled = (torch.export.export(function(body), x) for body in bodies)
    first = "%0 = aten.sub.Tensor(input 0, input 1): f32[2]"
    assert changes(base, swapped) == [
        ("graph", "first line that differs", first, "%0 = aten.sub.Tensor(input 1, input 0): f32[2]")
    ]
    assert changes(base, longer) == [
        ("graph", "aten.relu.default", None, "1 node"),
        ("graph", "first line that differs", "return %0", "%1 = aten.relu.default(%0): f32[2]"),
    ]
    assert changes(base, scaled)[0] == ("graph", "aten.mul.Tensor", None, "1 node")
    cast, wider = (
        torch.export.export(function(lambda a, b, d=d: a.to(dtype=d) - b.to(dtype=d)), x).run_decompositions({})
        for d in (torch.float16, torch.float64)
    )
    assert "dtype=torch.float16" in changes(cast, wider)[-1][2]
    halved = torch.export.export(function(lambda a, b: a - b * 0.5), x)
    (found,) = changes(scaled, halved)
    assert "1.5" in found[2]
    assert "0.5" in found[3]


def test_the_order_of_operators() -> None:
    def first(x: torch.Tensor) -> Any:
        return x.relu(), x.tanh()

    def other(x: torch.Tensor) -> Any:
        y = x.tanh()
        return x.relu(), y

    one, two = (torch.export.export(function(body), (torch.ones(2),)) for body in (first, other))
    assert [change[1] for change in changes(one, two)] == ["first line that differs"]


def test_bodies_of_operators() -> None:
    def conditional(constant: float) -> ExportedProgram:
        def body(x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda x: x + constant, lambda x: x - 1, (x,))

        return torch.export.export(function(body), (torch.ones(2),))

    assert changes(conditional(1.0), conditional(1.0)) == []
    found = changes(conditional(1.0), conditional(2.0))
    assert found[-1][1:] == (
        "first line that differs",
        "%2 = aten.add.Tensor(body 0 argument 0, 1.0): f32[2]",
        "%2 = aten.add.Tensor(body 0 argument 0, 2.0): f32[2]",
    )


def test_what_is_written() -> None:
    class Writes(torch.nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name
            self.register_buffer("a", torch.zeros(1))
            self.register_buffer("b", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            getattr(self, self.name).copy_(x)
            return x + 1

    one, other = (torch.export.export(Writes(name), (torch.ones(1),)).run_decompositions({}) for name in "ab")
    assert changes(one, other) == [
        (
            "graph",
            "first line that differs",
            "return buffer mutation 'a' = input 0, %0",
            "return buffer mutation 'b' = input 0, %0",
        )
    ]


def test_versions_that_both_tell() -> None:
    program = export()
    sides = ({"torch": "2.13", "intarsia": "1"}, {"torch": "2.14"})
    (found,) = compare_methods(*({"forward": Side(program, versions)} for versions in sides))
    assert tuple(found) == ("forward", "version", "torch", "2.13", "2.14")
    (found,) = compare_methods({"f": Side(program, {})}, {"f": Side(program.run_decompositions({}), {})})[:1]
    assert found[1:] == ("version", "dialect", "TRAINING", "ATEN")


def test_methods() -> None:
    side = Side(export(), {})
    found = compare_methods({"prefill": side, "decode": side}, {"decode": side, "score": side})
    assert [tuple(change) for change in found] == [
        ("prefill", "method", "", "there", None),
        ("score", "method", "", None, "there"),
    ]


def test_of_a_boundary_only_what_it_tells_is_compared() -> None:
    """A file for ExecuTorch has the boundary of a program, and says little of its engines."""
    program = export()
    ((constant, engine),) = read_containers(program).items()
    known = {constant: {"backend": engine.backend, "version": engine.backend_version}}
    whole = {"forward": Side(program, {"torch": "2.13", "intarsia": "1"})}

    def against(boundary: ExportedProgram, engines: Any, **versions: str) -> list[tuple[Any, ...]]:
        part = {"forward": Side(boundary_of(boundary), versions, engines)}
        back = [(*change[:3], change.after, change.before) for change in compare_methods(part, whole)]
        changes = [tuple(change) for change in compare_methods(whole, part)]
        assert sorted(map(str, changes)) == sorted(map(str, back))
        return [change[1:] for change in changes]

    assert against(program, known, torch="2.13", executorch="1.5") == []
    assert against(program, known, torch="2.14") == [("version", "torch", "2.13", "2.14")]
    assert against(export(maximum=9), known) == [("signature", "size s0", "1 to 8", "1 to 9")]
    assert against(program, {}) == [("engine", constant, "there", None)]
    other = {constant: {"backend": engine.backend, "version": "0.9"}}
    assert against(program, other) == [("engine", f"{constant}, version", engine.backend_version, "0.9")]
    structure = torch.export.export(function(lambda x: (x + 1,)), (torch.ones(2),))
    subjects = [change[1] for change in against(structure, known)]
    assert subjects == ["input x", "size s0", "structure of the outputs"]
