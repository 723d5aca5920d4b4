"""Where the commands print: tables and progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[int, int, str], None]

_PLAIN_WIDTH = 160


def output_console() -> Console:
    """Standard output. Without a terminal the lines are wide, so that tables do not fold."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


def error_console() -> Console:
    """Standard error, for messages and progress; long messages are left for the terminal to wrap."""
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def progress_reporter(task: str) -> Iterator[Report]:
    """Show progress on standard error: a bar with the time left on a terminal, else a line for each step.

    Args:
        task: What is going on, for instance "building engines".

    Yields:
        A callable that takes how many steps are done, how many there are, and the name of the next one ("" at the end).
    """
    console = error_console()
    if not console.is_terminal:
        yield lambda done, total, name: console.print(f"{task}: {done}/{total} {name}".rstrip(), markup=False)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(task, total=None)
        yield lambda done, total, name: progress.update(bar, completed=done, total=total, description=f"{task}: {name}")
