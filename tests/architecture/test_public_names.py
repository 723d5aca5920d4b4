"""The public names are a promise: sorted, present, documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import intarsia
from intarsia import errors


def test_public_names_are_sorted() -> None:
    assert list(intarsia.__all__) == sorted(intarsia.__all__)


def test_the_functions_of_the_design_are_public() -> None:
    assert {"compile", "coverage", "export", "ledger", "load", "save"} <= set(intarsia.__all__)


@pytest.mark.parametrize("name", intarsia.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(intarsia, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value)


def test_dir_lists_the_public_names() -> None:
    assert set(intarsia.__all__) <= set(dir(intarsia))


def test_every_error_stands_in_the_tree_of_the_module_docstring() -> None:
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            assert name in (errors.__doc__ or "")


def test_every_module_can_be_imported_and_says_what_it_is() -> None:
    for module in pkgutil.walk_packages(intarsia.__path__, "intarsia."):
        assert importlib.import_module(module.name).__doc__, module.name
