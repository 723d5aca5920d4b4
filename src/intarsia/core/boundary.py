"""Boundaries: programs that say what another one takes and how it gives what it returns, and compute nothing."""

from __future__ import annotations

import torch


def is_boundary(program: torch.export.ExportedProgram) -> bool:
    """Whether a program computes nothing: it has no operators, and what it returns are no values of its own.

    Example:
        >>> is_boundary(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)))
        False
    """
    return all(node.op in ("placeholder", "output") and not node.all_input_nodes for node in program.graph.nodes)
