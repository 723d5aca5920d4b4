"""From a partition's exported program to an AOTInductor package and its portable source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from intarsia.core.backend import MASKS, POSITIONS, BuiltEngine
from intarsia.core.compiled.compiling import (
    check_compiler,
    check_options,
    compile_programs,
    devices_of,
    target_of,
    tell_fault,
)
from intarsia.core.uses import describe_integers
from intarsia.engines.inductor.canonical import make_canonical
from intarsia.engines.inductor.engine import GUARDED, InductorEngine
from intarsia.engines.inductor.source import pack_program, unpack_program
from intarsia.errors import EngineBuildFailed, first_line


def build_engine(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
    """Compile a program; see `InductorBackend.build`."""
    check_compiler("backend 'inductor'")
    check_options(options)
    canonical = make_canonical(program)
    devices = devices_of(canonical.program)
    if len(devices) > 1:
        raise _refused(f"it computes on {' and '.join(sorted(devices))}")
    source, constants = pack_program(canonical.program)
    package = _compile(canonical.program, options)
    return BuiltEngine(
        payload=package,
        source=source,
        backend_version=version("torch"),
        target=target_of([canonical.program]),
        options={
            **options,
            **describe_integers(program),
            **({GUARDED: canonical.guarded} if canonical.guarded else {}),
        },
        constants=constants,
    )


def rebuild_engine(source: memoryview, options: Mapping[str, Any]) -> InductorEngine:
    """Compile a source; see `InductorBackend.rebuild`."""
    check_compiler("inductor engine")
    settings = {name: value for name, value in options.items() if name not in {POSITIONS, MASKS, GUARDED}}
    check_options(settings)
    try:
        program = unpack_program(source)
    except Exception as error:
        raise EngineBuildFailed(
            "inductor source",
            found=f"that torch cannot read it ({type(error).__name__}: {first_line(error)})",
            expected="a program that this version of torch reads",
            fix="Compile the model again with this version.",
        ) from error
    return InductorEngine(_compile(program, settings), options)


def _compile(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> bytes:
    try:
        return compile_programs({"model": program}, options)
    except Exception as error:
        raise _refused(tell_fault(error)) from error


def _refused(reason: str) -> EngineBuildFailed:
    return EngineBuildFailed(
        "inductor",
        found=f"that it refuses the program: {reason}",
        expected="a program that it compiles",
        fix="Keep the operator concerned in torch with torch_executed_ops.",
    )
