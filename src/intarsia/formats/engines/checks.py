"""The engines of a file: compared with what was written, and given what lies beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from intarsia.core.constants import attach_constants
from intarsia.core.container import EngineContainer
from intarsia.core.registry import runs_native_code
from intarsia.errors import EngineError, FormatError
from intarsia.formats.engines.calls import EngineReader, engine_tensor
from intarsia.formats.engines.constants import FileConstants
from intarsia.formats.engines.rebuilding import PortableEngines
from intarsia.formats.manifest import EngineEntry, Manifest


def check_engines(
    path: Path,
    methods: Iterable[tuple[torch.export.ExportedProgram, Manifest | None]],
    constants: FileConstants | None,
    *,
    rebuild: bool,
    allow: Collection[str] = (),
) -> None:
    """Compare engines with their hashes and the manifest, and let them find what is beside their containers.

    Args:
        path: Of the file; named in errors.
        methods: The programs of the file, each with its part of the manifest.
        constants: What the containers refer to, where intarsia wrote the file.
        rebuild: Whether to leave the compiled forms of the engines out.
        allow: With "native", engines may be native code.

    Raises:
        FormatError: An engine is native code, which the caller does not allow.
        EngineError: An engine is not the one that was written, or has no portable form to be built from.
    """
    reader, portable = EngineReader(), PortableEngines()
    try:
        for program, manifest in methods:
            containers = reader.read(program)
            if "native" not in allow:
                _refuse_native(path, containers.values())
            if manifest is not None:
                _compare_engines(manifest.engines, containers)
            _attach(program, containers, constants)
            if rebuild:
                portable.put(program, containers)
                _attach(program, reader.read(program), constants)
    except EngineError as error:
        raise EngineError(
            f"{error.subject} in {path}",
            found=error.found,
            expected=error.expected,
            consequence=error.consequence,
            fix=error.fix,
        ) from error


def _refuse_native(path: Path, engines: Iterable[EngineContainer]) -> None:
    for engine in engines:
        if runs_native_code(engine.backend):
            raise FormatError(
                str(path),
                found=f"{engine.subject} of {engine.backend}, which is native code",
                expected="none that was not allowed",
                consequence="The first call that needs it would run code of the file, whatever that does.",
                fix='Where you trust the file: load it with allow={"native"} (--allow native).',
            )


def _attach(
    program: torch.export.ExportedProgram, containers: Mapping[str, EngineContainer], constants: FileConstants | None
) -> None:
    for name, container in containers.items():
        if constants is not None and container.outside:
            constants.check(container)
            attach_constants(engine_tensor(program, name), container.digest, constants)


def _compare_engines(expected: Sequence[EngineEntry], found: Mapping[str, EngineContainer]) -> None:
    entries = [EngineEntry.of(constant, container, container) for constant, container in found.items()]
    for entry in expected:
        if entry not in entries:
            raise EngineError(
                f"engine {entry.name!r} (constant {entry.constant!r})",
                found="another engine, or none, in its place",
                expected=f"the one whose SHA-256 is {entry.sha256[:16]}...",
                consequence="The program would compute something else.",
                fix="Save the program again.",
            )
