"""What a file of intarsia holds, in JSON that is read before torch reads anything: its methods and its members."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from intarsia.core.coverage import Coverage
from intarsia.core.ledger import Ledger
from intarsia.errors import FormatError, UnsupportedVersion, first_line
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.layout import MANIFEST_HASH_MEMBER, MANIFEST_MEMBER, checked_path
from intarsia.formats.archive.listing import Archive, check_kind, damaged, open_archive
from intarsia.formats.archive.refusal import quoted
from intarsia.formats.archive.writer import MemberEntry
from intarsia.formats.judgement.typed import check_texts, check_types
from intarsia.formats.manifest import FORMAT_VERSION, EngineEntry, Manifest, WriteEntry

_FILE_WIDE = ("format_version", "intarsia_version", "torch_version", "graph_schema", "byte_order", "test_vectors")


class Method(NamedTuple):
    """One entry point of a file.

    Attributes:
        program: Name of its program in the archive.
        manifest: What is known of it.
    """

    program: str
    manifest: Manifest


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
        methods: At least one, by name.
        members: Size and SHA-256 of every other member of the archive, by name.
    """

    methods: Mapping[str, Method]
    members: Mapping[str, MemberEntry]

    def to_text(self) -> str:
        """The contents as JSON text; `from_text` reads it back."""
        methods = {name: _to_fields(method) for name, method in self.methods.items()}
        shared = [{key: fields.pop(key) for key in _FILE_WIDE} for fields in methods.values()]
        members = {name: entry._asdict() for name, entry in self.members.items()}
        return json.dumps({**shared[0], "methods": methods, "members": members}, allow_nan=False)

    @classmethod
    def from_text(cls, text: str | bytes, subject: str) -> Contents:
        """The contents that `to_text` wrote.

        Raises:
            UnsupportedVersion: A newer intarsia wrote it.
            FormatError: It is not such a text; `subject` names the file in the message.
        """
        try:
            fields = json.loads(text)
            found = int(fields["format_version"])
            if found > FORMAT_VERSION:
                raise _too_new(subject, found, fields.get("intarsia_version"))
            _check_counts(found, fields["test_vectors"])
            check_texts(fields)
            shared = {key: fields[key] for key in _FILE_WIDE}
            methods = {str(name): _from_fields({**shared, **method}) for name, method in fields["methods"].items()}
            members = {str(name): MemberEntry(**entry) for name, entry in fields["members"].items()}
            for entry in members.values():
                check_types(entry)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise _unreadable(subject, f"{type(error).__name__}: {first_line(error)}") from error
        if not methods:
            raise _unreadable(subject, "it has no method")
        return cls(methods, members)


def read_contents(path: str | os.PathLike[str]) -> Contents | None:
    """What a PT2 archive says of itself, or None when another tool wrote it. Reads nothing else.

    Raises:
        FormatError: The file is missing, cut short, damaged, or something else than a PT2 archive.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    with open_archive(checked_path(path)) as archive:
        if is_ours(archive):
            return contents_of(archive, archive.directory())
        check_kind(archive)
    return None


def is_ours(archive: Archive) -> bool:
    """Whether intarsia wrote an archive: it has a manifest, or the hash of one that is missing."""
    return not archive.members.isdisjoint((MANIFEST_MEMBER, MANIFEST_HASH_MEMBER))


def contents_of(archive: Archive, directory: Mapping[str, Member]) -> Contents:
    """What an archive of ours says of itself, compared with its own hash.

    Raises:
        FormatError: It is damaged.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    text = archive.read(MANIFEST_MEMBER)
    contents = Contents.from_text(text, str(archive.path))  # first, for a newer format may have its hash elsewhere
    expected = archive.read(MANIFEST_HASH_MEMBER) if MANIFEST_HASH_MEMBER in directory else b""
    if hashlib.sha256(text).hexdigest().encode() != expected:
        raise damaged(archive.path, f"a manifest that does not match member {MANIFEST_HASH_MEMBER!r}")
    return contents


def _to_fields(method: Method) -> dict[str, Any]:
    ledger = method.manifest.ledger
    fields = {
        **asdict(method.manifest),
        "ledger": None if ledger is None else ledger.to_json(),
        "program": method.program,
    }
    for name in ("compiled", "precision"):
        if not fields[name]:
            del fields[name]  # which an older intarsia does not know
    return fields


def _from_fields(fields: dict[str, Any]) -> Method:
    program = str(fields.pop("program"))
    ledger = fields["ledger"]
    engines = tuple(EngineEntry(**entry) for entry in fields["engines"])
    writes = tuple(WriteEntry(**entry) for entry in fields["writes"])
    account = None if ledger is None else Ledger.from_json(ledger)
    manifest = Manifest(**{**fields, "engines": engines, "writes": writes, "ledger": account})
    for part in (manifest, *engines, *writes, *(account.entries if account else ())):
        check_types(part)
    if manifest.coverage is not None:
        _check_coverage(Coverage.from_json(manifest.coverage))
    _check_all_texts([*manifest.packages.values(), *manifest.precision.values()])
    return Method(program, manifest)


def _check_counts(version: int, vectors: int) -> None:
    if version < 1 or vectors < 0:
        raise ValueError(f"format version {version} and {vectors} test vectors")


def _check_coverage(coverage: Coverage) -> None:
    for placement in coverage.placements:
        check_types(placement)
    pairs = (*coverage.removed, *coverage.failed, *coverage.held)
    _check_all_texts(text for pair in pairs for text in pair)


def _check_all_texts(values: Iterable[Any]) -> None:
    for value in values:
        if type(value) is not str:
            raise TypeError(f"{quoted(value)} for a text")


def _unreadable(subject: str, reason: str) -> FormatError:
    return FormatError(
        subject,
        found=f"a manifest that cannot be read ({reason})",
        expected=f"a manifest of format version {FORMAT_VERSION}",
        fix="Save the program again.",
    )


def _too_new(subject: str, found: int, writer: object) -> UnsupportedVersion:
    return UnsupportedVersion(
        subject,
        found=f"format version {found}" + (f", written by intarsia {writer}" if isinstance(writer, str) else ""),
        expected=f"at most {FORMAT_VERSION}",
        fix="Upgrade intarsia, or save the program with this version.",
    )
