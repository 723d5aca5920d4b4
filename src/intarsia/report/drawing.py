"""The look that all reports share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 3
_FLUSH_RIGHT = frozenset({"nodes", "bytes", "compiled", "portable"})


@dataclass(frozen=True)
class PlainTable:
    """A table without frames, whose cells wrap instead of losing text. Square brackets in a cell stay as they are.

    Names, in the first column, wrap last: where the words of the other columns leave them no room, and then between
    their parts if they can.

    Attributes:
        columns: Headings; columns of numbers are set flush right.
        rows: Cells, as many in each row as there are columns.
        title: Line above the headings.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table in the width that there is."""
        room = options.max_width - self._narrowest_rest
        rows = [(_in_lines(name, room), *rest) for name, *rest in self.rows]
        is_whole = all(len(line) <= room for name, *_ in rows for line in name.split("\n"))
        table = Table(box=box.SIMPLE_HEAD, title=self.title, title_justify="left", title_style="bold", pad_edge=False)
        for index, heading in enumerate(self.columns):
            justify: Literal["left", "right"] = "right" if heading in _FLUSH_RIGHT else "left"
            stays = index == 0 or not any(" " in cell for cell in (heading, *(row[index] for row in rows)))
            table.add_column(heading, overflow="fold", justify=justify, no_wrap=stays and is_whole)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        yield table

    @property
    def _narrowest_rest(self) -> int:
        """How wide the table is without the names, with the other columns as narrow as their longest words."""
        cells = [(heading, *(row[index] for row in self.rows)) for index, heading in enumerate(self.columns)]
        words = [max(len(word) for cell in column for word in cell.split(" ")) for column in cells[1:]]
        return sum(words) + _GAP * len(self.columns)


def _in_lines(name: str, room: int) -> str:
    """A name on as many lines as its parts need; a part that is too long stays as it is."""
    lines = [""]
    for part in re.split(r"(?<=[._ ])|(?=\[)", name):
        if lines[-1] and len(lines[-1]) + len(part) > room:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> PlainTable:
    """A table of all rows; see `PlainTable`."""
    return PlainTable(columns, tuple(rows), title)


def byte_text(size_bytes: int) -> str:
    """A number of bytes as people read it.

    Example:
        >>> byte_text(512), byte_text(45_434_187)
        ('512 B', '45.4 MB')
    """
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} B"
