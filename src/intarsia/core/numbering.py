"""Numbers for values: two values have one number exactly if they are described by one key."""

from __future__ import annotations

from typing import Any

from intarsia.core.effects import Effects


class Number:
    """One value. Two values are the same exactly if their numbers are one object.

    Args:
        origin: Name of the node that made it first.
        body: The module, when the value is a body of a higher-order operator.

    Attributes:
        length: How many elements it has, when it is what an operator of several results returned.
        results: Container of these elements.
    """

    __slots__ = ("body", "length", "origin", "results")

    def __init__(self, origin: str, body: Any = None) -> None:
        self.origin = origin
        self.body = body
        self.length = 0
        self.results: type = tuple


class Numbering:
    """Numbers that hybrid and program share, so that what they compute can be compared."""

    def __init__(self) -> None:
        self._numbers: dict[Any, Number] = {}
        self.effects = Effects()

    def number(self, key: Any, origin: str, body: Any = None) -> Number:
        """The number of the value that a key describes.

        Args:
            key: Hashable; what tells the value from all others.
            origin: Name of the node that made it.
            body: The module, when the value is a body of a higher-order operator.
        """
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = Number(origin, body)
        return found

    def keys(self) -> dict[Number, Any]:
        """The key of each number; made anew, for a message when a comparison has failed."""
        return {number: key for key, number in self._numbers.items()}


class FreeValues:
    """What a body reads from outside of itself: operands that its operator passes on, and attributes.

    Each has the number of its place in the order of first use, so that one body reads like another that comes by the
    same values in another way.

    Attributes:
        used: The values that the body uses, in that order: for an operand its position among those that are passed
            on, for an attribute the object itself in a tuple.
    """

    def __init__(self, numbering: Numbering) -> None:
        self.used: list[int | tuple[Any]] = []
        self._numbering = numbering
        self._sources: dict[Number, int | tuple[Any]] = {}
        self._places: dict[Number, Number] = {}

    def operand(self, position: int) -> Number:
        """The number of an operand that the operator passes on, until it is used."""
        number = self._numbering.number(("passed", position), f"operand {position}")
        self._sources[number] = position
        return number

    def attribute(self, number: Number, value: Any) -> None:
        """Enter the number of an attribute."""
        self._sources[number] = (value,)

    def use(self, number: Number, own: Number) -> Number:
        """The number that a use of a value sees: that of its place, or its own when it does not come from outside."""
        source = self._sources.get(number)
        if source is None:
            return own
        place = self._places.get(number)
        if place is None:
            place = self._places[number] = self._numbering.number(("free", len(self.used)), number.origin)
            self.used.append(source)
        return place


def key_of(value: Any) -> Any:
    """A value as a key: containers by their elements, constants by type and value."""
    if isinstance(value, Number):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(key_of, value))
    if isinstance(value, dict):
        return tuple((key, key_of(item)) for key, item in value.items())
    if isinstance(value, slice):
        return ("slice", key_of(value.start), key_of(value.stop), key_of(value.step))
    return (type(value), repr(value) if isinstance(value, float) else value)
