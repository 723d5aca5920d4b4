"""What backends answer when they are asked whether they take an operator."""

from __future__ import annotations

from typing import Any

import torch

from intarsia.errors import EngineError, EngineUnavailable, IntarsiaError, first_line
from intarsia.partition.limits import Supports


def ask(backend: str, supports: Supports, node: torch.fx.Node) -> str | None:
    """What a backend says of a node.

    Args:
        backend: Its name.
        supports: Its method of that name.
        node: The node.

    Raises:
        EngineUnavailable: A module that it needs cannot be imported.
        EngineError: It fails, or says something else than its contract has.
    """
    try:
        reason: Any = supports(node)
    except IntarsiaError:
        raise
    except ImportError as error:
        raise _not_imported(backend, error) from error
    except Exception as error:
        raise _unanswered(backend, node, f"{type(error).__name__}: {first_line(error)}") from error
    if reason is not None and not (isinstance(reason, str) and reason):
        raise _unanswered(backend, node, repr(reason))
    return reason


def _not_imported(backend: str, error: ImportError) -> EngineUnavailable:
    module = f"module {error.name!r}" if error.name else "a module"
    return EngineUnavailable(
        f"backend {backend!r}",
        found=f"that {module}, which it needs, cannot be imported ({type(error).__name__}: {first_line(error)})",
        expected="one that can",
        fix="Install the package that holds it; for a backend of intarsia, `intarsia doctor` tells the command.",
    )


def _unanswered(backend: str, node: torch.fx.Node, found: str) -> EngineError:
    return EngineError(
        f"backend {backend!r}",
        found=f"the answer {found} to whether it takes {node.target}",
        expected="None, or a short phrase that says why not",
        fix="Mend its method supports, or compile with another backend.",
        node=node.name,
    )
