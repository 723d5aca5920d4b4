"""Hostile files: what torch would run is refused by name, and never runs."""

from __future__ import annotations

import io
import json
import logging
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import intarsia
from builders.hostile import (
    GRAPH,
    Sentinel,
    change_json,
    graph_of,
    pack,
    read_members,
    replace_text,
    sentinel,
    signature_of,
    small_program,
)
from intarsia.errors import FormatError, UnsupportedVersion
from intarsia.formats.loading import UnknownContainer, UnknownOperator

__all__ = ["sentinel"]
Change = Callable[[Any, Sentinel], None]


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return small_program()


@pytest.fixture
def ours(program: ExportedProgram, tmp_path: Path) -> Path:
    intarsia.save(program, tmp_path / "ours.pt2")
    return tmp_path / "ours.pt2"


@pytest.fixture
def foreign(program: ExportedProgram, tmp_path: Path) -> Path:
    torch.export.save(program, tmp_path / "foreign.pt2")
    return tmp_path / "foreign.pt2"


def run_with_torch(path: Path) -> None:
    """Load a file as torch does, and call what it holds; what goes wrong meanwhile does not matter."""
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.load(path).module()(torch.ones(3, 3), scale=torch.ones(1))
    except Exception:  # noqa: BLE001, S110 - the payload ran, or it did not
        pass
    finally:
        logging.disable(logging.NOTSET)


def expression(values: Any, sentinel: Sentinel) -> None:
    size = next(s for v in graph_of(values)["tensor_values"].values() for s in v["sizes"] if "as_expr" in s)
    size["as_expr"]["expr_str"] = sentinel.expression


def placeholder(values: Any, sentinel: Sentinel) -> None:
    replace_text("scale", f"scale, y=[{sentinel.expression}]")(values)


def wrap(values: Any, container: str, context: Any) -> None:
    spec = json.loads(signature_of(values)["out_spec"])
    spec[1] = {"type": container, "context": context, "children_spec": [spec[1]]}
    signature_of(values)["out_spec"] = json.dumps(spec)


def enum(values: Any, sentinel: Sentinel) -> None:
    key = {"__enum__": True, "fqn": f"{sentinel.module}:Made", "name": "a"}
    wrap(values, "collections.OrderedDict", json.dumps([key]))


def factory(values: Any, sentinel: Sentinel) -> None:
    context = {"default_factory_module": sentinel.module, "default_factory_name": "Made", "dict_context": ["a"]}
    wrap(values, "collections.defaultdict", context)


RUN_BY_TORCH: dict[str, tuple[Change, str]] = {
    "an expression": (expression, "where an expression should stand"),
    "a name": (placeholder, 'found the name "scale, y='),
    "an enum in a structure": (enum, "found the enum 'hostile_module:Made'"),
    "a factory in a structure": (factory, "found the defaultdict {'default_factory_module': 'hostile_module'"),
}


@pytest.mark.parametrize("case", RUN_BY_TORCH)
def test_what_torch_runs_is_refused(foreign: Path, ours: Path, sentinel: Sentinel, case: str) -> None:
    change, message = RUN_BY_TORCH[case]
    change_json(foreign, GRAPH, lambda values: change(values, sentinel))
    run_with_torch(foreign)
    assert sentinel.ran()
    change_json(ours, GRAPH, lambda values: change(values, sentinel))
    for path in (foreign, ours):
        with pytest.raises(FormatError, match=f"member 'models/model.json'.*{message}"):
            intarsia.load(path)
        assert not sentinel.ran()


def test_guards_are_dropped(foreign: Path, sentinel: Sentinel) -> None:
    members = read_members(foreign)
    values = json.loads(members[GRAPH])
    values["guards_code"] = [f"{sentinel.expression} is None"]
    pack(foreign, {**members, GRAPH: json.dumps(values).encode()})
    run_with_torch(foreign)
    assert sentinel.ran()
    loaded = intarsia.load(foreign)
    loaded(torch.ones(3, 3), scale=torch.ones(1))
    loaded.exported_program.example_inputs = ((torch.ones(4, 3),), {"scale": torch.ones(1)})
    loaded.exported_program.module()(torch.ones(3, 3), scale=torch.ones(1))
    assert not sentinel.ran()


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_a_pickled_weight_is_refused(foreign: Path, sentinel: Sentinel) -> None:
    members = read_members(foreign)
    table = json.loads(members["data/weights/model_weights_config.json"])
    table["config"]["linear.weight"]["use_pickle"] = True
    path_name = table["config"]["linear.weight"]["path_name"]
    members["data/weights/model_weights_config.json"] = json.dumps(table).encode()
    pack(foreign, {**members, f"data/weights/{path_name}": pickled(sentinel)})
    run_with_torch(foreign)
    assert sentinel.ran()
    with pytest.raises(FormatError, match=r"the tensor 'linear\.weight', which is a pickle"):
        intarsia.load(foreign)


@pytest.mark.parametrize("kind", ["opaque_obj_0", "custom_obj_0"])
def test_an_object_among_the_constants_is_refused(foreign: Path, sentinel: Sentinel, kind: str) -> None:
    members = read_members(foreign)
    table = json.loads(members["data/constants/model_constants_config.json"])
    table["config"]["thing"] = {"path_name": kind, "is_param": False, "use_pickle": True, "tensor_meta": None}
    payload = {f"data/constants/{kind}": pickle.dumps(sentinel)}
    table_member = {"data/constants/model_constants_config.json": json.dumps(table).encode()}
    pack(foreign, {**members, **table_member, **payload})
    run_with_torch(foreign)
    assert sentinel.ran() is (kind == "opaque_obj_0")
    with pytest.raises(FormatError, match=f"the member 'data/constants/{kind}', which is a pickle"):
        intarsia.load(foreign)


@pytest.mark.parametrize("kind", ["weights", "constants"])
def test_the_layout_of_old_torch_is_refused(foreign: Path, sentinel: Sentinel, kind: str) -> None:
    pack(foreign, {**read_members(foreign), f"data/{kind}/model.pt": pickled(sentinel)})
    run_with_torch(foreign)
    assert sentinel.ran()
    with pytest.raises(FormatError, match=f"the member 'data/{kind}/model.pt', which is a pickle"):
        intarsia.load(foreign)


def test_sample_inputs_are_never_read(foreign: Path, program: ExportedProgram, sentinel: Sentinel) -> None:
    pack(foreign, {**read_members(foreign), "data/sample_inputs/model.pt": pickled(sentinel)})
    run_with_torch(foreign)
    assert sentinel.ran()
    x, scale = torch.randn(3, 3), torch.ones(1)
    loaded = intarsia.load(foreign)
    assert loaded.exported_program.example_inputs is None
    assert torch.equal(loaded(x, scale=scale)["y"], program.module()(x, scale=scale)["y"])


def test_a_file_of_ours_has_no_pickle(ours: Path, sentinel: Sentinel) -> None:
    good = read_members(ours)
    for name in ("data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/custom_obj_0", "extra/a.pkl"):
        pack(ours, {**good, name: pickled(sentinel)})
        with pytest.raises(FormatError, match=f"the member '{name}', which is a pickle"):
            intarsia.load(ours)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("data/aotinductor/model/a.so", r"'data/aotinductor/model.*'(,? which is| holds) native code"),
        ("extra/a.so", "the member 'extra/a.so', which is native code"),
        ("data/weights/kernel.cubin", "the member 'data/weights/kernel.cubin', which is native code"),
    ],
)
def test_native_code_is_refused(ours: Path, foreign: Path, name: str, told: str) -> None:
    for path in (ours, foreign):
        pack(path, {**read_members(path), name: b"\x7fELF"})
        with pytest.raises(FormatError, match=told):
            intarsia.load(path, allow={"pickle"})


def test_a_member_of_no_program_is_refused(foreign: Path) -> None:
    pack(foreign, {**read_members(foreign), "hooks/on_load.py": b""})
    with pytest.raises(FormatError, match=r"the member 'hooks/on_load.py', which is no part of a program"):
        intarsia.load(foreign)


def test_what_is_allowed_is_loaded(foreign: Path, program: ExportedProgram) -> None:
    members = read_members(foreign)
    table = json.loads(members["data/weights/model_weights_config.json"])
    entry = table["config"]["linear.weight"]
    entry["use_pickle"] = True
    members["data/weights/model_weights_config.json"] = json.dumps(table).encode()
    members[f"data/weights/{entry['path_name']}"] = pickled(program.state_dict["linear.weight"])
    pack(foreign, members)
    x, scale = torch.randn(3, 3), torch.ones(1)
    loaded = intarsia.load(foreign, allow={"pickle"})
    assert torch.equal(loaded(x, scale=scale)["y"], program.module()(x, scale=scale)["y"])


def test_an_unknown_word_allows_nothing(ours: Path) -> None:
    with pytest.raises(
        FormatError, match=r"allow: found 'pickel', expected 'native' or 'pickle'\. Did you mean 'pickle'\?"
    ):
        intarsia.load(ours, allow={"pickel"})
    with pytest.raises(FormatError, match=r"allow: found 'code', expected 'native' or 'pickle'"):
        intarsia.load(ours, allow=["pickle", "code"])
    with pytest.raises(FormatError, match=r"allow: found '3', expected 'native' or 'pickle'"):
        intarsia.load(ours, allow=3)  # type: ignore[arg-type]
    assert intarsia.load(ours, allow="pickle")(torch.ones(2, 3), scale=torch.ones(1))["half"].shape == (2, 3)


def change_node(**fields: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        node = next(node for node in graph_of(values)["nodes"] if node["target"] == "torch.ops.aten.add.Tensor")
        node.update(fields)

    return change


def set_in(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    return change


CODE = '"); print("'
SIGNATURE = ("graph_module", "module_call_graph", 0, "signature")
REFUSED: dict[str, tuple[Callable[[Any], None], str]] = {
    "a function of torch": (change_node(target="torch.os.system"), "a call of 'torch.os.system'"),
    "a method of torch.ops": (change_node(target="torch.ops.load_library"), "a call of 'torch.ops.load_library'"),
    "a hidden attribute": (
        change_node(target="torch.ops.aten.add.__class__"),
        "found operators that this process does not know: aten::add.__class__",
    ),
    "an extension": (change_node(target="#executorch:add"), "a call of '#executorch:add'"),
    "a function of operator": (change_node(target="_operator.attrgetter"), "a call of '_operator.attrgetter'"),
    "another module": (change_node(target="os.system"), "a call of 'os.system'"),
    "a method": (change_node(target="numpy"), "a call of 'numpy'"),
    "an operator that writes files": (
        change_node(target="torch.ops.aten.from_file.default"),
        "a call of 'torch.ops.aten.from_file.default', which opens a file",
    ),
    "an operator of TorchScript alone": (
        change_node(target="torch.ops.aten.save.default"),
        "found operators that this process does not know: aten::save",
    ),
    "an operator that calls Python by name": (
        change_node(target="torch.ops.higher_order.flat_apply"),
        "a call of 'torch.ops.higher_order.flat_apply'",
    ),
    "an operator of assembler text": (
        change_node(target="torch.ops.higher_order.inline_asm_elementwise"),
        "a call of 'torch.ops.higher_order.inline_asm_elementwise'",
    ),
    "a keyword as a name": (replace_text("x", "lambda"), "the name 'lambda'"),
    "a name with another spelling": (replace_text("x", "\uff58"), r"the name '\\uff58'"),
    "a name of the code itself": (replace_text("x", "torch"), "the name 'torch'"),
    "a name that steers the terminal": (replace_text("x", "\x1b[2J"), r"the name '\\x1b\[2J'"),
    "code in a parameter's name": (replace_text("linear.weight", CODE), "found the name '\"\\); print"),
    "a parameter's name with underscores": (replace_text("linear.weight", "a.__class__"), "the name 'a.__class__'"),
    "code in a keyword": (
        set_in(*SIGNATURE, "forward_arg_names", value=["x=1", "scale"]),
        "found the name 'x=1'",
    ),
    "a keyword that is no name": (
        lambda values: signature_of(values).update(in_spec=signature_of(values)["in_spec"].replace("scale", "a b")),
        "the keyword arguments",
    ),
    "a text for a number": (
        set_in("graph_module", "graph", "nodes", 0, "inputs", 0, "arg", value={"as_int": "__import__('os')"}),
        "expected a whole number of 64 bits",
    ),
    "a mapping for a number": (
        set_in("graph_module", "graph", "nodes", 0, "inputs", 0, "arg", value={"as_ints": [{}]}),
        "expected a whole number of 64 bits",
    ),
    "two kinds of one argument": (
        set_in("graph_module", "graph", "nodes", 0, "inputs", 0, "arg", value={"as_int": 1, "as_float": 1.0}),
        "expected one kind of Argument",
    ),
    "an unknown kind": (
        set_in("graph_module", "graph", "nodes", 0, "inputs", 0, "arg", value={"as_code": "x"}),
        "the kind 'as_code'",
    ),
    "a number for a text": (set_in("graph_module", "graph", "nodes", 0, "target", value=3), "expected a text"),
    "a number for a truth": (
        set_in("graph_module", "graph", "tensor_values", "x", "requires_grad", value=1),
        "expected true or false",
    ),
    "a number of no dtype": (
        set_in("graph_module", "graph", "tensor_values", "x", "dtype", value=99),
        "found 99, expected a number of a ScalarType",
    ),
    "a list for a mapping": (set_in("graph_module", "graph", "tensor_values", value=[]), "expected a mapping"),
    "a mapping for a list": (set_in("graph_module", "graph", "nodes", value={}), "expected a list"),
    "a list for a node": (set_in("graph_module", "graph", "nodes", 0, value=[]), "expected a Node"),
    "a node without a target": (set_in("graph_module", "graph", "nodes", 0, value={}), "expected a Node"),
    "a device with a path": (
        set_in("graph_module", "graph", "nodes", 0, "inputs", 0, "arg", value={"as_device": {"type": "../cpu"}}),
        "expected the name of a device type",
    ),
    "a script object": (
        set_in("graph_module", "graph", "custom_obj_values", value={"a": {"name": "a", "class_fqn": "__torch__.A"}}),
        "the script object 'a', which is pickled, expected none, or allow={\"pickle\"}",
    ),
    "a range to count to": (
        set_in("range_constraints", "u99999999999", value={"min_val": 0, "max_val": 1}),
        "a range of 'u99999999999'",
    ),
    "a range to count to in other digits": (
        set_in("range_constraints", "u" + 9 * "\N{ARABIC-INDIC DIGIT NINE}", value={"min_val": 0, "max_val": 1}),
        "a range of 'u",
    ),
    "a range to count to with a score": (
        set_in("range_constraints", "u999_999_999", value={"min_val": 0, "max_val": 1}),
        "a range of 'u999_999_999'",
    ),
    "a range of code": (
        set_in("range_constraints", "exit() or s0['x']", value={"min_val": 0, "max_val": 1}),
        "a range of .*, expected a symbol, or a size",
    ),
    "another schema": (set_in("schema_version", "major", value="8"), "the schema version"),
    "a structure of no kind": (set_in(*SIGNATURE, "out_spec", value="[1, 2]"), "the structure '\\[1, 2\\]'"),
    "a structure that is no JSON": (set_in(*SIGNATURE, "out_spec", value="(1,)"), "the text '\\(1,\\)' in a structure"),
    "a context that is no JSON": (lambda values: wrap(values, "builtins.list", 5), "the context 5"),
    "a context that is nested": (
        lambda values: wrap(values, "builtins.dict", "[" * 40 + "]" * 40),
        "found a nested context in a structure, expected at most 32 levels",
    ),
    "a named tuple of no name": (
        lambda values: wrap(values, "collections.namedtuple", 5),
        "found the named tuple 5, expected its name",
    ),
    "an argument that is no name": (
        set_in("graph_module", "graph", "nodes", 0, "inputs", 0, "name", value="a=1, b"),
        "found the argument name 'a=1, b'",
    ),
    "a dialect of no name": (set_in("verifiers", value=["../x"]), "the name of a dialect"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_does_not_write_is_refused(ours: Path, sentinel: Sentinel, case: str) -> None:
    change, message = REFUSED[case]
    change_json(ours, GRAPH, change)
    with pytest.raises(FormatError, match=message) as raised:
        intarsia.load(ours)
    assert str(raised.value).isprintable()


def test_graphs_in_graphs_have_an_end(ours: Path) -> None:
    text = json.dumps({"a": 1})
    members = read_members(ours)
    pack(ours, {**members, GRAPH: b"[" * 100_000 + text.encode() + b"]" * 100_000})
    with pytest.raises(FormatError, match="found values that are nested too deep"):
        intarsia.load(ours)


@pytest.mark.parametrize(("limit", "message"), [("NODES", "more than 2 nodes"), ("DEPTH", "graphs in graphs")])
def test_what_is_beyond_a_limit_is_refused(
    ours: Path, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    monkeypatch.setattr(f"intarsia.formats.judgement.graph.{limit}", {"NODES": 2, "DEPTH": 1}[limit])
    with pytest.raises(FormatError, match=message):
        intarsia.load(ours)


@pytest.mark.parametrize("limit", ["SYMBOLS", "EXPRESSIONS"])
def test_symbols_and_expressions_are_counted(ours: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"intarsia.formats.judgement.graph.{limit}", 0)
    with pytest.raises(FormatError, match="1 symbols and 1 expressions"):
        intarsia.load(ours)


def test_every_mention_of_a_costly_expression_counts(ours: Path) -> None:
    symbols = "Symbol('s0', integer=True), " * 31

    def change(values: Any) -> None:
        size = next(s for v in graph_of(values)["tensor_values"].values() for s in v["sizes"] if "as_expr" in s)
        size["as_expr"]["expr_str"] = f"Max({symbols}Integer(2))"
        values["graph_module"]["graph"]["tensor_values"].update(
            {f"more_{i}": {**next(iter(graph_of(values)["tensor_values"].values())), "sizes": [size]} for i in range(5)}
        )

    change_json(ours, GRAPH, change)
    with pytest.raises(
        FormatError, match=r"found sizes that take 5760 comparisons to read, expected at most 5\d\d\d\."
    ):
        intarsia.load(ours)


def test_a_text_that_is_too_long_is_refused(ours: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.formats.archive.listing.TEXT_BYTES", 10)
    for path in (ours, foreign):
        with pytest.raises(FormatError, match="bytes, more than 10,"):
            intarsia.load(path)


def test_a_schema_of_another_torch_is_told(ours: Path) -> None:
    change_json(ours, GRAPH, lambda values: values.update(schema_version={"major": 9, "minor": 1}, torch_version="9.9"))
    with pytest.raises(UnsupportedVersion, match=r"a graph in version 9\.1 of torch's schema, written by torch '9\.9'"):
        intarsia.load(ours)


def test_fields_of_a_newer_schema_are_overlooked_as_torch_does(ours: Path) -> None:
    change_json(ours, GRAPH, lambda values: graph_of(values)["nodes"][0].update(new_field="anything"))
    assert intarsia.load(ours)(torch.ones(2, 3), scale=torch.ones(1))["half"].shape == (2, 3)


def test_unknown_operators_are_listed_at_once_with_their_packages(ours: Path) -> None:
    change_json(ours, GRAPH, replace_text("torch.ops.aten.cat.default", "torch.ops.mine.cat.default"))
    change_json(ours, GRAPH, replace_text("torch.ops.aten.linear.default", "torch.ops.yours.linear.fast"))
    change_json(
        ours,
        "extra/intarsia_manifest.json",
        lambda fields: fields["methods"]["forward"].update(packages={"mine": "my-operators 1.2"}),
    )
    with pytest.raises(
        UnknownOperator, match=r"does not know: mine::cat \(of my-operators 1\.2\), yours::linear\.fast,"
    ):
        intarsia.load(ours)


@pytest.mark.parametrize(("kind", "context"), [("my.Point", "null"), ("collections.namedtuple", "my.Point")])
def test_unknown_containers_are_listed(ours: Path, kind: str, context: str) -> None:
    change_json(ours, GRAPH, lambda values: wrap(values, kind, context))
    with pytest.raises(
        UnknownContainer, match=r"arguments or outputs in a my\.Point, which this process does not know"
    ):
        intarsia.load(ours)


def test_what_torch_cannot_read_is_one_error_that_steers_nothing(ours: Path) -> None:
    def change(values: Any) -> None:
        node = graph_of(values)["nodes"][0]
        node["inputs"][0]["arg"] = {"as_device": {"type": "toaster"}}
        node["metadata"] = {"stack_trace": "\x1b[2J"}

    change_json(ours, GRAPH, change)
    with pytest.raises(FormatError, match="contents that torch cannot read") as raised:
        intarsia.load(ours)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("container", [OrderedDict, dict])
def test_containers_of_python_still_load(tmp_path: Path, container: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return container(a=x, b=(x, [x + 1]))

    intarsia.save(torch.export.export(Model(), (torch.ones(2),)), tmp_path / "a.pt2")
    assert type(intarsia.load(tmp_path / "a.pt2")(torch.ones(2))) is container
