"""What a `.pte` of intarsia says of itself, read before anything native sees it: nothing here needs ExecuTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from intarsia.core.method_names import DESCRIPTION
from intarsia.errors import FormatError, IntarsiaError, UnsupportedVersion, first_line
from intarsia.formats.contents import Contents
from intarsia.formats.judgement.typed import check_texts
from intarsia.formats.manifest import Manifest
from intarsia.formats.pte.layout import Layout, damaged, digest_of, open_pte_file, read_layout
from intarsia.formats.pte.plan import Plan, read_contents, read_plans

FORMAT_VERSION = 1


class Description(NamedTuple):
    """What a file tells of its methods.

    Attributes:
        contents: Their manifests, which name no programs.
        boundaries: A program with the inputs, ranges and structures of each method, as torch writes it.
        positions: Fields of the `InputPositions` of each method.
        executorch_version: Of the ExecuTorch that wrote the file.
        sealed: Whether the file ends with a seal.
    """

    contents: Contents
    boundaries: Mapping[str, bytes]
    positions: Mapping[str, Sequence[Sequence[Any]]]
    executorch_version: str
    sealed: bool

    @property
    def manifests(self) -> dict[str, Manifest]:
        """What is known of each method."""
        return {name: method.manifest for name, method in self.contents.methods.items()}

    @property
    def versions(self) -> dict[str, str]:
        """What wrote the file -> version."""
        manifest = next(iter(self.manifests.values()))
        return {**manifest.versions, "executorch": self.executorch_version}

    def to_text(self) -> str:
        """The description as JSON text; `from_text` reads it back."""
        fields = {
            "format_version": FORMAT_VERSION,
            "executorch_version": self.executorch_version,
            "sealed": self.sealed,
            "boundaries": {name: boundary.decode() for name, boundary in self.boundaries.items()},
            "positions": self.positions,
            "contents": json.loads(self.contents.to_text()),
        }
        return json.dumps(fields)

    @classmethod
    def from_text(cls, text: str, subject: str) -> Description:
        """The description that `to_text` wrote.

        Raises:
            UnsupportedVersion: A newer intarsia wrote it.
            FormatError: It is not such a text; `subject` names the file.
        """
        try:
            fields = json.loads(text)
            _check_version(fields, subject)
            check_texts(fields)
            contents = Contents.from_text(json.dumps(fields["contents"]), subject)
            boundaries = {str(name): str(boundary).encode() for name, boundary in fields["boundaries"].items()}
            positions = {str(name): [tuple(one) for one in fields["positions"][name]] for name in boundaries}
            version, sealed = str(fields["executorch_version"]), fields["sealed"] is True
            described = cls(contents, boundaries, positions, version, sealed)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise _unreadable(subject, error) from error
        if boundaries.keys() != contents.methods.keys():
            raise _unreadable(subject, ValueError("its methods are not those of its manifests"))
        return described


class PteContents(NamedTuple):
    """What stands in a file.

    Attributes:
        description: What it says of itself.
        plans: What its methods do, the one that returns the description left out.
        layout: Where its parts lie.
        stored: What delegates are made of, weights and initial values: size and the start of the SHA-256, by name.
        identity: What tells the file from another one that takes its place.
    """

    description: Description
    plans: Mapping[str, Plan]
    layout: Layout
    stored: Mapping[str, str]
    identity: tuple[int, ...]


def read_pte(path: Path, *, digests: bool = False) -> PteContents:
    """Read what a `.pte` says of itself, and compare it with its seal.

    Args:
        path: Of the file.
        digests: Whether to tell the hashes of what is stored.

    Raises:
        FormatError: The file is missing, cut short, damaged or of another kind, or another tool wrote it.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    with open_pte_file(path) as file:
        identity = identity_of(os.fstat(file.fileno()))
        layout = read_layout(path, file)
        file.seek(0)
        program = memoryview(file.read(layout.program_bytes))
        try:
            plans = read_plans(program)
            stored = read_contents(program) if digests else {}
        except (ValueError, IntarsiaError) as error:
            raise damaged(path, f"a program that cannot be read ({first_line(error)})") from error
        hashes = {
            name: f"{size} bytes, {digest_of(file, layout.segments + start, size).hexdigest()[:12]}"
            for name, (start, size) in stored.items()
        }
    description = _describe(path, plans)
    if description.sealed and not layout.sealed:
        raise damaged(path, "no seal at its end")
    own = {name: plans[name] for name in description.boundaries}
    return PteContents(description, own, layout, hashes, identity)


def identity_of(found: os.stat_result) -> tuple[int, ...]:
    """What tells a file from another one that takes its place."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _describe(path: Path, plans: Mapping[str, Plan]) -> Description:
    if DESCRIPTION not in plans:
        raise FormatError(
            str(path),
            found="a file of another tool, which does not say how its methods are called",
            expected="one that intarsia.save wrote",
            fix="Run it with executorch.runtime, or save the program with intarsia.",
        )
    description = Description.from_text(plans[DESCRIPTION].text or "", str(path))
    missing = sorted(description.boundaries.keys() - plans.keys())
    if missing:
        raise damaged(path, f"no method {missing[0]!r}")
    return description


def _check_version(fields: Mapping[str, Any], subject: str) -> None:
    found = int(fields["format_version"])
    if found > FORMAT_VERSION:
        raise UnsupportedVersion(
            subject,
            found=f"format version {found}",
            expected=f"at most {FORMAT_VERSION}",
            fix="Install the intarsia that wrote it, or a newer one.",
        )


def _unreadable(subject: str, error: Exception) -> FormatError:
    return FormatError(
        subject,
        found=f"a description that cannot be read ({type(error).__name__}: {first_line(error)})",
        expected="what intarsia.save wrote",
        fix="Save the program again.",
    )
