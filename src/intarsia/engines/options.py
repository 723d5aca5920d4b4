"""The options of `compile`, for one backend or for several."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from intarsia.core.backend import Backend
from intarsia.errors import ArgumentError, EngineError, EngineUnavailable, IntarsiaError, first_line, near_match


def options_by_backend(
    backends: Mapping[str, Backend], options: Any, places: Mapping[str, str] | None = None
) -> dict[str, Mapping[str, Any]]:
    """The options of each backend, before anything is captured or built with them.

    Args:
        backends: The backends that are to build engines, by their names.
        options: Of one backend its options; of several a mapping from names of backends to the options of each, in
            which those without options may be left out; or None.
        places: What wants a backend, by its name, where that is worth telling when its library is not installed.

    Raises:
        ArgumentError: They are no such mapping, or a backend does not take one of its options.
        EngineUnavailable: The library of a backend is not installed.
        EngineError: A backend fails in another way.
    """
    if not isinstance(options, Mapping | None):
        raise _no_mapping(
            "options", options, 'Write options={"NAME": "value"}, with the names of the backend\'s library.'
        )
    if len(backends) == 1:
        _refuse_nested(next(iter(backends)), options or {})
    given = {name: options or {} for name in backends} if len(backends) == 1 else _read_several(backends, options or {})
    for name, backend in backends.items():
        place = (places or {}).get(name)
        with (
            EngineUnavailable.within(place) if place else nullcontext(),
            IntarsiaError.within(f"backend {name!r}") if len(backends) > 1 else nullcontext(),
        ):
            _check(name, backend, given[name])
    return given


def _check(name: str, backend: Backend, options: Mapping[str, Any]) -> None:
    try:
        backend.check_options(options)
    except IntarsiaError:
        raise
    except Exception as error:
        raise EngineError(
            "options",
            found=f"that the backend {name!r} fails on them ({type(error).__name__}: {first_line(error)})",
            expected="that it takes them, or refuses one",
            fix="Mend its method check_options, or compile with another backend.",
        ) from error


def _refuse_nested(backend: str, options: Mapping[str, Any]) -> None:
    if isinstance(options.get(backend), Mapping):
        shown = ", ".join(f"{name!r}: {value!r}" for name, value in options[backend].items())
        raise ArgumentError(
            "options",
            found=f"options by backend, for {backend!r} alone",
            expected="the options themselves, where one backend builds all engines",
            fix=f"Write options={{{shown}}}.",
        )


def _read_several(backends: Mapping[str, Backend], options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    example = next(iter(backends), "openvino")
    fix = f'Write options={{"{example}": {{"NAME": "value"}}}}.'
    for name, values in options.items():
        if name not in backends:
            raise ArgumentError(
                "options",
                found=f"{name!r}, which is none of the backends",
                expected=f"options by backend ({', '.join(backends) or 'of which there are none'})",
                fix=near_match(str(name), backends) or fix,
            )
        if not isinstance(values, Mapping | None):
            raise _no_mapping(f"options, backend {name!r}", values, fix)
    return {name: options.get(name) or {} for name in backends}


def _no_mapping(subject: str, found: Any, fix: str) -> ArgumentError:
    return ArgumentError(
        subject,
        found=f"an object of type {type(found).__name__!r}",
        expected="a mapping from names to values, or None",
        fix=fix,
    )
