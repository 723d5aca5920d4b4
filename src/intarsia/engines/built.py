"""What `Backend.build` returns, compared with what it promises."""

from __future__ import annotations

import json
from typing import Any

from intarsia.core.backend import BuiltEngine
from intarsia.errors import EngineError, first_line, with_article


def check_built(backend: str, built: Any) -> BuiltEngine:
    """What a backend has built, as it is.

    Raises:
        EngineError: It is none that an engine container can hold; names the backend.
    """
    if not isinstance(built, BuiltEngine):
        raise _other(backend, with_article(type(built).__name__), "a BuiltEngine")
    sections = {"payload": built.payload, "source": built.source}
    for name, section in sections.items():
        if not isinstance(section, bytes | None):
            raise _other(backend, f"{with_article(type(section).__name__)} for its {name}", "bytes, or None")
    if built.payload is None and built.source is None:
        raise _other(backend, "neither a payload nor a source", "one of them")
    for name, text in {"backend_version": built.backend_version, "target": built.target}.items():
        if not isinstance(text, str):
            raise _other(backend, f"{with_article(type(text).__name__)} for its {name}", "text")
    _check_options(backend, built.options)
    _check_constants(backend, built)
    return built


def _check_options(backend: str, options: Any) -> None:
    try:
        told = json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _other(backend, f"options that JSON cannot hold ({first_line(error)})", "JSON values") from error
    if json.loads(told) != options:
        raise _other(backend, f"the options {options!r}, which JSON would change", "names, and JSON values")


def _check_constants(backend: str, built: BuiltEngine) -> None:
    end, size = 0, len(built.source or b"")
    for start, length in sorted(built.constants):
        if start < end or length < 0 or start + length > size:
            raise _other(
                backend,
                f"constants of {length} bytes at {start}, in a source of {size}",
                "places inside of the source that do not overlap",
            )
        end = start + length


def _other(backend: str, found: str, expected: str) -> EngineError:
    return EngineError(
        f"backend {backend!r}",
        found=f"that it builds {found}",
        expected=expected,
        fix="Mend the backend, or compile with another one.",
    )
