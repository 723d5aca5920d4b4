"""Where the commands print: tables and progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

Report = Callable[[int, int, str], None]

_PLAIN_WIDTH = 160


class _Console(Console):
    """A console that leaves a reader who went away to the application, whose exit code it is."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this while it handles the BrokenPipeError


def output_console() -> Console:
    """Standard output. Without a terminal, and without COLUMNS, the lines are wide, so that tables do not fold."""
    console = _Console(markup=False, highlight=False, emoji=False, color_system=_color_system())
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console.width = _PLAIN_WIDTH
    return console


def error_console() -> Console:
    """Standard error, for messages and progress; without a terminal a message is one line."""
    console = _Console(stderr=True, highlight=False, emoji=False, color_system=_color_system())
    console.soft_wrap = not console.is_terminal
    return console


def print_heading(text: str) -> None:
    """Print what stands above the tables of one of several methods; nothing where the text is empty."""
    if text:
        output_console().print(f"{text}:")


def _color_system() -> Literal["auto"] | None:
    """None where NO_COLOR is set: rich by itself would leave text bold."""
    return None if os.environ.get("NO_COLOR") else "auto"


@contextmanager
def activity(task: str) -> Iterator[Report]:
    """Show on standard error that something goes on: with its time on a terminal, else by one line.

    Args:
        task: What goes on, for instance "saving m.pt2".

    Yields:
        A callable that takes how much is done and how much there is, where that is known: a terminal then shows a bar
        with the time left.
    """
    console = error_console()
    if not _draws(console):
        console.print(task, markup=False)
        yield _untold
        return
    with _bars(console) as progress:
        bar = progress.add_task(task, total=None)
        yield lambda done, total, _: progress.update(bar, completed=done, total=total)


def _untold(_done: int, _total: int, _name: str) -> None:
    """Progress that is not shown."""


@contextmanager
def progress_reporter(task: str, *, before: str = "") -> Iterator[Report]:
    """Show progress on standard error: a bar with the time left on a terminal, else a line for each tenth of the steps.

    Args:
        task: What goes on, for instance "building engines".
        before: What goes on before the first step, whose length is not known.

    Yields:
        A callable that takes how many steps are done, how many there are, and the name of the next one ("" at the end).
    """
    console = error_console()
    if not _draws(console):
        if before:
            console.print(before, markup=False)
        yield _Lines(task, console)
        return
    with _bars(console) as progress:
        bar = progress.add_task(before or task, total=None)
        yield lambda done, total, _: progress.update(
            bar, completed=done, total=total, description=step_text(task, done, total)
        )


class _Lines:
    """Progress as lines: the first step, the last, and between them one for each tenth."""

    def __init__(self, task: str, console: Console) -> None:
        self._task = task
        self._console = console
        self._told: int | None = None

    def __call__(self, done: int, total: int, _: str) -> None:
        begins = self._told is None or done < self._told
        if begins or done - (self._told or 0) >= max(1, total / 10) or self._told != done == total:
            self._console.print(step_text(self._task, done, total), markup=False)
            self._told = done


def step_text(task: str, done: int, total: int) -> str:
    """How progress is told, on a terminal and elsewhere.

    Example:
        >>> step_text("building engines", 1, 7)
        'building engines: 1 of 7'
    """
    return f"{task}: {done} of {total}"


def _draws(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _bars(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _TimeColumn(),
    )
    return Progress(*columns, console=console, transient=True)


class _TimeColumn(ProgressColumn):
    """The time left where it can be told, else the time that has passed."""

    def __init__(self) -> None:
        super().__init__()
        self._left = TimeRemainingColumn()
        self._passed = TimeElapsedColumn()

    def render(self, task: Task) -> Text:
        if task.time_remaining is None:
            return self._passed.render(task)
        return Text.assemble(self._left.render(task), " left")
