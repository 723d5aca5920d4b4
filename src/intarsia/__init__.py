"""Export, save, load and run PyTorch programs that mix compiled engines and torch operators.

Importing intarsia does not import torch, so that the command line answers at once. It registers the operator
`intarsia::run_engine`, with which files that hold engines load: now if torch was imported before, else when it is.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.api import compile, coverage, export, ledger, load, plan, save, verify  # noqa: A004 - named as in torch
    from intarsia.runtime.methods import Methods
    from intarsia.runtime.program import Program

__all__ = [
    "IntarsiaError",
    "Methods",
    "Program",
    "compile",
    "coverage",
    "export",
    "ledger",
    "load",
    "plan",
    "save",
    "verify",
]
__version__ = "0.1.0"

_RUNTIME = {"Methods": "intarsia.runtime.methods", "Program": "intarsia.runtime.program"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module 'intarsia' has no attribute {name!r}"
        raise AttributeError(message)
    module = _RUNTIME.get(name, "intarsia.api")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _OperatorRegistration(MetaPathFinder):
    """Registers the engine operator right after the first import of torch."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                importlib.import_module("intarsia.core.op")

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


if "torch" in sys.modules:
    importlib.import_module("intarsia.core.op")
else:
    sys.meta_path.insert(0, _OperatorRegistration())
