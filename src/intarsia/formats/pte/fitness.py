"""Whether a `.pte` runs on the machine at hand, told by the file; nothing native is loaded, nor torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from intarsia.core.registry import find_backend
from intarsia.errors import EngineUnavailable, UnsupportedVersion
from intarsia.formats.fitness import Fitness
from intarsia.formats.manifest import EngineEntry
from intarsia.formats.pte.combination import fault_here, untried_here
from intarsia.formats.pte.contents import read_pte


def check_pte_fitness(path: Path) -> Fitness:
    """Judge a `.pte` by what it says of itself; its bytes are compared with its hash.

    Raises:
        FormatError: The file is missing, cut short, damaged or of another kind, or another tool wrote it.
    """
    try:
        manifests = read_pte(path).description.manifests
    except UnsupportedVersion as error:
        return Fitness((f"it has {error.found}, and this intarsia reads {error.expected}",), {}, {})
    engines = [engine for manifest in manifests.values() for engine in manifest.engines]
    fault, note = fault_here(), untried_here()
    obstacles = [*([fault] if fault else []), *dict.fromkeys((*_find_missing(engines), *find_misfits(engines)))]
    return Fitness(tuple(obstacles), {}, manifests, (note,) if note else ())


def find_misfits(engines: Iterable[EngineEntry]) -> Iterator[str]:
    """Why engines cannot be loaded by the libraries that are here: a `.pte` holds nothing to rebuild them from.

    A backend that is not here as a Python package is not judged: ExecuTorch may find its library elsewhere.
    """
    for engine in engines:
        try:
            backend = find_backend(engine.backend)
        except EngineUnavailable:
            continue
        reason = None if backend.available() else backend.accepts(engine.backend_version, engine.target)
        if reason:
            yield f"engine {engine.name!r}: {reason}, and a .pte holds no portable form to rebuild it from"


def _find_missing(engines: Iterable[EngineEntry]) -> Iterator[str]:
    """Which engines have no backend here."""
    for engine in engines:
        try:
            missing = find_backend(engine.backend).available()
        except EngineUnavailable as error:
            missing = f"backend {engine.backend!r} is not there ({error.found}; {error.fix})"
        if missing:
            yield f"engine {engine.name!r}: {missing}"
