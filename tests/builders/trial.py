"""What becomes of a changed file: loaded, called, and given to the commands."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import intarsia
from builders.good_files import CALLS, GoodFile, answers_of, same_answers
from intarsia.cli.benching import bench_file
from intarsia.cli.checking import check_file
from intarsia.cli.comparing import compare_files
from intarsia.cli.inspecting import inspect_file
from intarsia.cli.running import run_file
from intarsia.cli.verifying import verify_file
from intarsia.errors import IntarsiaError
from intarsia.runtime.methods import Methods

Outcome = Literal["refused", "answers the same", "answers otherwise", "refuses the calls"]
COMMANDS = ("inspect", "diff", "run", "verify", "bench")


class Fault(AssertionError):
    """What must not be: an exception that is none of ours, wrong numbers, or text that steers a terminal."""


class Trial(NamedTuple):
    """A file that is tried.

    Attributes:
        path: The file.
        good: What it was made of.
        is_honest: Whether it can be a good file of something else.
    """

    path: Path
    good: GoodFile
    is_honest: bool

    def load_and_call(self) -> Outcome:
        """Load the file, and make the calls of its kind.

        Raises:
            Fault: Something happened that must not.
        """
        loaded = _ours("load", lambda: intarsia.load(self.path))
        if loaded is None:
            return "refused"
        calls = [call for call in CALLS[self.good.kind] if self._has(loaded, call[0])]
        answers = _ours("call", lambda: answers_of(loaded, calls), run_by_torch=self.is_honest)
        if answers is None:
            return "refuses the calls"
        if len(calls) == len(self.good.answers) and same_answers(answers, self.good.answers):
            return "answers the same"
        if not self.is_honest:
            raise Fault("call: other answers than those of the good file")
        return "answers otherwise"

    def command(self, name: str) -> Callable[[], None]:
        """What gives the file to a command; raises `Fault` as `load_and_call` does."""

        def give() -> None:
            shown = io.StringIO()
            with redirect_stdout(shown), redirect_stderr(shown):
                _ours(name, self._commands()[name])
            if not shown.getvalue().replace("\n", " ").isprintable():
                raise Fault(f"{name}: control characters in what it shows")

        return give

    def _commands(self) -> Mapping[str, Callable[[], object]]:
        method = CALLS[self.good.kind][-1][0] if self.good.kind == "methods" else None
        return {
            "inspect": partial(inspect_file, self.path),
            "check": partial(check_file, self.path),
            "diff": partial(compare_files, self.good.path, self.path),
            "run": partial(run_file, self.path, method=method),
            "verify": partial(verify_file, self.path),
            "bench": partial(bench_file, self.path, method=method, calls=2),
        }

    @staticmethod
    def _has(loaded: Any, method: str) -> bool:
        return method in loaded.methods if isinstance(loaded, Methods) else method == "forward"


def _ours(stage: str, made: Callable[[], Any], *, run_by_torch: bool = False) -> Any:
    """What is made, or None where it ends in one of our errors."""
    try:
        return made()
    except IntarsiaError as error:
        if not str(error).isprintable():
            raise Fault(f"{stage}: control characters in {str(error)!a}"[:300]) from error
    except Exception as error:
        # A command ends so with its exit code.
        if hasattr(error, "exit_code") or (run_by_torch and not isinstance(error, MemoryError)):
            return None
        raise Fault(f"{stage}: {type(error).__name__}: {error}"[:300]) from error
    return None


def try_file(trial: Trial, commands: Collection[str] = COMMANDS) -> Outcome:
    """Load a file, call what it holds, and give it to commands.

    Raises:
        Fault: Something happened that must not.
    """
    outcome = trial.load_and_call()
    for command in ("check", *commands):
        trial.command(command)()
    return outcome
