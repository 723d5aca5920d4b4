"""The backends that are installed, found by the entry-point group `intarsia.backends`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from intarsia.core.backend import Backend
from intarsia.core.choice import TORCH
from intarsia.errors import EngineUnavailable, near_match

_GROUP = "intarsia.backends"


def available_backends() -> tuple[str, ...]:
    """Names of the known backends, sorted. The library that one needs may still be missing.

    Example:
        >>> "openvino" in available_backends()
        True
    """
    return tuple(sorted({entry.name for entry in entry_points(group=_GROUP)}))


@cache
def find_backend(name: str) -> Backend:
    """The backend of a name; the same object each time.

    Raises:
        EngineUnavailable: No backend has that name, its entry point cannot be imported, or no engine can be named so.

    Example:
        >>> find_backend("openvino").name
        'openvino'
    """
    entries = entry_points(group=_GROUP, name=name)
    if not entries:
        raise EngineUnavailable(
            f"backend {name!r}",
            found="no backend of that name",
            expected=f"one of {', '.join(available_backends()) or 'none'}",
            fix=near_match(name, available_backends()) or "Install the package that provides the backend.",
        )
    if "." in name or name == TORCH:
        raise EngineUnavailable(
            f"backend {name!r}",
            found=f"that {next(iter(entries)).value} is announced so",
            expected=f"a name without dots, and not {TORCH!r}, which stands for no engine",
            fix="Announce the entry point under another name.",
        )
    return _instantiate(next(iter(entries)))


def runs_native_code(name: str) -> bool:
    """Whether engines of a backend are native code, which may do anything: it has an attribute `native` that is true.

    Engines of a backend that is not known here are not made at all.

    Example:
        >>> runs_native_code("openvino"), runs_native_code("inductor")
        (False, True)
    """
    try:
        return bool(getattr(find_backend(name), "native", False))
    except EngineUnavailable:
        return False


def _instantiate(entry: EntryPoint) -> Backend:
    try:
        backend: Backend = entry.load()()
    except Exception as error:
        raise EngineUnavailable(
            f"backend {entry.name!r}",
            found=f"that its entry point {entry.value} fails with {type(error).__name__}: {error}",
            expected="an importable backend",
            fix="Install the package that provides the backend again.",
        ) from error
    return backend
