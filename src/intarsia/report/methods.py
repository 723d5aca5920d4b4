"""Facts about several methods of one file: what is each method's own, and the state that all have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from intarsia.report.program import ProgramFacts, StateFacts


def merge_state(
    methods: Mapping[str, ProgramFacts], names: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[StateFacts, ...], dict[str, ProgramFacts]]:
    """The state of all methods, each entry once, and the facts of each method without it and without sizes.

    Args:
        methods: Facts by the names of the methods.
        names: For each method, the names of those of its entries that are called otherwise among all.

    Returns:
        Entries, whose writers begin with the method that writes, and whose ways of writing stand once each; and the
        rest of the facts.
    """
    entries: dict[str, StateFacts] = {}
    for method, facts in methods.items():
        for entry in facts.state:
            name = names[method].get(entry.name, entry.name)
            known = entries.get(name, replace(entry, name=name, written_by=(), writing=""))
            writers = tuple(f"{method}: {writer}" for writer in entry.written_by)
            ways = dict.fromkeys(filter(None, (*known.writing.split("; "), entry.writing)))
            entries[name] = replace(known, written_by=(*known.written_by, *writers), writing="; ".join(ways))
    return tuple(entries.values()), {
        name: replace(facts, state=(), size_bytes={}, repeated_bytes=0) for name, facts in methods.items()
    }
