"""What a model assigns to its attributes while torch traces it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from intarsia._torch import pytree
from intarsia.errors import CaptureError

_ASSIGNED = re.compile(r"The tensor attributes? (self\..*?) (?:was|were) assigned during export")
_PATH = re.compile(r"self\.([\w.]+)((?:\[[^\]]*\])*)")
_KEY = re.compile(r"\[([^\]]*)\]")
# torch's own recurrent layers set the list of their parameters anew in a trace.
_OF_TORCH = "_flat_weights"


@contextmanager
def recorded_assignments(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Record which tensor attributes are assigned while torch traces a module, and take away what the trace leaves.

    torch keeps the assignment of a buffer, for a buffer is state. That of another attribute is not in the program, of
    which torch warns. Where there was a tensor before, `refuse_lost` decides instead of the warning.

    Args:
        module: What torch traces.

    Yields:
        Path of each attribute that was a tensor and was assigned -> that tensor; filled when the block ends.
    """
    parts = dict(module.named_modules())
    before = {path: pytree.tree_map(lambda leaf: leaf, dict(vars(part))) for path, part in parts.items()}
    assigned: dict[str, torch.Tensor] = {}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", _ASSIGNED.pattern, UserWarning)
            yield assigned
    finally:
        for path, part in parts.items():
            for name in list(vars(part).keys() - before[path].keys()):
                delattr(part, name)
    for warning in caught:
        match = _ASSIGNED.match(str(warning.message))
        paths = [found for found in _PATH.findall(match[1]) if not found[0].endswith(_OF_TORCH)] if match else []
        values = {path: _value_of(path, keys, before) for path, keys in paths}
        assigned.update((path, value) for path, value in values.items() if isinstance(value, torch.Tensor))
        if match is None or not assigned.keys() >= values.keys():
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def refuse_lost(subject: str, assigned: Mapping[str, torch.Tensor], program: torch.export.ExportedProgram) -> None:
    """Refuse assignments of tensors that the program reads: the next call would read the same ones again.

    A tensor that is only left behind, and read by nobody, may be lost.

    Args:
        subject: What was captured, for messages.
        assigned: What `recorded_assignments` has recorded.
        program: The captured program.

    Raises:
        CaptureError: There is such an assignment.
    """
    read = {id(value) for value in program.constants.values()}
    lost = [path for path, value in assigned.items() if id(value) in read]
    if lost:
        raise CaptureError(
            subject,
            found=f"an assignment to self.{lost[0]}, a tensor that is no buffer",
            expected="state that is registered as a buffer",
            consequence="The program would not keep it from call to call.",
            fix=f"Register it: self.register_buffer({lost[0].rpartition('.')[2]!r}, tensor).",
        )


def _value_of(path: str, keys: str, attributes: Mapping[str, Mapping[str, Any]]) -> Any:
    """What stood at a path of the module, None where nothing did."""
    parent, _, name = path.rpartition(".")
    value: Any = attributes.get(parent, {}).get(name)
    try:
        for key in _KEY.findall(keys):
            value = value[ast.literal_eval(key)]
    except (KeyError, IndexError, TypeError):
        return None
    return value
