"""Compile programs with AOTInductor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from intarsia._torch import compile_package, find_compiler, inductor_options
from intarsia.core.compiled.devices import describe_device
from intarsia.core.compiled.machine import find_processor
from intarsia.core.compiled.private_folder import private_folder
from intarsia.errors import ArgumentError, EngineUnavailable, first_line, near_match, shorten

# What makes the code fit to be carried elsewhere: no instructions but those that `find_processor` tells, as many
# threads as torch has where it runs, and for a GPU the kernels inside of the library. What makes it compute as torch
# does: numbers in f16 and bf16 are rounded by each operator, and not by the last one alone.
_SETTINGS: Mapping[str, Any] = {
    "cpp.march": "",
    "cpp.dynamic_threads": True,
    "aot_inductor.embed_kernel_binary": True,
    "emulate_precision_casts": True,
    # Folding takes a buffer that the program writes for a constant, and every call would then be the first.
    "joint_graph_constant_folding": False,
}
_COMPILER = re.compile(r"(?<= )(fatal )?error: .+")
_OURS = ("aot_inductor.", "cpp.march", "joint_graph_constant_folding")


def check_compiler(subject: str) -> None:
    """Refuse to compile where that is sure to fail.

    Raises:
        EngineUnavailable: There is no C++ compiler.
    """
    try:
        find_compiler()
    except RuntimeError as error:
        raise EngineUnavailable(
            subject,
            found=f"no C++ compiler ({first_line(error)})",
            expected="one, to compile with; none is needed to run what was compiled",
            fix="Install g++ or clang++, or name one in the environment variable CXX.",
        ) from error


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse settings that inductor does not have, or that are not the caller's.

    Raises:
        ArgumentError: Names the setting.
    """
    known = inductor_options()
    for name, value in options.items():
        if name not in known or name.startswith(_OURS):
            raise ArgumentError(
                f"inductor option {name!r}",
                found="one that intarsia sets" if name in known else "no setting of that name",
                expected="a setting of torch._inductor.config",
                fix=near_match(name, known) if name not in known else "Leave it out.",
            )
        if not isinstance(value, str | int | float | None):
            raise ArgumentError(
                f"inductor option {name!r}",
                found=f"a value of type {type(value).__name__}",
                expected="text, a number, a truth value or None",
                fix="Pass a value that a file can hold.",
            )


def compile_programs(programs: Mapping[str, torch.export.ExportedProgram], options: Mapping[str, Any]) -> bytes:
    """An AOTInductor package of programs, by the names that they have in it.

    Raises:
        Exception: As torch raises it.
    """
    with private_folder() as folder:
        path = folder / "model.pt2"
        devices = set().union(*map(devices_of, programs.values()))
        settings = {name: value for name, value in _SETTINGS.items() if "cuda" in devices or "kernel" not in name}
        compile_package(programs, str(path), {**settings, **options})
        return path.read_bytes()


def tell_fault(error: Exception) -> str:
    r"""What torch says of a program that it cannot compile, in one line; of a C++ compiler what that says too.

    Example:
        >>> tell_fault(RuntimeError("C++ compile error\n\nOutput:\na.cpp:3:1: fatal error: no room"))
        'RuntimeError: C++ compile error, fatal error: no room'
    """
    found = _COMPILER.search(str(error))
    return f"{type(error).__name__}: {first_line(error)}" + (f", {shorten(found[0], 300)}" if found else "")


def target_of(programs: Iterable[torch.export.ExportedProgram]) -> str:
    """What code of programs is compiled for here; `reason_against_code` reads it."""
    devices = set().union(*map(devices_of, programs))
    return find_processor() + (f" + {describe_device()}" if "cuda" in devices else "")


def devices_of(program: torch.export.ExportedProgram) -> set[str]:
    """The kinds of the devices that a program computes on."""
    return {value.device.type for value in _tensors_of(program)}


def _tensors_of(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    values = [node.meta.get("val") for node in program.graph.nodes]
    return [value for value in values if isinstance(value, torch.Tensor)]
