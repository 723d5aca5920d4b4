"""Keep torch from telling in its log, beside the error that is raised, what that error tells."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

Held = list[tuple[logging.Handler, logging.LogRecord]]


@contextmanager
def quiet_on_failure() -> Iterator[None]:
    """Hold back torch's warnings and errors; when the block raises they are dropped, otherwise they go out at its end.

    The graph so far, which torch prints on standard error when a model's control flow depends on data, is dropped too.
    What else is written to standard error goes out at the end, whatever happens.
    """
    written = io.StringIO()
    dropped = ""
    held: Held = []
    filters = [(handler, _Holder(handler, held)) for handler in _handlers()]
    for handler, holder in filters:
        handler.addFilter(holder)
    try:
        with redirect_stderr(written):
            yield
    except Exception as error:
        held.clear()
        dropped = f"{getattr(error, 'partial_fx_graph', '')}\n"
        raise
    finally:
        for handler, holder in filters:
            handler.removeFilter(holder)
        for handler, record in held:
            handler.handle(record)
        sys.stderr.write(written.getvalue().replace(dropped, "") if dropped.strip() else written.getvalue())


def _handlers() -> list[logging.Handler]:
    """The handlers of torch's loggers, several of which have their own."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    return list(dict.fromkeys(handler for name in names for handler in logging.getLogger(name).handlers))


class _Holder(logging.Filter):
    """Puts a handler's warnings and errors aside."""

    def __init__(self, handler: logging.Handler, held: Held) -> None:
        super().__init__()
        self._handler = handler
        self._held = held

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        self._held.append((self._handler, record))
        return False
