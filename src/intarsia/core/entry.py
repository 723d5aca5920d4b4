"""Entry points of models: modules, and bound methods of modules."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch

from intarsia.errors import CaptureError


def owner_of(model: Any, method: str | None = None) -> torch.nn.Module:
    """The module whose entry point it is.

    Raises:
        CaptureError: It is none of a module.
    """
    owner = model.__self__ if isinstance(model, MethodType) else model
    if isinstance(owner, torch.nn.Module):
        return owner
    subject = f"method {method!r}" if method else "model"
    if not isinstance(model, MethodType):
        raise CaptureError(
            subject,
            found=f"an object of type {type(model).__name__!r}",
            expected="a torch.nn.Module, a bound method of one, or a torch.export.ExportedProgram",
            fix="Wrap a plain function in an nn.Module whose forward calls it.",
        )
    is_class = isinstance(owner, type)
    holder = (owner if isinstance(owner, type) else type(owner)).__name__
    raise CaptureError(
        subject,
        found=f"a bound method of {'the class' if is_class else 'an object of type'} {holder!r}, which is no module",
        expected="a bound method of a torch.nn.Module",
        consequence="Its state would not be known.",
        fix="Pass a method of an instance (model.decode)."
        if is_class
        else f"Make {holder} an nn.Module that registers the model and its state, and pass its method.",
    )


def common_root(owners: Iterable[torch.nn.Module]) -> torch.nn.Module | None:
    """The one of some modules that holds all others, or None when there is none.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> common_root([model[0], model]) is model
        True
    """
    owners = list(owners)
    parts = ((owner, set(owner.modules())) for owner in owners)
    return next((owner for owner, held in parts if held.issuperset(owners)), None)
