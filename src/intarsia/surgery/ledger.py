"""The exporter's account: it enters what becomes of everything in a hybrid, and checks that nothing is missing."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch.fx import Graph, Node

from intarsia.core.ledger import Entry, Fate, Kind, Ledger, told
from intarsia.errors import ConservationError

_LEDGERS: WeakKeyDictionary[torch.export.ExportedProgram, Ledger] = WeakKeyDictionary()
_UNUSED = "nothing depends on it"


def ledger(program: torch.export.ExportedProgram) -> Ledger:
    """What the export that made this program did with every node, output, state entry and write of its hybrid.

    Args:
        program: The very object that `export` returned; a copy has no ledger.

    Raises:
        ConventionError: The program was not made by `export`.
    """
    return told(find_ledger(program))


def find_ledger(program: object) -> Ledger | None:
    """The account of the export that made this very program, or None for anything else."""
    return _LEDGERS.get(program) if isinstance(program, torch.export.ExportedProgram) else None


def keep_ledger(program: torch.export.ExportedProgram, changed: torch.export.ExportedProgram) -> None:
    """Let the account of a program stand for a changed one, whose nodes have the same names."""
    known = _LEDGERS.get(program)
    if known is not None:
        _LEDGERS[changed] = known


class Account:
    """Entries of one export while it goes on.

    An entry holds the image node itself until the account is closed, for a later step may replace or remove it.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Kind, str, Fate, Node | None, str]] = []
        self._removed: dict[Node, str] = {}
        self._replaced: dict[Node, Node] = {}
        self._holders: dict[Graph, list[Node]] = {}
        self._paths: dict[Graph, str | None] = {}

    def note(self, kind: Kind, subject: str, fate: Fate, image: Node | None, reason: str = "") -> None:
        """Enter what became of one thing."""
        self._entries.append((kind, subject, fate, image, reason))

    def remove(self, image: Node, reason: str = _UNUSED) -> None:
        """Enter that a later step took an image out of the new graph."""
        self._removed[image] = reason

    def replace(self, image: Node, by: Node, reason: str) -> None:
        """Enter that a later step put another node in the place of an image."""
        self._removed[image] = reason
        self._replaced[image] = by

    def place_body(self, graph: Graph, holder: Node) -> None:
        """Enter that a node names the body of which this is the graph."""
        self._holders.setdefault(graph, []).append(holder)

    def close(self, program: torch.export.ExportedProgram) -> None:
        """Check the account against the program and keep it.

        Args:
            program: The finished program.

        Raises:
            ConservationError: An image is not in the program, or a node of the program is nobody's image.
        """
        entries = [self._settle(*entry) for entry in self._entries]
        present = {node.name: node for node in program.graph.nodes}
        for path in filter(None, self._paths.values()):
            body = program.graph_module.get_submodule(path)
            present |= {f"{path}.{node.name}": node for node in body.graph.nodes}
        images = {entry.image for entry in entries if entry.image is not None}
        lost = images - present.keys()
        invented = {name for name, node in present.items() if node.op == "call_function" and name not in images}
        if lost or invented:
            raise ConservationError(
                "the export",
                found=f"{len(lost)} images gone ({_some(lost)}) and {len(invented)} of nothing ({_some(invented)})",
                expected="one image for every node that is kept",
                fix="This is a fault of intarsia: please report it with the hybrid.",
            )
        _LEDGERS[program] = Ledger(tuple(entries))

    def _settle(self, kind: Kind, subject: str, fate: Fate, image: Node | None, reason: str) -> Entry:
        while image is not None and image in self._removed:
            reason = self._removed[image]
            image = self._replaced.get(image)
            fate = "removed" if image is None else "merged"
        name = None if image is None else image.name
        if image is not None and image.graph in self._holders:
            path = self._path(image.graph)
            if path is None:
                fate, name, reason = "removed", None, reason or _UNUSED
            else:
                name = f"{path}.{name}"
        return Entry(kind, subject, fate, name, reason)

    def _path(self, graph: Graph) -> str | None:
        """Path of a body in the program, in the first place that is left; None when none is."""
        if graph not in self._paths:
            self._paths[graph] = next(filter(None, map(self._path_below, self._holders[graph])), None)
        return self._paths[graph]

    def _path_below(self, holder: Node) -> str | None:
        if holder in self._removed:
            return None
        if holder.graph not in self._holders:
            return str(holder.target)
        above = self._path(holder.graph)
        return None if above is None else f"{above}.{holder.target}"


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) or "none"
