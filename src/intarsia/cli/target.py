"""Find the factory that a target names, and call it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from intarsia.errors import TargetError

if TYPE_CHECKING:
    import torch

_FORM = "'package.module:factory' or 'file.py:factory'"
_RETURNS = "a tuple (model, args, kwargs, dynamic_shapes)"


class Target(NamedTuple):
    """What a factory returns: the arguments of `intarsia.compile`."""

    model: torch.nn.Module | torch.export.ExportedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any


class FactoryError(TargetError):
    """The target's own code raised.

    Attributes:
        own_traceback: Traceback of that exception, from the target's code on.
    """

    def __init__(self, text: str, error: Exception, action: str) -> None:
        frames = error.__traceback__
        own = [frame for frame in traceback.extract_tb(frames) if not _is_machinery(frame.filename)]
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
        self.own_traceback = "".join(lines + traceback.format_exception_only(error))
        super().__init__(
            f"target {text!r}",
            found=f"{type(error).__name__} while it was {action}",
            expected=_RETURNS,
            fix="The traceback above is of the target's own code.",
        )


def load_target(text: str) -> Target:
    """Import the module that a target names, call its factory without arguments, and check what it returns.

    Args:
        text: `package.module:factory` or `file.py:factory`. The working directory is importable.

    Raises:
        TargetError: The text has another form, the module or the factory does not exist, the factory is not
            callable, or it returns something else.
        FactoryError: The module or the factory raised.
    """
    place, separator, name = text.rpartition(":")
    if not (separator and place and name):
        raise _fault(text, "no factory name", _FORM, "Write the module, a colon and the name of the factory.")
    factory = _find_factory(text, _import_module(text, place), name)
    try:
        made = factory()
    except Exception as error:
        raise FactoryError(text, error, "called") from error
    return _checked(text, made)


def _import_module(text: str, place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _import_file(text, Path(place))
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise FactoryError(text, error, "imported") from error
        found = f"no module {error.name!r}"
        raise _fault(text, found, "a module that can be imported", "Check the name and the directory.") from error
    except TargetError:
        raise
    except Exception as error:
        raise FactoryError(text, error, "imported") from error


def _import_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise _fault(text, f"no file {str(path)!r}", "a Python file", "Check the path.")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise _fault(text, f"a file {str(path)!r} that Python cannot import", "a Python file", "Check its name.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _find_factory(text: str, module: ModuleType, name: str) -> Callable[[], object]:
    factory = getattr(module, name, None)
    if factory is None:
        functions = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        known = f"It has {', '.join(functions)}." if functions else "It has no functions."
        raise _fault(text, f"nothing named {name!r}", "a function of the module", known)
    if not callable(factory):
        raise _fault(text, f"{name!r} of type {type(factory).__name__}", "a function", f"Make {name!r} a function.")
    return factory  # type: ignore[no-any-return] # callable, as just checked


def _checked(text: str, made: object) -> Target:
    import torch

    fix = "Return the model, its example arguments, keyword arguments or None, and dynamic shapes or None."
    if not isinstance(made, tuple) or len(made) != len(Target._fields):
        found = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise _fault(text, f"{found} returned", _RETURNS, fix)
    model, args, kwargs, dynamic_shapes = made
    if not isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        raise _fault(text, f"a model of type {type(model).__name__}", "an nn.Module or ExportedProgram", fix)
    if not isinstance(args, tuple):
        raise _fault(text, f"args of type {type(args).__name__}", "a tuple", fix)
    if not isinstance(kwargs, Mapping | None):
        raise _fault(text, f"kwargs of type {type(kwargs).__name__}", "a dict or None", fix)
    return Target(model, args, dict(kwargs or {}), dynamic_shapes)


def _fault(text: str, found: str, expected: str, fix: str) -> TargetError:
    return TargetError(f"target {text!r}", found=found, expected=expected, fix=fix)


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__
