"""The summary of a ledger: its order, its words, its reasons."""

from __future__ import annotations

from intarsia.core.ledger import Entry, Kind, Ledger


def test_the_lines_have_an_order_of_their_own_and_count_in_words() -> None:
    kinds: tuple[Kind, ...] = ("state", "mutation", "user output", "output", "node", "engine", "partition")
    one = Ledger(tuple(Entry(kind, "a", "kept", "a") for kind in kinds))
    assert one.summary().splitlines() == [
        "1 partition: 1 kept",
        "1 engine: 1 kept",
        "1 node: 1 kept",
        "1 partition output: 1 kept",
        "1 user output: 1 kept",
        "1 mutation: 1 kept",
        "1 state entry: 1 kept",
    ]
    two = Ledger(one.entries * 2)
    assert [line.partition(":")[0] for line in two.summary().splitlines()] == [
        "2 partitions",
        "2 engines",
        "2 nodes",
        "2 partition outputs",
        "2 user outputs",
        "2 mutations",
        "2 state entries",
    ]


def test_fates_stand_in_order_with_their_reasons_the_most_frequent_first() -> None:
    entries = [Entry("node", "a", "removed", None, "unused"), Entry("node", "b", "kept", "b")]
    entries += [Entry("node", "c", "merged", "b", reason) for reason in ("rare", "often", "often")]
    assert Ledger(tuple(entries)).summary() == "5 nodes: 1 kept, 3 merged (often: 2, rare: 1), 1 removed (unused: 1)"


def test_many_reasons_are_summed_up() -> None:
    entries = [Entry("node", str(i), "merged", "x", f"a write of {i}") for i in range(9)]
    entries += [Entry("node", "y", "merged", "x", "inlined")] * 2
    assert (
        Ledger(tuple(entries))
        .summary()
        .endswith("(inlined: 2, a write of 0: 1, a write of 1: 1, a write of 2: 1, other reasons: 6)")
    )
