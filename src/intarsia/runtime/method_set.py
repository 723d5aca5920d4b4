"""What a program of several methods is to its caller: each method an attribute, and no call without a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from intarsia.errors import ConventionError, near_match
from intarsia.runtime.uncopied import Uncopied

Callee = TypeVar("Callee")


class UnknownMethod(ConventionError, AttributeError):
    """A method was asked for that the file does not hold."""


class MethodSet(Uncopied, Generic[Callee]):
    """Methods by name, as attributes. Those that have it decide what the methods are and what state they share."""

    _programs: Mapping[str, Callee]

    def __getattr__(self, name: str) -> Callee:
        """The program of a method.

        Raises:
            UnknownMethod: There is no method of this name.
        """
        programs: Mapping[str, Callee] = self.__dict__.get("_programs", {})
        if name in programs:
            return programs[name]
        raise UnknownMethod(
            f"program of the methods {', '.join(programs)}",
            found=f"no method {name!r}",
            expected="one of them",
            fix=near_match(name, programs) or "Call one of its methods by name, program.NAME(...).",
        )

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a method has to be named.

        Raises:
            ConventionError: Always.
        """
        raise ConventionError(
            f"program of the methods {', '.join(self.methods)}",
            found="a call without a method",
            expected="one of them",
            fix=f"Call program.{self.methods[0]}(...).",
        )

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._programs]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(self._programs)
