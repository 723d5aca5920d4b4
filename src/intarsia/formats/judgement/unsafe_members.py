"""Members of an archive that a load would have to unpickle or to run, known by their names, before one is read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from intarsia.errors import FormatError, near_match
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.refusal import quoted

ALLOWED = ("native", "pickle")
"""What a caller of `load` can allow."""

_NATIVE = re.compile(r"data/aotinductor/.*|.*\.(?:so|dll|dylib|pyd|o|a|lib|exe|cubin|fatbin|ptx|hsaco|spv)", re.DOTALL)
_PICKLED = re.compile(
    r"data/(?:weights|constants)/[^/]*\.pt|data/constants/(?:custom|opaque)_obj_.*|.*\.(?:pkl|pickle|pth)", re.DOTALL
)
_SAMPLES = re.compile(r"data/sample_inputs/.*", re.DOTALL)
# What torch.export.save writes.
_PROGRAM = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(?:version|serialization_id)|models/[^/]+\.json"
    r"|data/(?:weights|constants|sample_inputs)/[^/]+|extra/.+",
    re.DOTALL,
)


def checked_words(allow: Iterable[str]) -> frozenset[str]:
    """What a caller allows.

    Raises:
        FormatError: It is a word that means nothing here.

    Example:
        >>> sorted(checked_words(["pickle"]))
        ['pickle']
    """
    words = frozenset([allow] if isinstance(allow, str) or not isinstance(allow, Iterable) else allow)
    unknown = sorted(map(str, words.difference(ALLOWED)))
    if unknown:
        raise FormatError(
            "allow",
            found=repr(unknown[0]),
            expected=" or ".join(map(repr, ALLOWED)),
            fix=near_match(unknown[0], ALLOWED) or "Leave it out: nothing else can be allowed.",
        )
    return words


def check_own_members(path: Path, members: Iterable[Member]) -> None:
    """Refuse members of a file of intarsia that it never writes: pickles, and native code.

    Raises:
        FormatError: Names the member.
    """
    for member in members:
        _check_native(path, member.name)
        if _PICKLED.fullmatch(member.name) or (member.size_bytes and _SAMPLES.fullmatch(member.name)):
            raise _refusal(path, member.name, "a pickle", "none in a file that intarsia wrote", _OWN_FIX)


def check_foreign_members(path: Path, members: Iterable[Member], allow: frozenset[str]) -> bool:
    """Refuse members of another tool's file that no load reads, or that it would have to unpickle or run.

    Sample inputs are a pickle too; they are never read.

    Args:
        path: Named in errors.
        members: The archive's.
        allow: What the caller accepts.

    Returns:
        Whether there are pickles, which the caller accepts.

    Raises:
        FormatError: Names the member.
    """
    pickled = False
    for member in members:
        _check_native(path, member.name)
        if not _PROGRAM.fullmatch(member.name) and not _PICKLED.fullmatch(member.name):
            raise _refusal(path, member.name, "no part of a program", "what torch.export.save writes", _UNKNOWN_FIX)
        if _PICKLED.fullmatch(member.name):
            pickled = True
            if "pickle" not in allow:
                raise pickle_refusal(path, f"the member {quoted(member.name)}")
    return pickled


def pickle_refusal(path: Path, what: str) -> FormatError:
    """The error for a part of another tool's file that is a pickle."""
    return FormatError(
        str(path),
        found=f"{what}, which is a pickle",
        expected="tensors as raw bytes",
        consequence="Loading a pickle can run code that stands in it.",
        fix='Where you trust the file: load it with allow={"pickle"}, and save it again.',
    )


def _check_native(path: Path, name: str) -> None:
    if _NATIVE.fullmatch(name):
        raise _refusal(path, name, "native code", "none", _NATIVE_FIX)


_OWN_FIX = "Save the program again."
_UNKNOWN_FIX = "Load it with the tool that wrote it."
_NATIVE_FIX = "Where you trust the file: run it with the tool that wrote it, as torch._inductor.aoti_load_package does."


def _refusal(path: Path, name: str, what: str, expected: str, fix: str) -> FormatError:
    return FormatError(str(path), found=f"the member {quoted(name)}, which is {what}", expected=expected, fix=fix)
