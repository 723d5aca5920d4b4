"""Where operators come from: a file tells it, so that who lacks an operator knows what to install and import."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions, version
from pathlib import PurePath

import torch

from intarsia._torch import OpOverload, operator_name, where_registered

# Operators of these are in every process that loads a file.
_OWN = frozenset(["aten", "higher_order", "intarsia", "prim", "prims"])


def packages_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """The packages that registered the operators of a program, by namespace: with its version, "torchvision 0.26".

    A namespace is left out where nothing tells, and where torch or intarsia registered it. A module that no installed
    package holds stands without a version.

    Example:
        >>> packages_of(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)))
        {}
    """
    named = {name.partition("::")[0]: name for name in sorted(_operators(program))}
    found = {space: _package(where_registered(name)) for space, name in named.items() if space not in _OWN}
    return {space: package for space, package in found.items() if package and not package.startswith("torch ")}


def _operators(program: torch.export.ExportedProgram) -> Iterator[str]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if isinstance(node.target, OpOverload):
                    yield operator_name(node.target)


def _package(path: str) -> str:
    """The package of a source file, with its version: that of the module loaded from it, else one named in the path."""
    if not path:
        return ""
    modules = [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == path]
    parts = [modules[0].partition(".")[0]] if modules else list(PurePath(path).parts)
    known = packages_distributions()
    distributions = [distribution for part in parts for distribution in known.get(part, ())]
    if distributions:
        return f"{distributions[0]} {version(distributions[0])}"
    return parts[0] if modules else ""


def describe_operators(operators: list[str], packages: Mapping[str, str]) -> str:
    """Operators with the package that provides each, for an error.

    Example:
        >>> describe_operators(["my::double", "your::half"], {"my": "my-ops 1.2"})
        'my::double (of my-ops 1.2), your::half'
    """
    spaces = {name: name.partition("::")[0] for name in operators}
    return ", ".join(name + (f" (of {packages[space]})" if space in packages else "") for name, space in spaces.items())
