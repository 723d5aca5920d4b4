"""Partition an exported program into a hybrid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from intarsia.core.build_failure import BuildFailure
from intarsia.core.choice import MODEL, BackendChoice
from intarsia.core.coverage import Coverage, OperatorPlacement
from intarsia.core.memory import memory_of
from intarsia.core.plan import PartitionPlan, PlannedOperator, record_plan
from intarsia.core.signature import EngineSignature
from intarsia.core.small_sizes import misfits
from intarsia.errors import EngineBuildFailed, IntarsiaError, PartitionError
from intarsia.partition.answers import ask
from intarsia.partition.asserts import remove_asserts
from intarsia.partition.assignment import Assignment
from intarsia.partition.blocks import Block, Cut, Unit, block_inputs, block_outputs
from intarsia.partition.layout import copy_shared_layouts, make_outputs_contiguous
from intarsia.partition.limits import Supports
from intarsia.partition.operators import check_operators, find_operators
from intarsia.partition.order import Units
from intarsia.partition.planner import Planner
from intarsia.partition.replay import check_names, describe_operators, misplaced, replay
from intarsia.partition.split import Splitter
from intarsia.partition.state import State, names_of_memory, written_memory

KEPT = "named in torch_executed_ops"
FORWARD = "forward"
"""The method that a plan has of a program alone."""


class Partitioned(NamedTuple):
    """A hybrid whose partitions are still torch graphs.

    Attributes:
        hybrid: Calls the partitions, and can be called itself; `intarsia.plan` finds its plan.
        coverage: Where each operator is to run, should every engine be built.
    """

    hybrid: torch.fx.GraphModule
    coverage: Coverage


@dataclass(frozen=True)
class Wishes:
    """How programs are to be cut.

    Attributes:
        supports: `Backend.supports` of each backend, by its name, in the order in which they cut.
        choice: Which backends the operators may go to; by default to all, in the order of `supports`.
        torch_executed_ops: Operators, or names of operators, that stay in torch.
        min_block_size: Fewest operators that make an engine worth while, at least 1.
        plan: Where each operator is to run, whatever `choice` and what follows it say.
        modules: Paths of the model's modules, where they are known.
    """

    supports: Mapping[str, Supports]
    choice: BackendChoice | None = None
    torch_executed_ops: Iterable[Any] = ()
    min_block_size: int = 1
    plan: PartitionPlan | None = None
    modules: Collection[str] = ()


def partition(
    program: torch.export.ExportedProgram, wishes: Wishes, failures: Sequence[BuildFailure] = ()
) -> Partitioned:
    """Cut a captured program into partitions for engines, with plain torch operators between them.

    Only tensors cross into a partition: it works symbolic sizes out again from the shapes of its inputs. It holds
    the state that it reads and that no method writes; state that is written stays at the root and goes in as an
    argument. It returns contiguous tensors that alias nothing; operators that merely change the layout of what an
    engine returns stay in torch. Partitions are named by their backends, `openvino_0`, `openvino_1`, ..., in the order
    in which they run.

    Args:
        program: A functional program, as `capture` returns it. Not modified; the hybrid shares its tensors.
        wishes: How it is to be cut.
        failures: What could not be built before, and goes elsewhere now.

    Raises:
        PartitionError: An operator name matches nothing, `min_block_size` is below 1, the program writes in
            place before its end, or the plan does not fit it.

    Example:
        >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),)).run_decompositions({})
        >>> print(partition(program, Wishes({"demo": lambda node: None})).coverage)
        1 of 1 operators in 1 engine
        engine   1  aten.linear.default  supported
    """
    (parts,) = partition_methods({"": program}, wishes, failures).values()
    return parts


def partition_methods(
    programs: Mapping[str, torch.export.ExportedProgram], wishes: Wishes, failures: Sequence[BuildFailure] = ()
) -> dict[str, Partitioned]:
    """Cut several captured programs, each as `partition` does; an operator name has to match in one of them.

    Args:
        programs: By the names of the methods that they are; of one alone the name is empty.
        wishes: As for `partition`.
        failures: Likewise.

    Raises:
        PartitionError: As for `partition`.
    """
    _check_block_size(wishes.min_block_size)
    given = wishes.torch_executed_ops
    wishes = replace(wishes, torch_executed_ops=given if isinstance(given, str) else tuple(given))
    graphs = [program.graph for program in programs.values()]
    check_operators(graphs, wishes.torch_executed_ops)
    assignment = Assignment(wishes.choice or BackendChoice({MODEL: tuple(wishes.supports)}), graphs, wishes.modules)
    if wishes.plan is not None:
        check_names(wishes.plan.methods, [name or FORWARD for name in programs])
    written = frozenset(written_memory(programs.values()))
    cut: dict[str, Partitioned] = {}
    for name, program in programs.items():
        own = [failure for failure in failures if failure.method == name or failure.operators]
        with IntarsiaError.of_method(name) if name else nullcontext():
            planned = wishes.plan.methods[name or FORWARD] if wishes.plan else None
            cut[name] = _Partitioner(program, wishes, planned, assignment, own, written).run()
    return cut


def _check_block_size(found: Any) -> None:
    if not isinstance(found, int) or found < 1:
        raise PartitionError(
            "min_block_size", found=repr(found), expected="an integer of at least 1", fix="Pass 1 or more."
        )


@dataclass(frozen=True)
class _Partitioner:
    """Cuts one program, by a plan for it or by what is wished."""

    program: torch.export.ExportedProgram
    wishes: Wishes
    planned: Sequence[PlannedOperator] | None
    assignment: Assignment
    failures: Sequence[BuildFailure]
    written: frozenset[int]

    def run(self) -> Partitioned:
        return self._run() if self.planned is None else self._replay(self.planned)

    def _replay(self, planned: Sequence[PlannedOperator]) -> Partitioned:
        attempt = _Attempt(self.program, self.written)
        cut = replay(attempt.graph, attempt.state, planned, self._supports())
        by_name = {one.node: one for one in planned}
        for node, (_, reason) in attempt.settle(cut).items():
            raise misplaced(by_name[node], reason)
        return attempt.split(cut, self.failures)

    def _run(self) -> Partitioned:
        """Cut again without what turns out not to fit, until everything does."""
        refused: dict[str, dict[str, str]] = {}
        for failure in self.failures:
            for node in () if failure.operators else failure.nodes:
                refused.setdefault(node, {})[failure.backend] = failure.told
        while True:
            attempt = _Attempt(self.program, self.written)
            cut = self._plan(attempt, refused)
            faults = attempt.settle(cut)
            if not faults:
                return attempt.split(cut, self.failures)
            for node, (backend, reason) in faults.items():
                refused.setdefault(node, {})[backend] = reason

    def _plan(self, attempt: _Attempt, refused: Mapping[str, Mapping[str, str]]) -> Cut:
        kept = find_operators(attempt.graph, self.wishes.torch_executed_ops)
        return Planner(
            attempt.graph,
            attempt.state,
            supports=self._supports(),
            candidates=lambda node: ((), KEPT) if node in kept else self.assignment.candidates(node),
            refused=refused,
        ).plan(self.wishes.min_block_size)

    def _supports(self) -> dict[str, Supports]:
        """What each backend supports, but for what no engine can do and the operators that it could not build."""
        return {name: partial(self._refuse, name, self._unbuilt(name)) for name in self.wishes.supports}

    def _unbuilt(self, backend: str) -> dict[str, str]:
        """The operators that a backend could not build, and why."""
        return {
            operator: failure.told
            for failure in self.failures
            if failure.backend == backend
            for operator in failure.operators
        }

    def _refuse(self, backend: str, refused: Mapping[str, str], node: torch.fx.Node) -> str | None:
        misfit = self._misfits.get(node.name)
        return misfit or refused.get(str(node.target)) or ask(backend, self.wishes.supports[backend], node)

    @cached_property
    def _misfits(self) -> dict[str, str]:
        """Names of the operators that an engine would compute wrongly at small sizes, and why."""
        found = misfits(self.program.graph, self.program.range_constraints)
        return {node.name: str(misfit) for node, misfit in found.items()}


class _Attempt:
    """One try at a cut, on a graph of its own."""

    def __init__(self, program: torch.export.ExportedProgram, written: frozenset[int]) -> None:
        self._program = program
        self._module = program.module(check_guards=False)
        self.graph = self._module.graph
        self._removed = remove_asserts(self.graph)
        _complete_metadata(self.graph)
        self.state = State(self._module, written)
        self._operators = describe_operators(self.graph)
        self._units: list[Unit] = []

    def settle(self, cut: Cut) -> dict[str, tuple[str, str]]:
        """Make the graph right for engines; names of nodes that cannot be in one -> its backend, and why."""
        for block in cut.blocks:
            copy_shared_layouts(self.graph, block)
        faults = make_outputs_contiguous(self.graph, cut.blocks)
        if not faults:
            units = Units(self.graph, cut.blocks)
            self._units = units.sort()
            faults = _refuse_circle(units.circle())
        for block in () if faults else cut.blocks:
            faults.update(self._refuse_signatures(block))
        owners = {node: block.backend for block in cut.blocks for node in block}
        return {self._producer(node).name: (owners[node], reason) for node, reason in faults.items()}

    def _refuse_signatures(self, block: Block) -> dict[torch.fx.Node, str]:
        inputs = [node.meta["val"] for node in block_inputs(block, self.state)]
        faults = {node: _signature_fault(inputs, node.meta["val"]) for node in block_outputs(block)}
        return {node: fault for node, fault in faults.items() if fault is not None}

    def _producer(self, node: torch.fx.Node) -> torch.fx.Node:
        """The operator of the captured graph that a block's output comes from, through `getitem` and `clone`."""
        while node not in self._operators:
            node = node.all_input_nodes[0]
        return node

    def split(self, cut: Cut, failures: Sequence[BuildFailure]) -> Partitioned:
        taken = [failure.partition for failure in failures if not failure.operators]
        hybrid, partitions = Splitter(self._module, self.state, taken).split(self._units)
        hybrid.meta["range_constraints"] = dict(self._program.range_constraints)
        places = {node: name for name, block in partitions.items() for node in block}
        planned = tuple(replace(one, place=places.get(node, one.place)) for node, one in self._operators.items())
        record_plan(hybrid, planned)
        placements = tuple(
            OperatorPlacement(one.node, one.operator, one.place, cut.reasons[node])
            for node, one in zip(self._operators, planned, strict=True)
        )
        found = Coverage(
            placements,
            self._removed,
            _told(failures),
            self._held(hybrid, partitions),
            tuple((name, block.backend) for name, block in partitions.items()),
        )
        return Partitioned(hybrid, found)

    def _held(self, hybrid: torch.fx.GraphModule, partitions: Iterable[str]) -> tuple[tuple[str, str], ...]:
        names = names_of_memory(self._program)
        return tuple(
            (name, state)
            for name in partitions
            for path in _state_in(hybrid.get_submodule(name))
            for state in names.get(memory_of(self.state.value(path)), [path])
        )


def _told(failures: Iterable[BuildFailure]) -> tuple[tuple[str, str], ...]:
    """Names of what could not be built, and what its backend says."""
    return tuple(
        (name, f"a refusal by {failure.backend}: {failure.reason}{failure.advice}")
        for failure in failures
        for name in failure.operators or (failure.partition,)
    )


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


def _refuse_circle(units: Sequence[Unit]) -> dict[torch.fx.Node, str]:
    """The operators of the first block of a circle in which each unit waits for the next."""
    block = next((unit for unit in units if isinstance(unit, Block)), None)
    if block is None:
        return {}
    i = next(i for i, unit in enumerate(units) if unit is block)
    names = [_name(unit) for unit in (*units[i:], *units[:i], block)]
    steps = ", ".join(f"{one} for {other}" for one, other in pairwise(names))
    return dict.fromkeys(block, f"its engine would wait for itself ({steps})")


def _name(unit: Unit) -> str:
    return (unit.name or "another engine") if isinstance(unit, Block) else f"%{next(iter(unit)).name}"
