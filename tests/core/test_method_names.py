"""Names that a method can have."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.core.method_names import TAKEN, check_method_names
from intarsia.errors import ConventionError
from intarsia.runtime.executorch import ExecutorchMethods
from intarsia.runtime.methods import Methods


@pytest.mark.parametrize(
    ("name", "found"),
    [("a-b", "no name in Python"), ("class", "no name in Python"), ("", "no name in Python"), (1, "no name in Python"),
     ("../a", "no name in Python"), ("a b", "no name in Python"), ("state", "taken"), ("methods", "taken"),
     ("session", "taken"), ("_programs", "taken"), ("__call__", "taken"), ("intarsia_description", "taken")],
)  # fmt: skip
def test_a_name_that_cannot_be_an_attribute_is_an_error(name: Any, found: str) -> None:
    with pytest.raises(ConventionError, match=rf"method {name!r}: found .*{found}"):
        check_method_names(["fine", name])


def test_what_programs_of_several_methods_have_is_taken() -> None:
    own = {name for kind in (Methods, ExecutorchMethods) for name in dir(kind) if not name.startswith("_")}
    assert own <= TAKEN
