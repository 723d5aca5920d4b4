"""The look that all reports share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

_FLUSH_RIGHT = frozenset({"nodes", "bytes", "compiled", "portable"})


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> Table:
    """A table without frames, whose cells wrap instead of losing text. Square brackets in a cell stay as they are.

    Args:
        columns: Headings; columns of numbers are set flush right.
        rows: Cells, as many in each row as there are columns.
        title: Line above the headings.
    """
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in _FLUSH_RIGHT else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


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
