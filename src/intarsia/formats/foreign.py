"""Programs that `torch.export.save` wrote, read without torch's reader, which unpickles what it finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import torch

from intarsia._torch import deserialize_graph, load_archive
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.layout import KINDS, Kind, graph_member, table_member, tensor_member
from intarsia.formats.archive.listing import Archive, damaged
from intarsia.formats.archive.mapping import MappedTensors
from intarsia.formats.archive.payload import Payload, pickled_names, read_payloads
from intarsia.formats.archive.refusal import quoted
from intarsia.formats.judgement.unsafe_members import check_foreign_members, pickle_refusal

_PROGRAM = "model"
_VERSION = b"0"


def read_foreign(
    archive: Archive, read_values: Callable[[str, bytes], dict[str, Any]], allow: frozenset[str]
) -> torch.export.ExportedProgram:
    """The program `model` of another tool's archive, without its example inputs, which are a pickle.

    Tensors are read into memory, for torch writes over a file in place, and compared with the archive's checksums,
    for there are no hashes.

    Args:
        archive: The archive.
        read_values: Judges a graph: takes the name of its member and its text, and gives its JSON values.
        allow: With "pickle", pickles are loaded, by torch.

    Raises:
        FormatError: The archive holds what a load must not read, or says what cannot be.
    """
    directory = archive.directory()
    pickled = check_foreign_members(archive.path, directory.values(), allow)
    if archive.read("archive_version") != _VERSION:
        raise damaged(archive.path, "another version of torch's archives")
    values = read_values(graph_member(_PROGRAM), archive.read(graph_member(_PROGRAM)))
    texts = {kind: archive.read(table_member(_PROGRAM, kind)) for kind in KINDS} if not pickled else {}
    for kind, text in texts.items():
        names = pickled_names(text, _subject(archive, kind))
        if names and "pickle" not in allow:
            raise pickle_refusal(archive.path, f"the tensor {quoted(names[0])}")
        pickled = pickled or bool(names)
    if pickled:
        archive.file.seek(0)
        return load_archive(archive.file)[_PROGRAM]
    return _read_plain(archive, directory, values, texts)


def _read_plain(
    archive: Archive, directory: Mapping[str, Member], values: dict[str, Any], texts: dict[Kind, bytes]
) -> torch.export.ExportedProgram:
    """The program, where no tensor of it is pickled. Tensors of one member share memory, as in torch."""
    memories: defaultdict[tuple[Kind, str], int] = defaultdict(partial(next, count()))

    def memory_of(kind: Kind) -> Callable[[str], int]:
        return lambda member: memories[kind, member]

    tables: dict[Kind, dict[str, Payload]] = {
        kind: read_payloads(text, _subject(archive, kind), memory_of=memory_of(kind)) for kind, text in texts.items()
    }
    payloads = [(kind, payload) for kind, table in tables.items() for payload in table.values()]
    tensors = MappedTensors(archive.path, archive.file, directory, payloads, copied=True)
    for name in {tensor_member(kind, payload.member) for kind, payload in payloads}:
        archive.check(name)
    state, constants = ({name: tensors.tensor(payload) for name, payload in tables[kind].items()} for kind in KINDS)
    return deserialize_graph(values, state, constants)


def _subject(archive: Archive, kind: Kind) -> str:
    return f"{archive.path}, member {table_member(_PROGRAM, kind)!r}"
