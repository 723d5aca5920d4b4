"""What torch's refusal of a model means: a misfit of the examples, of `dynamic_shapes`, or a fault of the model."""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from pathlib import Path

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from intarsia.errors import CaptureError

_LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(sympy.__file__).parent),
    str(Path(__file__).parents[1]),
    contextlib.__file__,
    functools.__file__,
)
# Advice that torch appends to what it found; ours stands in its place.
_ADVICE = re.compile(
    r"\s*(?:For more information|Specializations unexpectedly|If this type holds|If you're using mark_dynamic"
    r"|Alternatively, you could|Export only supports|Pls register it)"
)
# What torch says -> what mends it.
_CONTAINERS = "tuples, lists, dicts, or dataclasses that torch.export.register_dataclass knows."
_REMEDIES = (
    (
        "copy__default of type call_function is missing",
        "Where the model assigns an input or another buffer to a buffer, assign a copy: self.buffer = x.clone().",
    ),
    ("in output, which is not a known type", f"Return tensors in {_CONTAINERS}"),
    ("Unsupported input type", f"Pass tensors and numbers in {_CONTAINERS}"),
    ("is mutated in the forward", "Register the tensor as a buffer of its module: self.register_buffer(name, tensor)."),
)


def explain(subject: str, error: Exception) -> CaptureError:
    """The error for what torch raised while it captured a model.

    Args:
        subject: The model, as the user knows it.
        error: What torch, or the model's own code, raised.

    Example:
        >>> str(explain("model 'Net'", RuntimeError("no such axis"))).partition(". ")[0]
        "model 'Net': found no such axis, expected a model that torch.export can capture"
    """
    if _is_about_sizes(error):
        expected, fix = _advise_on_sizes(error)
        return CaptureError(f"{subject}, dynamic_shapes", found=_first_line(error), expected=expected, fix=fix)
    line, place = _first_line(error), _user_line(error)
    return CaptureError(
        subject,
        found=f"{line} (at {place})" if place else line,
        expected="a model that torch.export can capture",
        fix=_remedy(error),
    )


def _is_about_sizes(error: Exception) -> bool:
    """Whether `dynamic_shapes` does not fit the example inputs, or the model."""
    files = [Path(frame.filename).parts[-3:] for frame in traceback.extract_tb(error.__traceback__)]
    return (
        isinstance(error, ConstraintViolationError)
        or _is_violation(error)
        or ("torch", "export", "dynamic_shapes.py") in files
        or _is_missing_dimension(error)
    )


def _is_violation(error: Exception) -> bool:
    return str(error).strip().startswith("Constraints violated")


def _is_missing_dimension(error: Exception) -> bool:
    """Whether torch, which checks no dimension, fell over one that the input does not have."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, IndexError) and bool(frames) and frames[-1].filename.endswith("non_strict_utils.py")


def _advise_on_sizes(error: Exception) -> tuple[str, str]:
    """What was expected of `dynamic_shapes`, and how to mend them."""
    if _is_violation(error):
        return "ranges that the model keeps open", _suggestion(error) or "Narrow the ranges, or change the model."
    if isinstance(error, ConstraintViolationError):
        return "example inputs whose sizes lie in the ranges", "Change the ranges, or the example inputs."
    fix = "Write {dimension: Dim(name)} for a tensor; None where all of it is fixed, and for what is no tensor."
    return "an entry for each input, of its structure and rank", fix


def _remedy(error: Exception) -> str:
    told = next((remedy for text, remedy in _REMEDIES if text in str(error)), "")
    if told:
        return told
    change = "hange the model at that place, or keep it out of the part that is compiled."
    # torch has classes of its own for what it cannot capture; others come of an operator, or of the model's code.
    if type(error).__module__ == "builtins":
        return f"Call model(*args, **kwargs): where that raises too, mend the example inputs. Otherwise c{change}"
    return f"C{change}"


def _first_line(error: Exception) -> str:
    """The first line of torch's message that says something, without advice and final stop."""
    if _is_missing_dimension(error):
        return "a dimension that the input does not have"
    lines = [line.strip() for line in str(error).splitlines()]
    chosen = next((line for line in lines if line), type(error).__name__)
    if chosen.startswith("Constraints violated"):
        details = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        chosen = f"{chosen.split('!')[0]}: {details[0]}" if details else chosen
    return _ADVICE.split(chosen)[0].rstrip(".:! ")


def _suggestion(error: Exception) -> str:
    """What torch proposes under "Suggested fixes", on one line."""
    match = re.search(r"Suggested fixes:\n((?:[ \t]+\S.*\n?)+)", str(error))
    if match is None:
        return ""
    proposals = [line.strip() for line in match.group(1).splitlines() if line.strip()]
    if any(re.fullmatch(r"\w+ = [01]", proposal) for proposal in proposals):
        return "Give example inputs with another size there: torch takes a size of 0 or 1 to be fixed."
    return f"torch suggests for dynamic_shapes: {'; '.join(proposals)}."


def _user_line(error: Exception) -> str:
    """File, line and text of the innermost frame outside the libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    if not outside:
        return ""
    return f"{outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}".removesuffix(": ")
