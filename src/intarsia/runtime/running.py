"""A flat graph, run on state and inputs: how they are passed, and what becomes of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia.runtime.in_place import InPlacePlan
from intarsia.runtime.results import Results, read_results
from intarsia.runtime.rewriting import rewrite
from intarsia.runtime.state import State


@dataclass(frozen=True)
class FlatGraph:
    """A graph that can be run.

    Attributes:
        call: Takes state and inputs in graph order.
        arrange: Puts state and inputs into graph order; None where the state stands first already.
        results: What becomes of what it returns.
    """

    call: Callable[..., Sequence[Any]]
    arrange: Callable[[Sequence[Any]], tuple[Any, ...]] | None
    results: Results

    def run(self, state: State, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph under `torch.no_grad`, and carry out the writes that it only declares.

        Args:
            state: Of the program.
            inputs: Leaves of the arguments, in order.

        Returns:
            Leaves of what the caller gets.
        """
        given = (*state.leading, *inputs)
        with torch.no_grad():
            outputs = self.call(*(given if self.arrange is None else self.arrange(given)))
            return outputs if self.results.plain else self._carry_out(state, outputs, inputs)

    def _carry_out(self, state: State, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        writes = self.results.writes
        values = [outputs[write.output].clone() if write.shares else outputs[write.output] for write in writes]
        targets = []
        for write, value in zip(writes, values, strict=True):
            target = state.entries[write.state] if write.state is not None else inputs[write.input or 0]
            targets.append(target.copy_(value))
        return [
            outputs[position] if target is None else targets[target]
            for position, target in zip(self.results.returned, self.results.returned_targets, strict=True)
        ]


def read_graph(program: torch.export.ExportedProgram) -> FlatGraph:
    """The graph of a program as it was exported."""
    # `GraphModule.__call__` adds hooks, and prints the generated code when an operator raises.
    return FlatGraph(program.graph_module.forward, _arrangement(program), read_results(program))


def plan_graph(program: torch.export.ExportedProgram, plan: InPlacePlan, leaf_names: Sequence[str]) -> FlatGraph:
    """The graph of a program that writes in place.

    Args:
        program: Not modified.
        plan: What is written in place.
        leaf_names: What the user calls the inputs.
    """
    exported = read_graph(program)
    leaves = iter(leaf_names)
    names = {
        spec.arg.name: f"input {next(leaves)!r}" if spec.kind is InputKind.USER_INPUT else f"state {spec.target!r}"
        for spec in program.graph_signature.input_specs
    }
    module = rewrite(program, plan, names)
    if module is None:
        return exported
    return replace(exported, call=module.forward, results=exported.results.without(plan.in_place))


def _arrangement(program: torch.export.ExportedProgram) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
    kinds = [spec.kind is InputKind.USER_INPUT for spec in program.graph_signature.input_specs]
    if kinds == sorted(kinds):
        return None
    next_state, next_input = iter(range(kinds.count(False))), iter(range(kinds.count(False), len(kinds)))
    return itemgetter(*[next(next_input if user else next_state) for user in kinds])
