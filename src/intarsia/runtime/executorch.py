"""Programs of `.pte` files: ExecuTorch runs them, and they are called as the model was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from intarsia.errors import EngineError, StateError, first_line
from intarsia.runtime.graphless import GraphlessMethods, GraphlessProgram, Manifest

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


class ExecutorchProgram(GraphlessProgram):
    """A method of a `.pte` file. A call takes the model's own arguments and gives the model's own structure.

    What is refused before a call is what a `Program` refuses. State that calls write lasts until `reset`; ExecuTorch
    has no way to read it.

    Args:
        name: Name of the method.
        boundary: A program with the inputs, ranges and structures of the method.
        file: What runs it.
        manifest: What the file tells of it.

    Example:
        >>> file = LoadedFile(lambda: {"forward": lambda inputs: [inputs[0].relu()]})
        >>> program = ExecutorchProgram("forward", torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), file)
        >>> program(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """

    kind = "an ExecuTorch program"

    def __init__(
        self,
        name: str,
        boundary: torch.export.ExportedProgram,
        file: LoadedFile,
        manifest: Manifest | None = None,
    ) -> None:
        super().__init__(name, boundary, manifest)
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

    def reset(self) -> None:
        """Give the state that calls write its initial values, for all methods of the file."""
        self._file.reset()

    def session(self) -> ExecutorchProgram:
        """The same method on a state of its own. It is loaded anew: engines and weights are not shared."""
        return self.on(self._file.fresh())

    def on(self, file: LoadedFile) -> ExecutorchProgram:
        """This method of another loading of the file."""
        return ExecutorchProgram(self.name, self.boundary, file, self.manifest)

    @property
    def state(self) -> NoReturn:
        """Not to be had.

        Raises:
            StateError: Always.
        """
        raise StateError(
            "state of an ExecuTorch program",
            found="an attempt to read or set it",
            expected="calls only, for ExecuTorch has no way to it",
            fix="Return from the model what you want to see, or use a .pt2 file.",
        )


class ExecutorchMethods(GraphlessMethods[ExecutorchProgram]):
    """The methods of a `.pte` file, as attributes. All have one state.

    Args:
        programs: By the names of their methods.
        file: What runs them.

    Example:
        >>> file = LoadedFile(lambda: {"halve": lambda inputs: [inputs[0] / 2]})
        >>> boundary = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
        >>> ExecutorchMethods({"halve": ExecutorchProgram("halve", boundary, file)}, file).halve(torch.ones(3))
        tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(self, programs: Mapping[str, ExecutorchProgram], file: LoadedFile) -> None:
        super().__init__(programs)
        self._file = file

    def session(self) -> ExecutorchMethods:
        """The same methods on a state of their own. They are loaded anew: engines and weights are not shared."""
        file = self._file.fresh()
        return ExecutorchMethods({name: one.on(file) for name, one in self._programs.items()}, file)
