"""Programs that AOTInductor compiled, called as the model was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia.core.compiled.model import CompiledModel, readable
from intarsia.core.compiled.positions import OUTSIDE
from intarsia.core.op import watched_engines
from intarsia.core.vectors import Vectors
from intarsia.errors import EngineError, IntarsiaError, PositionError, first_line
from intarsia.runtime.graphless import GraphlessMethods, GraphlessProgram, Manifest

Open = Callable[[], Mapping[str, CompiledModel]]


class CompiledFile:
    """The code of a file, opened at the first call, and the state that its methods share.

    One call runs at a time; others wait for it.

    Args:
        open_code: Opens the code of all methods, by name.
        written: Names of the state that calls write.
    """

    def __init__(self, open_code: Open, written: Collection[str]) -> None:
        self._open = open_code
        self._written = frozenset(written)
        self._models: Mapping[str, CompiledModel] = {}
        self._initial: dict[str, torch.Tensor] = {}
        self._live: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    def run(self, method: str, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Run a method on its tensor inputs."""
        with self._lock:
            self._prepare()
            model = self._models[method]
            return model.run([readable(value, model.device, f"method {method!r}") for value in inputs])

    def state(self) -> Mapping[str, torch.Tensor]:
        """The live tensors that calls write, by name."""
        with self._lock:
            self._prepare()
        return MappingProxyType(self._live)

    def reset(self) -> None:
        """Give what calls write its initial values."""
        with self._lock:
            for name, value in self._initial.items():
                self._live[name].copy_(value)

    def fresh(self) -> CompiledFile:
        """The same code on state of its own."""
        return CompiledFile(self._open, self._written)

    def _prepare(self) -> None:
        """Open the code, and let all methods write the same tensors."""
        if self._models:
            return
        models = self._open()
        # What is cloned in inference mode cannot be written outside of it.
        with torch.inference_mode(mode=False):
            for model in models.values():
                for name, value in model.state().items():
                    if name in self._written and name not in self._live:
                        self._initial[name], self._live[name] = value.clone(), value.clone()
        for model in models.values():
            model.place({name: self._live[name] for name in model.state().keys() & self._live.keys()})
        self._models = models


class CompiledProgram(GraphlessProgram):
    """A method of an AOTInductor package. A call takes the model's own arguments and gives the model's own structure.

    What is refused before a call is what a `Program` refuses. What it returns is memory of its own, also where the
    model returns an input or its state. Code of the file runs from the first call on. A call that fails while it runs
    may have written some state.

    Args:
        name: Name of the method.
        boundary: A program with the inputs, ranges and structures of the method.
        file: What runs it.
        manifest: What the file tells of it.
        vectors: Reads the test vectors of the file.
    """

    kind = "an AOTInductor package"

    def __init__(
        self,
        name: str,
        boundary: torch.export.ExportedProgram,
        file: CompiledFile,
        manifest: Manifest | None = None,
        vectors: Callable[[], Vectors] | None = None,
    ) -> None:
        super().__init__(name, boundary, manifest, vectors)
        self._file = file
        inputs = [spec for spec in boundary.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
        self._is_written = [self.writes.get(spec.arg.name) == "input" for spec in inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method once.

        Raises:
            ArgumentError: An argument is missing, unknown, or does not fit; names the argument and what is allowed.
            PositionError: A position is outside of the tensor that it counts in.
            EngineRefused: At the first call: this machine does not take the code.
            EngineError: The code, or an engine in it, fails; what an engine raises is raised as it is.
            FormatError: At the first call: the file is damaged.
        """
        inputs = self._boundary.take(args, kwargs)
        given = [leaf for leaf in inputs if isinstance(leaf, torch.Tensor)]
        row_major = [leaf.detach().contiguous() for leaf in given]
        with watched_engines() as faults:
            try:
                outputs = self._file.run(self.name, row_major)
            except RuntimeError as error:
                known = [fault for fault in faults if isinstance(fault, IntarsiaError)]
                raise (known[-1] if known else self._failure(error)) from error
        for leaf, is_written in zip(inputs, self._is_written, strict=True):
            if is_written:
                self._write_back(leaf, row_major[next(i for i, other in enumerate(given) if other is leaf)])
        return self._boundary.give(outputs)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The live tensors that calls write, by name. Other state is in the code. Opens the code."""
        return self._file.state()

    def reset(self) -> None:
        """Give the state that calls write its initial values, for all methods of the file."""
        self._file.reset()

    def session(self) -> CompiledProgram:
        """The same method on a state of its own. Its code is opened anew: weights and engines are not shared."""
        return self.on(self._file.fresh())

    def on(self, file: CompiledFile) -> CompiledProgram:
        """This method of another opening of the file."""
        return CompiledProgram(self.name, self.boundary, file, self.manifest, self._vectors)

    @staticmethod
    def _write_back(leaf: torch.Tensor, written: torch.Tensor) -> None:
        if leaf.data_ptr() != written.data_ptr() or leaf.stride() != written.stride():
            leaf.detach().copy_(written)

    def _failure(self, error: RuntimeError) -> EngineError | PositionError:
        told = first_line(error)
        if told.startswith(OUTSIDE):
            return PositionError(
                f"method {self.name!r}",
                found=told,
                expected="one inside",
                consequence="State may have been written: reset it.",
                fix="Pass positions inside of it.",
            )
        return EngineError(
            f"method {self.name!r}",
            found=f"that its code cannot run ({told})",
            expected="a result",
            fix="Run the program that it was compiled of, which tells more.",
        )


class CompiledMethods(GraphlessMethods[CompiledProgram]):
    """The methods of an AOTInductor package, as attributes. All have one state.

    Args:
        programs: By the names of their methods.
        file: What runs them.
    """

    def __init__(self, programs: Mapping[str, CompiledProgram], file: CompiledFile) -> None:
        super().__init__(programs)
        self._file = file

    def session(self) -> CompiledMethods:
        """The same methods on a state of their own. Their code is opened anew: weights and engines are not shared."""
        file = self._file.fresh()
        return CompiledMethods({name: one.on(file) for name, one in self._programs.items()}, file)
