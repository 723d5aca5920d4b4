"""Read FlatBuffers, the encoding of ExecuTorch's files, without trust in what they say."""

from __future__ import annotations

import struct
from typing import Any


class Table:
    """A table of a FlatBuffer: fields by their number in the schema.

    Args:
        data: The buffer.
        position: Where the table lies in it.

    Example:
        >>> data = bytes([12, 0, 0, 0, 8, 0, 8, 0, 4, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0])
        >>> Table.root(memoryview(data)).number(0)
        7
        >>> Table.root(memoryview(data)).number(1, default=3)
        3
    """

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        self._fields = position - self._read("<i", position)
        self._size = self._read("<H", self._fields)

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """The table that a buffer begins with.

        Raises:
            ValueError: Its bytes are no table; so for every other method.
        """
        if len(data) < 4:
            message = "it is too short"
            raise ValueError(message)
        return cls(data, struct.unpack_from("<I", data)[0])

    def number(self, field: int, form: str = "<I", default: int = 0) -> int:
        """A number, or its default where it is not written."""
        place = self._find(field)
        return default if place is None else self._read(form, place)

    def text(self, field: int) -> str:
        """A text; empty where there is none."""
        start, count = self._vector(field, 1)
        return str(self._data[start : start + count], "utf-8")

    def numbers(self, field: int, form: str = "<i") -> list[int]:
        """A vector of numbers."""
        size = struct.calcsize(form)
        start, count = self._vector(field, size)
        return [number for (number,) in struct.iter_unpack(form, self._data[start : start + count * size])]

    def table(self, field: int) -> Table | None:
        """A table, or None where there is none."""
        place = self._find(field)
        return None if place is None else Table(self._data, place + self._read("<I", place))

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        start, count = self._vector(field, 4)
        places = range(start, start + 4 * count, 4)
        return [Table(self._data, place + self._read("<I", place)) for place in places]

    def _find(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = self._read("<H", self._fields + entry) if entry + 2 <= self._size else 0
        return self._position + offset if offset else None

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        place = self._find(field)
        if place is None:
            return 0, 0
        vector = place + self._read("<I", place)
        count = self._read("<I", vector)
        if vector + 4 + count * size > len(self._data):
            message = f"a vector of {count} elements at byte {vector} leads out of it"
            raise ValueError(message)
        return vector + 4, count

    def _read(self, form: str, position: int) -> int:
        if position < 0 or position + struct.calcsize(form) > len(self._data):
            message = f"byte {position} lies outside of it"
            raise ValueError(message)
        found: tuple[Any, ...] = struct.unpack_from(form, self._data, position)
        return int(found[0])
