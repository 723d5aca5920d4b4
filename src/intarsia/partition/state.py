"""Which state a graph or another method writes, and how an attribute keeps its kind when it moves to another module."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch

from intarsia.core.memory import memory_of
from intarsia.core.writes import written_state
from intarsia.errors import PartitionError
from intarsia.partition.operators import is_write, operator_name


class State:
    """The state that a graph module reads, by attribute path.

    Args:
        module: Graph module whose `get_attr` nodes name the state. Not modified.
        written: Memory (`memory_of`) of the state that other methods of the model write.
    """

    def __init__(self, module: torch.fx.GraphModule, written: Iterable[int] = ()) -> None:
        self._module = module
        self._buffers = {path for path, _ in module.named_buffers(remove_duplicate=False)}
        self._persistent = module.state_dict(keep_vars=True).keys()
        self._written = set(written) | {
            memory_of(self.value(target.target))
            for target in map(_write_target, filter(is_write, module.graph.nodes))
            if target.op == "get_attr"
        }

    def value(self, path: Any) -> Any:
        """What the attribute at `path` holds."""
        return attrgetter(path)(self._module)

    def has(self, name: str) -> bool:
        """Whether the module has an attribute of a name."""
        return hasattr(self._module, name)

    def is_constant(self, node: torch.fx.Node) -> bool:
        """Whether the node reads a tensor that no method of the model writes, through whatever name or view."""
        return self._is_tensor(node) and not self.is_written(node)

    def is_written(self, node: torch.fx.Node) -> bool:
        """Whether the node reads a tensor that a method of the model writes, through whatever name or view."""
        return self._is_tensor(node) and memory_of(self.value(node.target)) in self._written

    def _is_tensor(self, node: torch.fx.Node) -> bool:
        return node.op == "get_attr" and isinstance(self.value(node.target), torch.Tensor)

    def place(self, path: str, module: torch.nn.Module) -> None:
        """Give `module` the attribute at `path`: the same object, of the same kind, under the same path."""
        *parents, name = path.split(".")
        for parent in parents:
            if not hasattr(module, parent):
                module.add_module(parent, torch.nn.Module())
            module = getattr(module, parent)
        value = self.value(path)
        if path in self._buffers:
            module.register_buffer(name, value, persistent=path in self._persistent)
        else:
            setattr(module, name, value)


def _write_target(node: torch.fx.Node) -> torch.fx.Node:
    """What a write at the end of a functional graph writes: state, or an input."""
    target = node.args[0] if node.args else None
    if (
        operator_name(node) == "aten.copy_.default"
        and isinstance(target, torch.fx.Node)
        and target.op in ("get_attr", "placeholder")
        and all(user.op == "output" for user in node.users)
    ):
        return target
    raise PartitionError(
        f"operator %{node.name}",
        found=f"the in-place operator {operator_name(node)}",
        expected="a functional graph, which only writes to state and inputs at its end",
        fix="Pass the program through capture (or run_decompositions({})) first.",
        node=node.name,
    )


def written_memory(programs: Iterable[torch.export.ExportedProgram]) -> set[int]:
    """Memory of the state that one of some programs writes, in each of them that has an entry of the name."""
    programs = list(programs)
    names = {name for program in programs for name in written_state(program)}
    entries = [entry for program in programs for entry in (*program.state_dict.items(), *program.constants.items())]
    return {memory_of(value) for name, value in entries if name in names and isinstance(value, torch.Tensor)}


def names_of_memory(program: torch.export.ExportedProgram) -> dict[int, list[str]]:
    """For the memory of each tensor of a program, all names that the model has for it; read or not."""
    names: dict[int, list[str]] = {}
    for name, value in (*program.state_dict.items(), *program.constants.items()):
        if isinstance(value, torch.Tensor):
            names.setdefault(memory_of(value), []).append(name)
    return names
