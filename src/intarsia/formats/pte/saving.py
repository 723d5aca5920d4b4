"""Write exported programs as ExecuTorch files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from intarsia.errors import FormatError, IntarsiaError, first_line
from intarsia.formats.archive.layout import checked_path
from intarsia.formats.pte.combination import untried_here
from intarsia.formats.pte.edge import lower_to_edge
from intarsia.formats.pte.kernels import check_kernels
from intarsia.formats.pte.layout import SealedFile
from intarsia.formats.replacement import find_target, replacing, unwritable
from intarsia.formats.tensors.storable import check_storable


def save_pte(
    programs: Mapping[str, torch.export.ExportedProgram],
    path: str | os.PathLike[str],
    *,
    facts: Mapping[str, Mapping[str, Any]],
    payloads: bool = True,
    vectors: bool = False,
) -> None:
    """Write exported programs to one `.pte` file: engines as delegates, XNNPACK for what it takes, portable kernels.

    Args:
        programs: By the names of their methods. Not modified.
        path: Where to; a file that is there is replaced when the new one is whole.
        facts: For each method, JSON values for the manifest: `precision`.
        payloads: True, for ExecuTorch builds no engine from its portable form.
        vectors: False, for the file has no place for test vectors.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.
        EngineError: An engine cannot travel, or a delegate does not take and give what its engine does.
        ConventionError: A name of a method is none, or a size has no upper bound.
        MutationError: A write would be lost.
        FormatError: The file cannot be written, or ExecuTorch refuses a program or has no kernel for an operator.
    """
    path = checked_path(path)
    if not payloads:
        raise FormatError(
            str(path),
            found="payloads=False",
            expected="a .pte file with the compiled form of its engines",
            fix="Leave payloads out, or save a .pt2 file.",
        )
    if vectors:
        raise FormatError(
            str(path),
            found="test vectors",
            expected="a .pte file without any",
            fix="Leave test_vectors out, or save a .pt2 file.",
        )
    find_target(path)
    for program in programs.values():
        check_storable(program, str(path))
    manager = lower_to_edge(programs, facts=facts, sealed=True)
    try:
        lowered = manager.to_executorch()
    except IntarsiaError:
        raise
    except Exception as error:
        raise FormatError(
            str(path),
            found=f"that ExecuTorch cannot write the program ({type(error).__name__}: {first_line(error)})",
            expected="one that it takes",
            consequence=untried_here(),
            fix="Keep the operator concerned in an engine, or decompose it before the export.",
        ) from error
    for plan in lowered.executorch_program.execution_plan:
        with IntarsiaError.of_method(plan.name):
            check_kernels(plan)
    with replacing(path) as new:
        try:
            with new.open("wb") as file:
                sealing = SealedFile(file)
                lowered.write_to_file(sealing)
                sealing.seal()
        except OSError as error:
            raise unwritable(path, error) from error
