"""What OpenVINO says of a program that it does not convert, and which operators are to blame."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Sequence

import torch

from intarsia.errors import EngineBuildFailed, shorten

# Lines of OpenVINO's errors that tell nothing: its source positions, and that what failed has failed.
_EMPTY_WORDS = (
    "Check ",
    "Exception from ",
    "Exception happened during conversion",
    "Converting input model",
    "FrontEnd API failed",
    "Model wasn't",
    "Summary:",
)
_UNCONVERTED = "No conversion rule found for operations: "
_FAILED_NODE = re.compile(r"conversion of operation (\w+)/")
_OPERATOR = re.compile(r"\baten\.\w+\.\w+")


def refused(reason: str, operators: Sequence[str] = ()) -> EngineBuildFailed:
    """The error for a program that OpenVINO does not convert.

    Args:
        reason: What it says.
        operators: The operators to blame, where they are known.
    """
    return EngineBuildFailed(
        "OpenVINO",
        found=f"that it refuses the program: {reason}",
        expected="a program that it converts",
        fix="Keep the operator concerned in torch with torch_executed_ops.",
        operators=operators,
    )


def refused_conversion(
    error: Exception, module: torch.fx.GraphModule, program: torch.export.ExportedProgram
) -> EngineBuildFailed:
    """The error for what OpenVINO's frontend raises.

    Args:
        error: Names the nodes that failed, or their operators.
        module: What was converted.
        program: The program of which that was made, maybe by decomposition; its operators are blamed.
    """
    text = str(error)
    names = set(_FAILED_NODE.findall(text))
    listed = set(_OPERATOR.findall(text.partition(_UNCONVERTED)[2]))
    failed = [node for node in module.graph.nodes if node.name in names or str(node.target) in listed]
    known = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    blamed = dict.fromkeys(name for node in failed for name in _blamed(_producer(node), known))
    return refused(f"{type(error).__name__}: {_first_lines(text)}", tuple(blamed))


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    """The operator whose result a `getitem` takes; any other node itself."""
    while node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _blamed(node: torch.fx.Node, known: Collection[str]) -> list[str]:
    """The operator of a node, or the known ones that it was decomposed from."""
    if str(node.target) in known:
        return [str(node.target)]
    return [str(source.target) for source in node.meta.get("from_node", ()) if str(source.target) in known]


def _first_lines(text: str) -> str:
    """What went wrong, without OpenVINO's source positions and its advice to report the fault."""
    lines = [line.strip().removeprefix("-- ") for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_EMPTY_WORDS)]
    summary = [line for line in told if line.startswith(_UNCONVERTED)]
    return shorten(" ".join(summary or told[:3] or lines[:3]), 400)
