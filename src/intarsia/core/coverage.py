"""Where each operator of a compiled hybrid runs, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorPlacement:
    """One operator node of the captured program.

    Attributes:
        node: Name of the node in the captured graph.
        operator: Operator, for instance "aten.linear.default".
        place: "torch", or the name of the engine partition that holds it ("openvino_2").
        reason: Why it is there, as a short phrase.
    """

    node: str
    operator: str
    place: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Every operator node of a compiled hybrid, in the order of the captured graph.

    Attributes:
        placements: One entry per operator node.
        removed: Operator nodes that compile took out before partitioning (asserts), with the reason each;
            pairs of "name (operator)" and reason.
        failed: Partitions that a backend could not build and that therefore stay in torch: name -> reason.
    """

    placements: tuple[OperatorPlacement, ...]
    removed: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engine partitions, in graph order."""
        return tuple(dict.fromkeys(p.place for p in self.placements if p.place != "torch"))
