"""ExecuTorch itself, imported when it is first needed."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from intarsia.errors import EngineUnavailable
from intarsia.formats.pte.combination import FIX, check_combination, untried_here

# torchao, which ExecuTorch imports, complains of kernels that it lacks here and of its own use of torch.
_TALKATIVE = ("torchao", "torch.utils._pytree")


def import_executorch(module: str) -> ModuleType:
    """A module of ExecuTorch.

    Args:
        module: Its name below `executorch`.

    Raises:
        EngineUnavailable: It is not installed, cannot be imported, or its versions do not go together.
    """
    check_combination()
    try:
        with _quiet():
            return importlib.import_module(f"executorch.{module}")
    except ImportError as error:
        raise EngineUnavailable(
            "ExecuTorch",
            found=f"that the module 'executorch.{module}' cannot be imported ({error})",
            expected="one that can",
            consequence=untried_here(),
            fix=FIX,
        ) from error


@contextmanager
def lowering() -> Iterator[None]:
    """While ExecuTorch lowers a program, sizes stay open, and what torch and it say of themselves is not shown."""
    with warnings.catch_warnings(), _sizes_left_open():
        warnings.filterwarnings("ignore", ".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "(read_binary|read_text|open_text) is deprecated", DeprecationWarning)
        # what it says is lost is kept here: see `keep_state`
        warnings.filterwarnings("ignore", "Mutation on a buffer in the model is detected", UserWarning)
        yield


@contextmanager
def _sizes_left_open() -> Iterator[None]:
    """Keep ExecuTorch's verifier from fixing sizes that may change.

    It takes the list that `split` or `unbind` returns for its first tensor, and asks for the first size of that as a
    number: the size becomes that of the example, in the program that was given as well. It verifies all that it did.
    """
    verifier: Any = import_executorch("exir.verification.verifier")
    original: Any = verifier.EdgeOpArgValidator

    class Validator(original):  # type: ignore[misc]  # it is known at run time only
        def run(self, *args: Any, **kwargs: Any) -> Any:
            modes = [mode for value in args if (mode := getattr(value, "fake_mode", None))]
            with modes[0].shape_env.suppress_guards() if modes and modes[0].shape_env else nullcontext():
                return super().run(*args, **kwargs)

    verifier.EdgeOpArgValidator = Validator
    try:
        yield
    finally:
        verifier.EdgeOpArgValidator = original


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
