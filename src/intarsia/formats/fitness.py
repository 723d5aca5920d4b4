"""Whether a file runs on the machine at hand, told from its manifest; nothing native is loaded, nor torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from intarsia._torch_files import read_schema_version
from intarsia.core.backend import missing_to_rebuild
from intarsia.core.compiled.machine import reason_against_code
from intarsia.core.registry import find_backend, runs_native_code
from intarsia.errors import EngineUnavailable, FormatError, UnsupportedVersion
from intarsia.formats.contents import Method, read_contents
from intarsia.formats.manifest import EngineEntry, Manifest

Verdict = Literal["runs", "runs after rebuilding", "cannot run"]


@dataclass(frozen=True)
class Fitness:
    """Whether a file runs here.

    Attributes:
        obstacles: Why it cannot run; empty when it runs.
        rebuilt: Engines whose compiled form does not fit, and which are built again from their portable form when they
            are first called -> why. An engine without a compiled form is made at its first call anywhere: it is none.
        methods: What the manifest tells of each method; empty when it cannot be read.
        notes: Engines that are made at their first call, and what may still be in the way: leave to run native code,
            other versions of packages of operators.
    """

    obstacles: tuple[str, ...]
    rebuilt: Mapping[str, str]
    methods: Mapping[str, Manifest]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The answer in short."""
        if self.obstacles:
            return "cannot run"
        return "runs after rebuilding" if self.rebuilt else "runs"


def check_fitness(path: Path) -> Fitness:
    """Judge a file by its manifest.

    What the members besides the manifest hold is not read: a damaged file is found when it is loaded.

    Raises:
        FormatError: The file is missing, cut short, of another kind, or another tool wrote it.
    """
    try:
        contents = read_contents(path)
    except UnsupportedVersion as error:
        return Fitness((f"it has {error.found}, and this intarsia reads {error.expected}",), {}, {})
    if contents is None:
        raise FormatError(
            str(path),
            found="a PT2 archive of another tool, which does not say what it needs",
            expected="a file that intarsia wrote",
            fix="Load it to find out, or save it with intarsia.",
        )
    manifests = {name: method.manifest for name, method in contents.methods.items()}
    manifest = next(iter(manifests.values()))
    missing, notes = _judge_packages(manifests.values())
    obstacles = [*_faults_of_machine(manifest), *_faults_of_torch(manifest), *_faults_of_code(manifest), *missing]
    rebuilt, made = {}, 0
    for name, engine in _name_engines(contents.methods):
        obstacle, reason = _judge_engine(engine)
        if obstacle:
            obstacles.append(f"{name}: {obstacle}")
        elif reason:
            rebuilt[name] = reason
        made += not engine.payload_bytes and not obstacle
    return Fitness(tuple(obstacles), rebuilt, manifests, (*_leave_to_ask(manifests.values()), *_made(made), *notes))


def _made(count: int) -> Iterator[str]:
    if count:
        counted = "1 engine has" if count == 1 else f"{count} engines have"
        yield f"{counted} no compiled form, and {'is' if count == 1 else 'are'} made when first called"


def _leave_to_ask(manifests: Iterable[Manifest]) -> Iterator[str]:
    """What `load` refuses until the caller allows it."""
    native = {entry.backend for manifest in manifests for entry in manifest.engines if runs_native_code(entry.backend)}
    held = ["compiled code"] if any(manifest.compiled for manifest in manifests) else []
    held += [f"engines of {backend}" for backend in sorted(native)]
    if held:
        yield (
            f'it holds native code ({", ".join(held)}): load and run take it with leave only, allow={{"native"}} or '
            "--allow native"
        )


def _faults_of_machine(manifest: Manifest) -> Iterator[str]:
    if manifest.byte_order != sys.byteorder:
        yield f"its tensors are in {manifest.byte_order} byte order, and this machine's is {sys.byteorder}"


def _faults_of_code(manifest: Manifest) -> Iterator[str]:
    """Why compiled code does not run here."""
    reason = reason_against_code(manifest.torch_version, manifest.compiled) if manifest.compiled else None
    if reason:
        yield f"its code does not run here: {reason}"


def _faults_of_torch(manifest: Manifest) -> Iterator[str]:
    try:
        here = version("torch")
    except PackageNotFoundError:
        yield "torch is not installed"
        return
    if here == manifest.torch_version:
        return
    major, _ = read_schema_version() or _ask_torch()
    if manifest.graph_schema.partition(".")[0] != str(major):
        yield (
            f"torch {manifest.torch_version} wrote its graph in version {manifest.graph_schema} of torch's schema, and "
            f"torch {here} here reads version {major}"
        )


def _judge_packages(manifests: Iterable[Manifest]) -> tuple[list[str], list[str]]:
    """Packages of operators that are not installed, and those of another version than the writer's."""
    packages = {space: package for manifest in manifests for space, package in manifest.packages.items()}
    missing, notes = [], []
    for space, package in sorted(packages.items()):
        name, _, made_with = package.partition(" ")
        here = _installed_version(name, is_module=not made_with)
        if here is None:
            missing.append(f"operators '{space}::...' need {package}, which is not installed")
        elif _public(here) != _public(made_with):
            notes.append(
                f"operators '{space}::...' were those of {package}, and {name} {here} is installed: loading tells "
                "whether it has them"
            )
    return missing, notes


def _installed_version(name: str, *, is_module: bool) -> str | None:
    """The version of a package, empty for a module that no package holds; None where there is none. Imports nothing."""
    if is_module:
        return "" if name.isidentifier() and PathFinder.find_spec(name) is not None else None
    try:
        return version(name)
    except (PackageNotFoundError, ValueError):
        return None


def _public(version_text: str) -> str:
    """A version without what tells builds of it apart: `0.26.0` of `0.26.0+cpu`."""
    return version_text.partition("+")[0]


def _ask_torch() -> tuple[int, int]:
    from intarsia._torch import graph_schema  # noqa: PLC0415 - takes long, and is seldom needed

    return graph_schema().version


def _name_engines(methods: Mapping[str, Method]) -> Iterator[tuple[str, EngineEntry]]:
    """Every engine once, with the name that messages give it."""
    found = {engine.sha256: (name, engine) for name, method in methods.items() for engine in method.manifest.engines}
    counts = Counter(engine.name for _, engine in found.values())
    for method, engine in found.values():
        of_method = f" of method {method!r}" if counts[engine.name] > 1 else ""
        yield f"engine {engine.name!r}{of_method}", engine


def _judge_engine(engine: EngineEntry) -> tuple[str | None, str | None]:
    """Why it can neither be loaded nor rebuilt here, and why it must be rebuilt; None where that is not so."""
    try:
        backend = find_backend(engine.backend)
    except EngineUnavailable as error:
        return f"backend {engine.backend!r} is not there ({error.found}; {error.fix})", None
    missing = backend.available()
    if missing:
        return missing, None
    if not engine.payload_bytes:
        if not engine.source_bytes:
            return "it has neither a compiled nor a portable form", None
        missing = missing_to_rebuild(backend)
        return f"it is made at its first call, and this takes more: {missing}" if missing else None, None
    reason = backend.accepts(engine.backend_version, engine.target)
    if not reason:
        return None, None
    if not engine.source_bytes:
        return f"{reason}, and it has no portable form to be rebuilt from", None
    missing = missing_to_rebuild(backend)
    return (f"{reason}, and to rebuild it takes more: {missing}", None) if missing else (None, reason)
