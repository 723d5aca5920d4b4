"""Where each operator of a compiled hybrid runs, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.errors import HybridError

if TYPE_CHECKING:
    import torch

_KEY = "intarsia_coverage"


@dataclass(frozen=True)
class OperatorPlacement:
    """One operator node of the captured program.

    Attributes:
        node: Name of the node in the captured graph.
        operator: Operator, for instance "aten.linear.default".
        place: "torch", or the name of the engine partition that holds it ("openvino_2").
        reason: Why it is there, as a short phrase.

    Example:
        >>> OperatorPlacement("relu", "aten.relu.default", "openvino_0", "supported").place
        'openvino_0'
    """

    node: str
    operator: str
    place: str
    reason: str


@dataclass(frozen=True)
class OperatorGroup:
    """The nodes of one operator that run in one kind of place for one reason.

    Attributes:
        operator: Operator, for instance "aten.linear.default".
        in_engine: Whether engines run them; otherwise torch does.
        count: How many nodes there are.
        reason: Why they are there.
        backend: The backend of the engines, where it is known.

    Example:
        >>> relu = OperatorPlacement("relu", "aten.relu.default", "demo_0", "supported")
        >>> Coverage((relu, relu), backends=(("demo_0", "demo"),)).by_operator()
        (OperatorGroup(operator='aten.relu.default', in_engine=True, count=2, reason='supported', backend='demo'),)
    """

    operator: str
    in_engine: bool
    count: int
    reason: str
    backend: str = ""


@dataclass(frozen=True)
class Coverage:
    """Every operator node of a compiled hybrid, in the order of the captured graph.

    Attributes:
        placements: One entry per operator node.
        removed: Operator nodes that compile took out before partitioning (asserts), with the reason each;
            pairs of "name (operator)" and reason.
        failed: Partitions that a backend could not build, or operators, where it told which; pairs of name and reason.
            Their operators went to the next backend, or stay in torch.
        held: State that engines hold as constants; pairs of the engine's and the state's name.
        backends: Pairs of an engine's name and that of its backend.

    Example:
        >>> relu = OperatorPlacement("relu", "aten.relu.default", "openvino_0", "supported")
        >>> print(Coverage((relu, OperatorPlacement("sort", "aten.sort.default", "torch", "no OpenVINO form"))))
        1 of 2 operators in 1 engine
        engine   1  aten.relu.default  supported
        torch    1  aten.sort.default  no OpenVINO form
    """

    placements: tuple[OperatorPlacement, ...]
    removed: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    backends: tuple[tuple[str, str], ...] = ()

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engine partitions, in the order of their first operators in the captured graph."""
        return tuple(dict.fromkeys(p.place for p in self.placements if p.place != "torch"))

    def by_operator(self) -> tuple[OperatorGroup, ...]:
        """Placements by operator, kind of place and reason: engines first, by backend; then the most frequent first."""
        backends = dict(self.backends)
        counts = Counter((p.operator, p.place != "torch", p.reason, backends.get(p.place, "")) for p in self.placements)
        groups = [OperatorGroup(name, engine, count, *rest) for (name, engine, *rest), count in counts.items()]
        order = {name: i for i, name in enumerate(dict.fromkeys(backends.values()))}
        return tuple(sorted(groups, key=lambda g: (not g.in_engine, order.get(g.backend, 0), -g.count, g.operator)))

    def kind_of_place(self, group: OperatorGroup) -> str:
        """What a table says of where a group runs: "torch", "engine", or of several backends that of the engines."""
        several = len(set(dict(self.backends).values())) > 1
        return (group.backend if several and group.backend else "engine") if group.in_engine else "torch"

    def removals(self) -> dict[tuple[str, str], int]:
        """Operator that compile took out before partitioning, and why -> how many nodes, the most frequent first."""
        named = ((text.partition(" (")[2].removesuffix(")"), reason) for text, reason in self.removed)
        return dict(Counter(named).most_common())

    @property
    def share(self) -> float:
        """How much of the operators runs in engines, from 0 to 1; 1 where there is no operator."""
        inside = sum(p.place != "torch" for p in self.placements)
        return inside / len(self.placements) if self.placements else 1.0

    def headline(self) -> str:
        """How many of the operators run in how many engines."""
        inside = sum(p.place != "torch" for p in self.placements)
        engines, kinds = len(self.engines), Counter(dict(self.backends).values())
        parts = f" ({', '.join(f'{count} {name}' for name, count in kinds.items())})" if len(kinds) > 1 else ""
        return f"{inside} of {len(self.placements)} operators in {engines} engine{'' if engines == 1 else 's'}{parts}"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Coverage:
        """The coverage whose `dataclasses.asdict` a file holds as JSON values.

        Example:
            >>> from dataclasses import asdict
            >>> found = Coverage((OperatorPlacement("relu", "aten.relu.default", "torch", "is kept"),))
            >>> Coverage.from_json(asdict(found)) == found
            True
        """
        placements = tuple(OperatorPlacement(**entry) for entry in values["placements"])
        pairs = {
            key: tuple((name, what) for name, what in values.get(key, ()))
            for key in ("removed", "failed", "held", "backends")
        }
        return cls(placements, **pairs)

    def __str__(self) -> str:
        rows = [(self.kind_of_place(g), str(g.count), g.operator, g.reason) for g in self.by_operator()]
        rows += [("removed", str(count), operator, why) for (operator, why), count in self.removals().items()]
        rows += [("not built", "", name, why) for name, why in self.failed]
        place, count, name = (max([least, *(len(row[i]) for row in rows)]) for i, least in enumerate((6, 3, 0)))
        lines = [f"{row[0]:{place}} {row[1]:>{count}}  {row[2]:{name}}  {row[3]}".rstrip() for row in rows]
        return "\n".join([self.headline(), *lines])


def coverage(hybrid: torch.fx.GraphModule) -> Coverage:
    """Where each operator of a hybrid that `intarsia.compile` made runs, and why.

    Raises:
        HybridError: `hybrid` was not made by `intarsia.compile`.

    Example:
        >>> import intarsia
        >>> import torch
        >>> print(coverage(intarsia.compile(torch.nn.ReLU(), (torch.ones(3),))))
        1 of 1 operators in 1 engine
        engine   1  aten.relu.default  supported
    """
    found = find_coverage(hybrid)
    if found is None:
        raise HybridError(
            "hybrid",
            found=f"an object of type {type(hybrid).__name__!r} without coverage",
            expected="what intarsia.compile returned",
            fix="Pass the hybrid itself, of several methods one of them; the coverage that a file holds is printed by "
            "intarsia inspect FILE.",
        )
    return found


def find_coverage(hybrid: torch.fx.GraphModule) -> Coverage | None:
    """The coverage of a hybrid, or None when `intarsia.compile` did not make it."""
    found = getattr(hybrid, "meta", {}).get(_KEY)
    return found if isinstance(found, Coverage) else None


def record_coverage(hybrid: torch.fx.GraphModule, found: Coverage) -> None:
    """Let `coverage(hybrid)` find `found`."""
    hybrid.meta[_KEY] = found


def keep_coverage(hybrid: torch.fx.GraphModule, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program that was exported of a hybrid, with the hybrid's coverage, so that a file of it tells it too."""
    found = find_coverage(hybrid)
    if found is not None:
        record_coverage(program.graph_module, found)
    return program
