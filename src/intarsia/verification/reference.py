"""Models to compare with: which entry point each method has, and what it is called on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch.export import ExportedProgram

from intarsia.core.entry import common_root, owner_of
from intarsia.core.paths import input_paths
from intarsia.verification.double import Double

Entry = torch.nn.Module | Callable[..., Any]
"""A model, or a bound method of one."""


@dataclass(frozen=True)
class Reference:
    """The entry point of a model that one method is compared with.

    Attributes:
        root: Holds the model; several methods of one model have the same.
        path: Where the module of the entry point is in `root`.
        entry: The entry point, which is called on a copy of `root`.
        named: Parameters and buffers, by the names that the program has for them.
    """

    root: torch.nn.Module
    path: str
    entry: Entry
    named: Mapping[str, torch.Tensor]

    def double(self, written: Collection[Any] = ()) -> Double:
        """A double of the model, see `Double`; methods of one model may share it."""
        return Double(self.root, written)

    def side(self, double: Double) -> EntrySide:
        """The entry point on a double of `root`."""
        owner = double.module.get_submodule(self.path)
        bound = self.entry.__func__.__get__(owner) if isinstance(self.entry, MethodType) else owner
        return EntrySide(double, bound)

    def misfit(self, program: ExportedProgram) -> str:
        """A sentence that tells how the model's arguments differ in name from a program's inputs, or no text."""
        forward = self.entry.forward if isinstance(self.entry, torch.nn.Module) else self.entry
        takes, inputs = list(inspect.signature(forward).parameters), input_paths(program)
        arguments = list(dict.fromkeys(path.partition("[")[0].partition(".")[0] for path in inputs))
        if takes[: len(arguments)] == arguments:
            return ""
        name = getattr(forward, "__name__", "forward")
        return f"Its {name} takes {', '.join(takes) or 'nothing'}; the program takes {', '.join(inputs) or 'nothing'}."


@dataclass(frozen=True)
class EntrySide:
    """An entry point of a double, which is called without gradients."""

    double: Double
    entry: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        with torch.no_grad():
            return self.entry(*args, **kwargs)

    def live(self, original: Any) -> Any:
        """As `Double.live`."""
        return self.double.live(original)


def read_references(entries: Mapping[str, Entry]) -> dict[str, Reference]:
    """The references of some methods, on one root.

    Args:
        entries: Entry points by the names of the methods.

    Raises:
        CaptureError: One is no module, and no bound method of a module.
    """
    owners = {name: owner_of(entry) for name, entry in entries.items()}
    distinct = list({id(owner): owner for owner in owners.values()}.values())
    root = common_root(distinct)
    named = _named([root] if root is not None else distinct)
    if root is None:
        root = torch.nn.ModuleList(distinct)
    paths = {module: path for path, module in root.named_modules()}
    return {name: Reference(root, paths[owners[name]], entry, named) for name, entry in entries.items()}


def _named(modules: Collection[torch.nn.Module]) -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = {}
    for module in modules:
        held = {**dict(module.named_parameters()), **dict(module.named_buffers()), **held}
    return held
