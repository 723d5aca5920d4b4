"""Partition an exported program into a hybrid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from intarsia.core.coverage import Coverage, OperatorPlacement
from intarsia.core.memory import memory_of
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineBuildFailed, PartitionError
from intarsia.partition.asserts import remove_asserts
from intarsia.partition.layout import copy_shared_layouts, make_outputs_contiguous
from intarsia.partition.operators import check_operators, find_operators, is_operator, operator_name
from intarsia.partition.order import Block, Units
from intarsia.partition.plan import Plan, Planner, Supports, block_inputs, block_outputs
from intarsia.partition.split import Splitter
from intarsia.partition.state import State, names_of_memory, written_memory

SUPPORTED = "supported"


class Partitioned(NamedTuple):
    """A hybrid whose partitions are still torch graphs.

    Attributes:
        hybrid: Calls the partitions, and can be called itself.
        coverage: Where each operator is to run, should every engine be built.
    """

    hybrid: torch.fx.GraphModule
    coverage: Coverage


def partition(
    program: torch.export.ExportedProgram,
    *,
    supports: Supports,
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    prefix: str,
) -> Partitioned:
    """Cut a captured program into partitions for engines, with plain torch operators between them.

    Only tensors cross into a partition: it works symbolic sizes out again from the shapes of its inputs. It holds
    the state that it reads and that no method writes; state that is written stays at the root and goes in as an
    argument. It returns contiguous tensors that alias nothing; operators that merely change the layout of what an
    engine returns stay in torch.

    Args:
        program: A functional program, as `capture` returns it. Not modified; the hybrid shares its tensors.
        supports: `Backend.supports`.
        torch_executed_ops: Operators, or names of operators, that stay in torch.
        min_block_size: Fewest operators that make an engine worth while, at least 1.
        prefix: Partitions are named `prefix_0`, `prefix_1`, ... in the order in which they run.

    Raises:
        PartitionError: An operator name matches nothing, `min_block_size` is below 1, or the program writes in
            place before its end.

    Example:
        >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),)).run_decompositions({})
        >>> print(partition(program, supports=lambda node: None, prefix="demo").coverage)
        1 of 1 operators in 1 engine
        engine   1  aten.linear.default  supported
    """
    (parts,) = partition_methods(
        {"": program},
        supports=supports,
        torch_executed_ops=torch_executed_ops,
        min_block_size=min_block_size,
        prefix=prefix,
    ).values()
    return parts


def partition_methods(
    programs: Mapping[str, torch.export.ExportedProgram],
    *,
    supports: Supports,
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    prefix: str,
) -> dict[str, Partitioned]:
    """Cut several captured programs, each as `partition` does; an operator name has to match in one of them.

    Args:
        programs: By the names of the methods that they are; of one alone the name is empty.
        supports: As for `partition`.
        torch_executed_ops: Likewise.
        min_block_size: Likewise.
        prefix: Likewise, in each program.

    Raises:
        PartitionError: As for `partition`.
    """
    _check_block_size(min_block_size)
    kept_ops = torch_executed_ops if isinstance(torch_executed_ops, str) else tuple(torch_executed_ops)
    check_operators([program.graph for program in programs.values()], kept_ops)
    wishes = _Wishes(supports, kept_ops, min_block_size, frozenset(written_memory(programs.values())))
    return {name: _partition(program, wishes, prefix) for name, program in programs.items()}


@dataclass(frozen=True)
class _Wishes:
    """What a caller asked for, and the memory that a method of the model writes."""

    supports: Supports
    kept_ops: Iterable[Any]
    min_block_size: int
    written: frozenset[int]


def _partition(program: torch.export.ExportedProgram, wishes: _Wishes, prefix: str) -> Partitioned:
    refused: dict[str, str] = {}
    while True:
        attempt = _Attempt(program, wishes, refused)
        faults = attempt.settle()
        if not faults:
            return attempt.split(prefix)
        refused.update(faults)


def _check_block_size(found: Any) -> None:
    if not isinstance(found, int) or found < 1:
        raise PartitionError(
            "min_block_size", found=repr(found), expected="an integer of at least 1", fix="Pass 1 or more."
        )


class _Attempt:
    """One try at a plan, on a graph of its own: what turns out not to fit is refused in the next one."""

    def __init__(self, program: torch.export.ExportedProgram, wishes: _Wishes, refused: Mapping[str, str]) -> None:
        self._program = program
        self._module = program.module(check_guards=False)
        graph = self._module.graph
        self._removed = remove_asserts(graph)
        _complete_metadata(graph)
        self._state = State(self._module, wishes.written)
        kept = find_operators(graph, wishes.kept_ops)
        self._operators = {node: operator_name(node) for node in graph.nodes if is_operator(node)}
        planner = Planner(self._module, self._state, supports=wishes.supports, kept=kept, refused=refused)
        self._plan: Plan = planner.plan(wishes.min_block_size)
        self._units: list[Block] = []

    def settle(self) -> dict[str, str]:
        """Make the graph right for engines; names of nodes that cannot be in one -> why."""
        graph, blocks = self._module.graph, self._plan.blocks
        for block in blocks:
            copy_shared_layouts(graph, block)
        faults = make_outputs_contiguous(graph, blocks)
        if not faults:
            self._units, stuck = Units(graph, blocks).sort()
            faults = _refuse_order(stuck)
        for block in () if faults else blocks:
            faults.update(self._refuse_signatures(block))
        return {self._producer(node).name: reason for node, reason in faults.items()}

    def _refuse_signatures(self, block: Block) -> dict[torch.fx.Node, str]:
        inputs = [node.meta["val"] for node in block_inputs(block, self._state)]
        faults = {node: _signature_fault(inputs, node.meta["val"]) for node in block_outputs(block)}
        return {node: fault for node, fault in faults.items() if fault is not None}

    def _producer(self, node: torch.fx.Node) -> torch.fx.Node:
        """The operator of the captured graph that a block's output comes from, through `getitem` and `clone`."""
        while node not in self._operators:
            node = node.all_input_nodes[0]
        return node

    def split(self, prefix: str) -> Partitioned:
        hybrid, partitions = Splitter(self._module, self._state, prefix).split(self._units, self._plan.blocks)
        hybrid.meta["range_constraints"] = dict(self._program.range_constraints)
        places = {node: name for name, block in partitions.items() for node in block}
        placements = [
            OperatorPlacement(node.name, operator, places.get(node, "torch"), self._plan.reasons.get(node, SUPPORTED))
            for node, operator in self._operators.items()
        ]
        names = names_of_memory(self._program)
        held = tuple(
            (name, state)
            for name in partitions
            for path in _state_in(hybrid.get_submodule(name))
            for state in names.get(memory_of(self._state.value(path)), [path])
        )
        return Partitioned(hybrid, Coverage(tuple(placements), self._removed, held=held))


def _state_in(partition: torch.nn.Module) -> list[str]:
    """Names of the state that a partition holds."""
    graph = partition.graph if isinstance(partition, torch.fx.GraphModule) else torch.fx.Graph()
    return list(dict.fromkeys(str(node.target) for node in graph.find_nodes(op="get_attr")))


def _signature_fault(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> str | None:
    try:
        EngineSignature.from_values(inputs, [output])
    except EngineBuildFailed as error:
        return f"an engine's signature cannot tell its result: {error.found}"
    return None


def _complete_metadata(graph: torch.fx.Graph) -> None:
    """Give the final writes of `ExportedProgram.module()` the `val` that it leaves out."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta and node.all_input_nodes:
            node.meta["val"] = node.all_input_nodes[0].meta.get("val")


def _refuse_order(stuck: list[Block]) -> dict[torch.fx.Node, str]:
    """The first block that waits for itself, through operators with effects."""
    for block in stuck:
        if len(block) > 1:
            return dict.fromkeys(block, "in an engine, operators with effects would change their order")
    return {}
