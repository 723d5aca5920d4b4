# eager_backend.py
import io
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from intarsia.core.backend import BuiltEngine, Engine
from intarsia.errors import ArgumentError, EngineError, EngineRefused, first_line

Options = Mapping[str, Any]


class EagerBackend:
    name = "eager"

    def check_options(self, options: Options) -> None:
        for name in options:
            fix = "Leave it out."
            raise ArgumentError(f"eager option {name!r}", found="no option of that name", expected="none", fix=fix)

    def supports(self, node: torch.fx.Node) -> str | None:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        return "draws random numbers" if random else None

    def build(self, program: torch.export.ExportedProgram, options: Options) -> BuiltEngine:
        self.check_options(options)
        stored = io.BytesIO()
        torch.export.save(program, stored)
        version = metadata.version("torch")
        # No portable source: the payload is portable already.
        return BuiltEngine(stored.getvalue(), None, version, "any processor", dict(options))

    def load(self, payload: memoryview, options: Options) -> Engine:
        try:
            module = torch.export.load(io.BytesIO(payload)).module(check_guards=False)
        except Exception as error:
            raise EngineRefused(
                "eager engine",
                found=f"bytes that torch refuses ({first_line(error)})",
                expected="what this version of torch saved",
                fix="Compile the model here.",
            ) from error

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            try:
                with torch.no_grad():
                    outputs = module(*(value.contiguous() for value in inputs))
            except (IndexError, RuntimeError) as error:
                told = f"a failed call ({first_line(error)})"
                raise EngineError("eager engine", found=told, expected="a result", fix="Mend its inputs.") from error
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            return [output.clone(memory_format=torch.contiguous_format) for output in outputs]

        return run

    def rebuild(self, source: memoryview, options: Options) -> Engine:
        return self.load(source, options)

    def available(self) -> str | None:
        return None  # torch is there wherever intarsia is

    def accepts(self, version: str, target: str) -> str | None:
        here = metadata.version("torch")
        return None if version == here else f"torch {version} saved it, and {here} is installed here"
