"""What `torch.export` is given for an entry point: a module that is called, or a bound method of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple

import torch

from intarsia.core.entry import owner_of

# No names of attributes, so that no model has them.
_BEGIN, _FINISH = "intarsia: begin", "intarsia: finish"


class Traceable(NamedTuple):
    """What is captured.

    Attributes:
        subject: The entry point, as the user knows it.
        module: What `torch.export` is given: its state has the names that the captured program shall have.
        forward: The function whose parameters a call takes.
    """

    subject: str
    module: torch.nn.Module
    forward: Callable[..., Any]


def read_entry(model: Any, method: str | None = None, root: torch.nn.Module | None = None) -> Traceable:
    """The entry point that a module or a bound method is.

    Args:
        model: Module, or bound method of a module.
        method: Name of the method that it is, where it is one of several.
        root: The module whose names the state shall have; the entry point's own module when None.

    Raises:
        CaptureError: It is neither.
    """
    owner = owner_of(model, method)
    is_method = isinstance(model, MethodType)
    name = method or (model.__name__ if is_method else None)
    subject = f"model {type(owner).__name__!r}" + (f", method {name!r}" if name else "")
    forward = model if is_method else owner.forward
    if not is_method and root in (None, owner):
        return Traceable(subject, owner, forward)
    return Traceable(subject, _face(root or owner, model, forward), forward)


def _face(root: torch.nn.Module, call: Callable[..., Any], forward: Callable[..., Any]) -> torch.nn.Module:
    """A module that has all attributes of `root`, its state too, and whose call is `call`.

    It is another object on the same attributes: what torch puts in the place of a parameter while it traces, the method
    sees, which is bound to the model itself. So the method may call `self`, `self.forward` and `super()`, and no hook
    of the model runs, as none does when a method is called.
    """

    def called(face: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        getattr(face, _BEGIN)()
        return getattr(face, _FINISH)(call(*args, **kwargs))

    members = {
        "__module__": type(root).__module__,
        "__doc__": type(root).__doc__,
        "__call__": called,
        # A property, for an attribute of the instance may be named so.
        "forward": property(lambda _: forward),
        _BEGIN: staticmethod(lambda: None),
        _FINISH: staticmethod(lambda outputs: outputs),
    }
    face: torch.nn.Module = object.__new__(type(type(root).__name__, (torch.nn.Module,), members))
    face.__dict__ = root.__dict__
    return face


@contextmanager
def around_call(module: torch.nn.Module, begin: Callable[[], None], finish: Callable[[Any], Any]) -> Iterator[None]:
    """Let functions run before and after each call of an entry's module.

    Args:
        module: `Entry.module`.
        begin: Is called before.
        finish: Takes what the call returns, gives what it shall return.
    """
    face = type(module)
    if _FINISH in vars(face):  # the class is that of this entry alone
        setattr(face, _BEGIN, staticmethod(begin))
        setattr(face, _FINISH, staticmethod(finish))
        yield
        return
    hooks = (
        module.register_forward_pre_hook(lambda _, __: begin(), prepend=True),
        module.register_forward_hook(lambda _, __, outputs: finish(outputs)),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
