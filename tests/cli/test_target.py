"""Targets of the command line: found, called, and refused with one clear message."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from intarsia.cli.target import FactoryError, load_hybrid, load_target
from intarsia.errors import TargetError

FACTORIES = """
import torch

VALUE = 3

def good():
    return torch.nn.Linear(4, 3), (torch.zeros(2, 4),), None, {"input": {0: torch.export.Dim("b")}}

def raises():
    return 1 / 0

def bare():
    return torch.nn.Linear(4, 3)

def pair():
    return torch.nn.Linear(4, 3), ()

def lonely():
    return (torch.nn.Linear(4, 3),)

def no_model():
    return "model", (), None, None

def list_args():
    return torch.nn.Linear(4, 3), [1], None, None

def list_kwargs():
    return torch.nn.Linear(4, 3), (), [1], None

def needs(path, device="cpu", *rest):
    return good()

def loud():
    print("from the factory")
    return good()

def hybrid():
    return torch.fx.symbolic_trace(torch.nn.Linear(4, 3))

def hybrid_with_arguments():
    return hybrid(), (torch.zeros(2, 4),), {"k": 1}, ({0: "b"},)

def hybrid_with_list():
    return hybrid(), [1], None, None

def hybrid_with_list_of_keywords():
    return hybrid(), None, [1], None

def stop():
    raise SystemExit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one module of factories, and one that cannot be imported."""
    (tmp_path / "factories_here.py").write_text(FACTORIES)
    (tmp_path / "calendar.py").write_text(FACTORIES)
    (tmp_path / "broken_here.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "failing_here.py").write_text("raise RuntimeError('as the module says')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("factories_here", "broken_here", "failing_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("place", ["factories_here", "factories_here.py", "./factories_here.py"])
def test_a_factory_is_found_by_module_and_by_file(folder: Path, place: str) -> None:
    target = load_target(f"{place}:good")
    assert isinstance(target.model, torch.nn.Linear)
    assert target.args[0].shape == (2, 4)
    assert target.kwargs == {}
    assert set(target.dynamic_shapes) == {"input"}


def test_a_factory_may_leave_keywords_and_dynamic_shapes_out(folder: Path) -> None:
    target = load_target("factories_here:pair")
    assert (target.args, target.kwargs, target.dynamic_shapes) == ((), {}, None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("factories_here", "no factory name"),
        ("factories_here:", "no factory name"),
        (":good", "no factory name"),
        ("nowhere_at_all:good", "no module 'nowhere_at_all'"),
        ("factories_here.deeper:good", "no module"),
        ("nowhere.py:good", "no file 'nowhere.py'"),
        ("factories_here:missing", "nothing named 'missing'"),
        ("factories_here:VALUE", "'VALUE' of type int"),
        ("factories_here:needs", "a function that needs path, expected a function without arguments"),
        ("factories_here.py", "no factory name"),
        ("", "no text"),
        ("factories_here:bare", "Linear returned"),
        ("factories_here:lonely", "a tuple of 1 returned"),
        ("calendar.py:good", "a file of the name of Python's own module 'calendar'"),
        ("factories_here:no_model", "a model of type str"),
        ("factories_here:list_args", "args of type list"),
        ("factories_here:list_kwargs", "kwargs of type list"),
    ],
)
def test_a_target_that_does_not_fit_is_refused_by_name(folder: Path, text: str, found: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(text)
    assert not isinstance(caught.value, FactoryError)
    assert f"target {text!r}" in str(caught.value)
    assert found in str(caught.value)


def test_a_missing_factory_is_answered_with_those_that_exist(folder: Path) -> None:
    with pytest.raises(
        TargetError, match=r"It has good, raises, bare, pair, lonely, no_model, list_args, list_kwargs, .*stop\."
    ):
        load_target("factories_here:missing")


def test_a_mistyped_factory_is_answered_with_the_near_one(folder: Path) -> None:
    with pytest.raises(TargetError, match=r"expected a function of the module\. Did you mean 'good'\?$"):
        load_target("factories_here:godo")


def test_a_file_of_another_kind_is_named(folder: Path) -> None:
    (folder / "net.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch")
    with pytest.raises(
        TargetError, match=r"target 'net.onnx': found an ONNX model, expected 'package.*Run it with onnx"
    ):
        load_target("net.onnx")


def test_what_the_target_prints_is_not_the_output_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_target("factories_here:loud")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "calling factories_here:loud\nfrom the factory\n"


def test_a_factory_that_ends_the_process_is_told(folder: Path) -> None:
    with pytest.raises(FactoryError, match="found SystemExit while it was called") as caught:
        load_target("factories_here:stop")
    assert caught.value.own_traceback.rstrip().endswith("SystemExit: 3")


@pytest.mark.parametrize("name", ["hybrid", "hybrid_with_arguments"])
def test_a_factory_of_a_hybrid_returns_it_alone_or_with_arguments(folder: Path, name: str) -> None:
    target = load_hybrid(f"factories_here:{name}")
    assert isinstance(target.hybrid, torch.fx.GraphModule)
    assert (target.args is None, target.kwargs) == ((True, None) if name == "hybrid" else (False, {"k": 1}))
    assert target.dynamic_shapes == (None if name == "hybrid" else ({0: "b"},))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "bare",
            "Linear returned, expected a torch.fx.GraphModule or a tuple.* `intarsia compile` makes a hybrid of it",
        ),
        ("pair", "a tuple of 2 returned"),
        ("good", "a hybrid of type Linear.* `intarsia compile` makes a hybrid of it"),
        ("hybrid_with_list", "args of type list"),
        ("hybrid_with_list_of_keywords", "kwargs of type list"),
    ],
)
def test_what_is_no_hybrid_is_refused(folder: Path, name: str, found: str) -> None:
    with pytest.raises(TargetError, match=found):
        load_hybrid(f"factories_here:{name}")


def test_an_exception_of_the_factory_is_shown_from_its_own_code_on(folder: Path) -> None:
    with pytest.raises(FactoryError) as caught:
        load_target("factories_here.py:raises")
    text = caught.value.own_traceback
    assert "return 1 / 0" in text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "intarsia" not in text


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("broken_here:good", "No module named 'a_package_that_is_not_there'"),
        ("failing_here:good", "as the module says"),
        ("failing_here.py:good", "as the module says"),
    ],
)
def test_a_module_that_raises_on_import_is_shown_the_same_way(folder: Path, text: str, last: str) -> None:
    with pytest.raises(FactoryError) as caught:
        load_target(text)
    assert caught.value.own_traceback.rstrip().endswith(last)
    assert "importlib" not in caught.value.own_traceback
