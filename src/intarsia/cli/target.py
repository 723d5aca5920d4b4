"""Find the factory that a target names, call it, and check what it returns."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from intarsia.cli.console import error_console
from intarsia.errors import TargetError, near_match
from intarsia.formats.recognition import recognise

if TYPE_CHECKING:
    import torch

_FORM = "'package.module:factory' or 'file.py:factory'"
_RETURNS = "a tuple (model, args, kwargs, dynamic_shapes)"
_RETURNS_HYBRID = "a torch.fx.GraphModule or a tuple (hybrid, args, kwargs, dynamic_shapes)"


class HybridTarget(NamedTuple):
    """What a factory of a hybrid, or of several methods, returns: the arguments of `intarsia.export`."""

    hybrid: torch.fx.GraphModule | Mapping[str, torch.fx.GraphModule]
    args: Any
    kwargs: dict[str, Any] | None
    dynamic_shapes: Any


class Target(NamedTuple):
    """What a factory returns: the arguments of `intarsia.compile`.

    For several methods, the model is a mapping of entry points, and so are the others.
    """

    model: Any
    args: Any
    kwargs: dict[str, Any]
    dynamic_shapes: Any

    def of_method(self, subject: str, name: str | None) -> Target:
        """The target of one method: this one where it is a model, an entry point where it is several.

        Args:
            subject: What named the target.
            name: The method; None for a program that is one.

        Raises:
            TargetError: The target has several entry points, and none of this name.
        """
        if not isinstance(self.model, Mapping):
            return self
        if name is None or name not in self.model:
            raise _fault(
                subject,
                f"the entry points {', '.join(self.model)}",
                f"one named {name!r}" if name else "one model, for FILE holds one program",
                "Name the target that the file was made of.",
            )
        shapes = (self.dynamic_shapes or {}).get(name)
        return Target(self.model[name], (self.args or {}).get(name) or (), self.kwargs.get(name) or {}, shapes)


class FactoryError(TargetError):
    """The target's own code raised.

    Attributes:
        own_traceback: Traceback of that exception, from the target's code on.
    """

    def __init__(self, subject: str, error: BaseException, action: str) -> None:
        frames = error.__traceback__
        own = [frame for frame in traceback.extract_tb(frames) if not _is_machinery(frame.filename)]
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
        self.own_traceback = "".join(lines + traceback.format_exception_only(error))
        super().__init__(
            subject,
            found=f"{type(error).__name__} while it was {action}",
            expected="no exception",
            fix="The traceback above is of its own code.",
        )


def load_target(text: str) -> Target:
    """Call the factory that a target names, and check that it returns what `intarsia.compile` takes.

    Args:
        text: `package.module:factory` or `file.py:factory`. The working directory is importable.

    Raises:
        TargetError: The text has another form, the module or the factory does not exist, the factory cannot be
            called without arguments, or it returns something else.
        FactoryError: The module or the factory raised.
    """
    subject = f"target {text!r}"
    made = _call_factory(subject, text)
    import torch  # after the target was found: importing it takes long, and a mistyped target is told at once

    fix = "Return the model and its example arguments, then keyword arguments and dynamic shapes where it has any."
    if not isinstance(made, tuple) or not 2 <= len(made) <= len(Target._fields):
        raise _fault(subject, f"{_kind_of(made)} returned", _RETURNS, fix)
    model, args, kwargs, dynamic_shapes = (*made, None, None)[: len(Target._fields)]
    if isinstance(model, Mapping):
        _check_mappings(subject, {"args": args, "dynamic_shapes": dynamic_shapes})
        return Target(model, args, _checked_kwargs(subject, kwargs, fix) or {}, dynamic_shapes)
    if not isinstance(model, torch.nn.Module | torch.export.ExportedProgram | MethodType):
        expected = "an nn.Module, a bound method of one, an ExportedProgram, or a mapping of these"
        raise _fault(subject, f"a model of type {type(model).__name__}", expected, fix)
    if not isinstance(args, tuple):
        raise _fault(subject, f"args of type {type(args).__name__}", "a tuple", fix)
    return Target(model, args, _checked_kwargs(subject, kwargs, fix) or {}, dynamic_shapes)


def load_hybrid(text: str) -> HybridTarget:
    """Call the factory that a target names, and check that it returns what `intarsia.export` takes.

    Args:
        text: As for `load_target`. The factory returns a hybrid, or a hybrid with example arguments, keyword arguments
            and dynamic shapes where the hybrid's graph has no metadata.

    Raises:
        TargetError: As for `load_target`.
        FactoryError: The module or the factory raised.
    """
    subject = f"target {text!r}"
    made = _call_factory(subject, text)
    import torch  # after the target was found: importing it takes long, and a mistyped target is told at once

    fix = "Return the hybrid; where its graph has no metadata, with example args, kwargs and dynamic_shapes."
    if isinstance(made, torch.fx.GraphModule | Mapping):
        return HybridTarget(made, None, None, None)
    first = made[0] if isinstance(made, tuple) and made else made
    if isinstance(first, torch.nn.Module | torch.export.ExportedProgram) and not isinstance(
        first, torch.fx.GraphModule
    ):
        fix = "That is a model: `intarsia compile` makes a hybrid of it, exports it and saves it."
    if not isinstance(made, tuple) or len(made) != len(HybridTarget._fields):
        raise _fault(subject, f"{_kind_of(made)} returned", _RETURNS_HYBRID, fix)
    hybrid, args, kwargs, dynamic_shapes = made
    if isinstance(hybrid, Mapping):
        return HybridTarget(hybrid, args, _checked_kwargs(subject, kwargs, fix), dynamic_shapes)
    if not isinstance(hybrid, torch.fx.GraphModule):
        raise _fault(subject, f"a hybrid of type {type(hybrid).__name__}", "a torch.fx.GraphModule", fix)
    if not isinstance(args, tuple | None):
        raise _fault(subject, f"args of type {type(args).__name__}", "a tuple or None", fix)
    return HybridTarget(hybrid, args, _checked_kwargs(subject, kwargs, fix), dynamic_shapes)


def import_modules(names: Iterable[str]) -> None:
    """Import what the option --import names.

    Args:
        names: `package.module` or `file.py`, each. The working directory is importable.

    Raises:
        TargetError: A module does not exist.
        FactoryError: A module raised.
    """
    with redirect_stdout(sys.stderr):
        for name in names:
            _import_module(f"--import {name}", name)


def _call_factory(subject: str, text: str) -> object:
    place, separator, name = text.rpartition(":")
    if not (separator and place and name):
        raise _formless(subject, text)
    # What the target's code prints is not the command's output.
    with redirect_stdout(sys.stderr):
        factory = _find_factory(subject, _import_module(subject, place), name)
        error_console().print(f"calling {text}", markup=False)
        try:
            return factory()
        except (Exception, SystemExit) as error:
            raise FactoryError(subject, error, "called") from error


def _formless(subject: str, text: str) -> TargetError:
    path = Path(text)
    if path.is_file() and path.suffix != ".py":
        kind = recognise(path)
        return _fault(subject, kind.what, _FORM, kind.advice)
    fix = "Write the module or the file, a colon and the name of the factory."
    return _fault(subject, "no factory name" if text.strip(": ") else "no text", _FORM, fix)


def _import_module(subject: str, place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _import_file(subject, Path(place))
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise FactoryError(subject, error, "imported") from error
        found = f"no module {error.name!r}"
        raise _fault(subject, found, "a module that can be imported", "Check the name and the directory.") from error
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        raise FactoryError(subject, error, "imported") from error


def _import_file(subject: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise _fault(subject, f"no file {str(path)!r}", "a Python file", "Check the path.")
    if path.stem in sys.stdlib_module_names:
        found = f"a file of the name of Python's own module {path.stem!r}"
        raise _fault(subject, found, "a name of its own, for others import that module", "Rename the file.")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise _fault(subject, f"a file {str(path)!r} that Python cannot import", "a Python file", "Check its name.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _find_factory(subject: str, module: ModuleType, name: str) -> Callable[[], object]:
    factory = getattr(module, name, None)
    if factory is None:
        functions = [key for key, value in vars(module).items() if _is_own_function(value, module)]
        known = near_match(name, functions) or f"It has {', '.join(functions) or 'no functions'}."
        raise _fault(subject, f"nothing named {name!r}", "a function of the module", known)
    if not callable(factory):
        raise _fault(subject, f"{name!r} of type {type(factory).__name__}", "a function", f"Make {name!r} a function.")
    required = _required(factory)
    if required:
        found = f"a function that needs {', '.join(required)}"
        fix = f"Give {name!r} defaults, or write a function that calls it."
        raise _fault(subject, found, "a function without arguments", fix)
    return factory  # type: ignore[no-any-return] # callable, as just checked


def _is_own_function(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _required(factory: Callable[..., object]) -> list[str]:
    """Parameters that a call must pass; none where Python cannot tell."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _check_mappings(subject: str, given: Mapping[str, object]) -> None:
    """Refuse, beside a mapping of entry points, what is none; unknown names `intarsia.compile` tells."""
    for name, value in given.items():
        if not isinstance(value, Mapping | None):
            expected = "a mapping with the names of the entry points, or None"
            raise _fault(subject, f"{name} of type {type(value).__name__}", expected, f"Return {name} by these names.")


def _checked_kwargs(subject: str, kwargs: object, fix: str) -> dict[str, Any] | None:
    if not isinstance(kwargs, Mapping | None):
        raise _fault(subject, f"kwargs of type {type(kwargs).__name__}", "a dict or None", fix)
    return None if kwargs is None else dict(kwargs)


def _kind_of(made: object) -> str:
    return f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__


def _fault(subject: str, found: str, expected: str, fix: str) -> TargetError:
    return TargetError(subject, found=found, expected=expected, fix=fix)


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__
