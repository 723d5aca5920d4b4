"""Which writes of state can be done in place, and the proof of each.

A functional program computes what a state entry shall hold, and copies that into the entry: with a `copy_` in the
graph, or, where the signature declares the write, after it. Where the value is the entry itself with a part replaced
(`index_copy`, `slice_scatter`, ...; see `forms`), the copy of the whole is a waste: the same call could write the part
into the live tensor at once. That changes nothing that anybody can see if all of these hold:

1. *Chain.* The value comes from the entry by partial writes alone, each made of the one before it. A write of a part
   may itself be put into the whole (`slice_scatter(cache, copy(slice(cache), k))`); then it writes through the view,
   and the outer write has nothing left to do: the two must name the same part, and nothing else of the whole may have
   been written since the outer destination had its value.
2. *Readers.* Between a write in place and the copy that it stands for, nobody reads the entry, or a view of it, as it
   was before; after a later write nobody reads the value, or a view of it, as it was then. Nobody writes the value
   itself in place, for it is memory of its own in the functional form. Graph order is running order. Making a view
   reads nothing; a higher-order operator and an engine read all that they are given.
3. *Aliases.* Entries that share memory count as one, and only one of them is written by a declared write. What a write
   reads besides its destination does not share memory with it. The entry shows no element twice, and its strides are
   those that the graph's operators were told, for a functional write keeps the strides of its destination.
4. *Engines.* An engine holds on to its inputs until its call has ended, and its outputs alias nothing
   (`core.backend`), so it is a reader at its place in the graph and nothing afterwards.
5. *The caller.* A returned value that is what a declared write writes is the live tensor, as in the model. Any other
   returned value that would be fresh memory in the functional form is copied before it is handed out. An input that
   shares memory with an entry (a live tensor that an earlier call returned) is not known to the graph: such a call
   runs the functional form.

Where one of them fails for an entry, it is copied as before, and `StateWrite.reason` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from intarsia.core.writes import written_placeholders
from intarsia.runtime.forms import PartialWrite
from intarsia.runtime.proof import Proof

_DECLARED = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


@dataclass(frozen=True)
class StateWrite:
    """How a program carries out its writes of one state entry.

    Attributes:
        name: Name of the entry.
        operators: What writes, in graph order, by the names that torch has for the operators.
        reason: Why the whole entry is copied after each call; empty when it is written in place.

    Example:
        >>> StateWrite("cache", ("index_copy",)).in_place
        True
        >>> StateWrite("cache", ("roll",), "%roll makes the whole value").in_place
        False
    """

    name: str
    operators: tuple[str, ...]
    reason: str = ""

    @property
    def in_place(self) -> bool:
        """Whether only what changes is written."""
        return not self.reason


@dataclass
class InPlacePlan:
    """What is done in place.

    Attributes:
        entries: How each written state entry is written, by name.
        writes: Functional writes that are done in place, with their forms.
        absorbed: Nodes that have nothing left to do, with the destination that holds their value by then.
        copied: Positions of flat outputs that are copied before the caller gets them.
        inner: Nodes that only the functional forms needed.
    """

    entries: dict[str, StateWrite] = field(default_factory=dict)
    writes: dict[Node, PartialWrite] = field(default_factory=dict)
    absorbed: dict[Node, Node] = field(default_factory=dict)
    copied: list[int] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)

    @property
    def in_place(self) -> set[str]:
        """Names of the entries whose declared writes the graph carries out in place."""
        return {name for name, entry in self.entries.items() if entry.in_place}


def plan_in_place(program: torch.export.ExportedProgram, state: Mapping[str, Any]) -> InPlacePlan:
    """What of a program's writes to state can be done in place.

    Args:
        program: Not modified.
        state: The tensors that the program is to write, by name; only their memory and strides are looked at.
    """
    specs = program.graph_signature.input_specs
    placeholders = program.graph.find_nodes(op="placeholder", sort=True)
    names = {
        node: str(spec.target)
        for node, spec in zip(placeholders, specs, strict=True)
        if spec.kind is not InputKind.USER_INPUT and isinstance(state.get(str(spec.target)), torch.Tensor)
    }
    writers = {node: by for node, by in written_placeholders(program.graph_module).items() if node in names}
    declared = _declared_values(program, names)
    plan = InPlacePlan()
    if writers or declared:
        tensors = {node: state[name] for node, name in names.items()}
        proof = Proof(program, tensors, declared, writers)
        for node, name in names.items():
            if node in writers or node in declared:
                plan.entries[name] = StateWrite(name, proof.operators(node), proof.reason(node))
        proof.enter(plan)
    return plan


def _declared_values(program: torch.export.ExportedProgram, names: Mapping[Node, str]) -> dict[Node, Node]:
    """Placeholders of declared writes, with the values that they shall hold."""
    by_name = {name: node for node, name in names.items()}
    values: Any = program.graph.output_node().args[0]
    return {
        by_name[str(spec.target)]: value
        for spec, value in zip(program.graph_signature.output_specs, values, strict=True)
        if spec.kind in _DECLARED
    }
