"""What a backend could not build, so that the model is cut again without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BuildFailure:
    """A partition that a backend could not build.

    Attributes:
        method: Name of the method that it is of; of one program alone the name is empty.
        partition: Its name ("openvino_2").
        backend: Name of the backend.
        nodes: Its operator nodes, by their names in the captured graph.
        operators: Operators that alone are to blame ("aten.relu.default"), where the backend tells.
        reason: What the backend says.

    Example:
        >>> BuildFailure("", "openvino_2", "openvino", ("relu",), (), "no memory").told
        'openvino_2 could not be built'
        >>> BuildFailure("", "openvino_2", "openvino", ("relu",), ("aten.relu.default",), "no ReLU").told
        'could not be built: no ReLU'
    """

    method: str
    partition: str
    backend: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    reason: str

    @property
    def told(self) -> str:
        """Why the operators concerned are not in an engine of the backend, as a short phrase."""
        return f"could not be built: {self.reason}" if self.operators else f"{self.partition} could not be built"

    @property
    def advice(self) -> str:
        """What to do where it is not known which operator is to blame, to be told after the reason.

        Example:
            >>> BuildFailure("", "openvino_2", "openvino", ("relu", "sin"), (), "no memory").advice
            '; leave the one to blame of its 2 operators in torch with torch_executed_ops'
        """
        if self.operators or len(self.nodes) < 2:
            return ""
        return f"; leave the one to blame of its {len(self.nodes)} operators in torch with torch_executed_ops"
