"""Programs of files without a graph: another runtime runs them, and they are called as the model was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from intarsia.core.signature import DTYPES
from intarsia.core.vectors import Vectors
from intarsia.runtime.boundary import Boundary
from intarsia.runtime.method_set import MethodSet
from intarsia.runtime.uncopied import Uncopied


class Write(Protocol):
    """One thing that a call writes."""

    @property
    def kind(self) -> str:
        """Whether it is an "input" or state."""
        ...

    @property
    def name(self) -> str:
        """Of the input or of the state."""
        ...


class Manifest(Protocol):
    """What a file tells of a method."""

    @property
    def writes(self) -> Sequence[Write]:
        """What a call writes."""
        ...

    @property
    def precision(self) -> Mapping[str, str]:
        """For each output and state entry the coarsest dtype that it passes through, by short names."""
        ...


class GraphlessProgram(Uncopied, ABC):
    """A method of a file that holds no graph.

    A call takes the model's own arguments and gives the model's own structure. What is refused before a call is what a
    `Program` refuses.

    Args:
        name: Name of the method.
        boundary: A program with the inputs, ranges and structures of the method, which computes nothing.
        manifest: What the file tells of it.
        vectors: Reads the test vectors of the file.

    Attributes:
        name: Name of the method.
        boundary: What it takes and gives, as an exported program that computes nothing.
        manifest: What the file tells of it.
        precision: The coarsest dtype on the way to each output and state entry, by the names that `verify` gives them.
    """

    kind: ClassVar[str]
    """What the file is, for people."""

    def __init__(
        self,
        name: str,
        boundary: torch.export.ExportedProgram,
        manifest: Manifest | None = None,
        vectors: Callable[[], Vectors] | None = None,
    ) -> None:
        self.name = name
        self.boundary = boundary
        self.manifest = manifest
        told = manifest.precision if manifest else {}
        self.precision: Mapping[str, torch.dtype] = {leaf: DTYPES[dtype] for leaf, dtype in told.items()}
        self._boundary = Boundary(name, boundary)
        self._vectors = vectors

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method once."""

    @property
    @abstractmethod
    def state(self) -> Mapping[str, torch.Tensor]:
        """The live tensors that calls write, by name.

        Raises:
            StateError: It cannot be had.
        """

    @abstractmethod
    def reset(self) -> None:
        """Give the state that calls write its initial values, for all methods of the file."""

    @abstractmethod
    def session(self) -> GraphlessProgram:
        """The same method on a state of its own."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be called, by name; a program of one method is called itself."""
        return (self.name,)

    @property
    def writes(self) -> Mapping[str, str]:
        """The kind of all that calls write, by name ("buffer", "parameter", "constant" or "input")."""
        return {write.name: write.kind for write in self.manifest.writes} if self.manifest else {}

    @property
    def test_vectors(self) -> Vectors | None:
        """The calls that the file records, read from it anew; None where it has none.

        Raises:
            FormatError: They are damaged, or do not fit the program.
        """
        return self._vectors() if self._vectors else None

    def __repr__(self) -> str:
        lines = [*self._boundary.describe(), *(f"  writes  {name}" for name in sorted(self.writes))]
        return "\n".join([f"Method {self.name!r} of {self.kind}", *lines])


Callee = TypeVar("Callee", bound=GraphlessProgram)


class GraphlessMethods(MethodSet[Callee], ABC):
    """The methods of a file that holds no graph, as attributes. All have one state.

    Args:
        programs: By the names of their methods.
    """

    def __init__(self, programs: Mapping[str, Callee]) -> None:
        self._programs = dict(programs)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The live tensors that calls write, by name.

        Raises:
            StateError: It cannot be had.
        """
        return self._first.state

    @property
    def test_vectors(self) -> Vectors | None:
        """The calls that the file records, of all methods, as `GraphlessProgram.test_vectors`."""
        return self._first.test_vectors

    def reset(self) -> None:
        """Give all state its initial values."""
        self._first.reset()

    @abstractmethod
    def session(self) -> GraphlessMethods[Callee]:
        """The same methods on a state of their own. They are loaded anew: engines and weights are not shared."""

    @property
    def _first(self) -> Callee:
        return next(iter(self._programs.values()))

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._programs.values()))
