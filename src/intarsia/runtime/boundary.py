"""The boundary of a program that another runtime runs: what its caller gives and gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from intarsia.errors import ConventionError
from intarsia.runtime.arguments import read_arguments
from intarsia.runtime.checks import read_checks
from intarsia.runtime.structure import output_builder


class Boundary:
    """Arguments to flat inputs, with the checks of a `Program`, and flat outputs to the model's structure.

    Args:
        name: Name of the method.
        program: A program with the inputs, ranges and structures of the method.

    Raises:
        ConventionError: The program does not tell what it returns.

    Example:
        >>> boundary = Boundary("forward", torch.export.export(torch.nn.ReLU(), (torch.ones(3),)))
        >>> boundary.take((torch.zeros(3),), {})
        (tensor([0., 0., 0.]),)
        >>> boundary.give([torch.ones(3)])
        tensor([1., 1., 1.])
    """

    def __init__(self, name: str, program: torch.export.ExportedProgram) -> None:
        self._arguments = read_arguments(program)
        self._checks = read_checks(program, self._arguments.leaf_names)
        spec = program.call_spec.out_spec
        if spec is None:
            raise ConventionError(
                f"method {name!r}", found="no output structure", expected="one", fix="Save the program again."
            )
        self._build = output_builder(spec)

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The flat inputs.

        Raises:
            ArgumentError: An argument is missing, unknown, or does not fit; names the argument and what is allowed.
        """
        inputs = self._arguments.flatten(args, kwargs)
        self._checks.run(inputs)
        return inputs

    def give(self, outputs: Sequence[Any]) -> Any:
        """The outputs in the model's structure."""
        return self._build(list(outputs))

    def describe(self) -> list[str]:
        """A line for each input."""
        return [f"  input   {entry}" for entry in self._checks.inputs]
