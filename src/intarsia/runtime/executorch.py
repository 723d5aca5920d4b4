"""Programs of `.pte` files: ExecuTorch runs them, and they are called as the model was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from intarsia.errors import EngineError, StateError, first_line
from intarsia.runtime.boundary import Boundary
from intarsia.runtime.method_set import MethodSet

Run = Callable[[Sequence[Any]], Sequence[Any]]
Load = Callable[[], Mapping[str, Run]]


class LoadedFile:
    """The methods of a file on one state. One call runs at a time; others wait for it.

    Args:
        load: Loads all methods anew, by name, on a state in its initial values.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._runs = load()
        self._lock = threading.Lock()

    def run(self, method: str, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run a method on flat inputs."""
        with self._lock:
            return self._runs[method](inputs)

    def reset(self) -> None:
        """Load the methods anew."""
        with self._lock:
            self._runs = self._load()

    def fresh(self) -> LoadedFile:
        """The same methods on a state of their own."""
        return LoadedFile(self._load)


class ExecutorchProgram:
    """A method of a `.pte` file. A call takes the model's own arguments and gives the model's own structure.

    What is refused before a call is what a `Program` refuses. State that calls write lasts until `reset`; ExecuTorch
    has no way to read it.

    Args:
        name: Name of the method.
        boundary: A program with the inputs, ranges and structures of the method.
        file: What runs it.

    Example:
        >>> file = LoadedFile(lambda: {"forward": lambda inputs: [inputs[0].relu()]})
        >>> program = ExecutorchProgram("forward", torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), file)
        >>> program(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """

    def __init__(self, name: str, boundary: torch.export.ExportedProgram, file: LoadedFile) -> None:
        self.name = name
        self._program = boundary
        self._boundary = Boundary(name, boundary)
        self._file = file

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method once.

        Raises:
            ArgumentError: An argument is missing, unknown, or does not fit; names the argument and what is allowed.
            EngineError: ExecuTorch fails.
        """
        inputs = self._boundary.take(args, kwargs)
        given = [leaf.detach().contiguous() if isinstance(leaf, torch.Tensor) else leaf for leaf in inputs]
        try:
            outputs = self._file.run(self.name, given)
        except RuntimeError as error:
            raise EngineError(
                f"method {self.name!r}",
                found=f"that ExecuTorch cannot run it ({first_line(error)})",
                expected="a result",
                fix="Run the .pt2 file of the program, which tells more.",
            ) from error
        return self._boundary.give(outputs)

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be called, by name; a program of one method is called itself."""
        return (self.name,)

    def reset(self) -> None:
        """Give the state that calls write its initial values, for all methods of the file."""
        self._file.reset()

    def session(self) -> ExecutorchProgram:
        """The same method on a state of its own. It is loaded anew: engines and weights are not shared."""
        return ExecutorchProgram(self.name, self._program, self._file.fresh())

    @property
    def state(self) -> NoReturn:
        """Not to be had.

        Raises:
            StateError: Always.
        """
        raise _hidden_state()

    def __repr__(self) -> str:
        lines = self._boundary.describe()
        return "\n".join([f"Method {self.name!r} of an ExecuTorch program", *lines])


class ExecutorchMethods(MethodSet[ExecutorchProgram]):
    """The methods of a `.pte` file, as attributes. All have one state.

    Args:
        boundaries: Programs with the inputs, ranges and structures of the methods, by name.
        file: What runs them.

    Example:
        >>> file = LoadedFile(lambda: {"halve": lambda inputs: [inputs[0] / 2]})
        >>> boundary = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
        >>> ExecutorchMethods({"halve": boundary}, file).halve(torch.ones(3))
        tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(self, boundaries: Mapping[str, torch.export.ExportedProgram], file: LoadedFile) -> None:
        self._boundaries = boundaries
        self._file = file
        self._programs = {name: ExecutorchProgram(name, boundary, file) for name, boundary in boundaries.items()}

    @property
    def state(self) -> NoReturn:
        """Not to be had.

        Raises:
            StateError: Always.
        """
        raise _hidden_state()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._programs.values()))

    def reset(self) -> None:
        """Give all state its initial values."""
        self._file.reset()

    def session(self) -> ExecutorchMethods:
        """The same methods on a state of their own. They are loaded anew: engines and weights are not shared."""
        return ExecutorchMethods(self._boundaries, self._file.fresh())


def _hidden_state() -> StateError:
    return StateError(
        "state of an ExecuTorch program",
        found="an attempt to read or set it",
        expected="calls only, for ExecuTorch has no way to it",
        fix="Return from the model what you want to see, or use a .pt2 file.",
    )
