"""Exported programs as ExecuTorch's edge programs: engines first, then the caller's partitioners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.export import default_decompositions

from intarsia._torch import run_decompositions
from intarsia.core.method_names import DESCRIPTION
from intarsia.errors import ConventionError, FormatError, IntarsiaError, first_line
from intarsia.formats.pte.combination import untried_here
from intarsia.formats.pte.delegates import delegate_engines
from intarsia.formats.pte.description import describe
from intarsia.formats.pte.library import import_executorch, lowering
from intarsia.formats.pte.manager import adopt
from intarsia.formats.pte.partitioners import Partitioners, partitioners_by_method
from intarsia.formats.pte.sizes import check_bounds, check_open
from intarsia.formats.pte.stand_ins import stand_in


def lower_to_edge(
    programs: Mapping[str, torch.export.ExportedProgram],
    *,
    partitioners: Partitioners = None,
    transform_passes: Any = None,
    compile_config: Any = None,
    constant_methods: Mapping[str, Any] | None = None,
    generate_etrecord: bool = False,
    facts: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    sealed: bool = False,
) -> Any:
    """ExecuTorch's `EdgeProgramManager` of programs; see `intarsia.executorch.to_edge`.

    Args:
        programs: By the names of their methods. Not modified.
        partitioners: As for `to_edge`.
        transform_passes: As for `to_edge`.
        compile_config: As for `to_edge`.
        constant_methods: As for `to_edge`.
        generate_etrecord: As for `to_edge`.
        facts: For some methods, JSON values for the manifest.
        sealed: Whether the file will end with a seal.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.
        EngineError: An engine cannot travel, or was claimed by a partitioner.
        ConventionError: A name of a method is none or taken, a size has no upper bound, or partitioners do not fit.
        MutationError: A write would be lost.
        FormatError: ExecuTorch refuses a program.
    """
    exir = import_executorch("exir")
    chosen = partitioners_by_method(partitioners, list(programs))
    _check_constants(constant_methods or {}, list(programs))
    for name, program in programs.items():
        with IntarsiaError.of_method(name):
            check_bounds(program)
    stand_ins = {}
    for name, program in programs.items():
        with IntarsiaError.of_method(name):
            stand_ins[name] = stand_in(program)
    engines = {name: one.engines for name, one in stand_ins.items()}
    description = describe(programs, engines, facts=facts, sealed=sealed)
    with lowering():
        try:
            manager = exir.to_edge_transform_and_lower(
                {name: _decompose_bodies(one.program) for name, one in stand_ins.items()},
                transform_passes=transform_passes,
                partitioner=chosen,
                constant_methods={**(constant_methods or {}), DESCRIPTION: description.to_text()},
                compile_config=compile_config,
                generate_etrecord=generate_etrecord,
            )
        except Exception as error:
            raise _refused(error) from error
        for name, one in stand_ins.items():
            with IntarsiaError.of_method(name):
                check_open(one.program)
                delegate_engines(manager.exported_program(name), one.engines)
    return adopt(manager, engines)


def _check_constants(constants: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Refuse constant methods that would take the place of others; ExecuTorch would write both or one."""
    taken = [name for name in constants if name in methods or name == DESCRIPTION]
    if taken:
        raise ConventionError(
            f"constant method {taken[0]!r}",
            found="a name that is taken",
            expected=f"another name than {', '.join(methods)} and {DESCRIPTION}",
            fix="Choose another name.",
        )


def _decompose_bodies(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Partitioners keep operators whole in bodies of operators as well, and take none of them there."""
    if not any(isinstance(child, torch.fx.GraphModule) for child in program.graph_module.children()):
        return program
    return run_decompositions(program, default_decompositions())


def _refused(error: Exception) -> FormatError:
    return FormatError(
        "ExecuTorch",
        found=f"that it cannot lower the program ({type(error).__name__}: {first_line(error)})",
        expected="one that it takes",
        consequence=untried_here(),
        fix="Keep the operator concerned in an engine, or decompose it before the export.",
    )
