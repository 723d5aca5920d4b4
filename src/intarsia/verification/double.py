"""A module's double: runs like the module, and leaves the module's tensors as they are."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from intarsia._torch import pytree, quiet_specs
from intarsia.core.memory import memory_of
from intarsia.core.op import RUN_ENGINE
from intarsia.errors import StateError
from intarsia.verification.graphs import state_key


class Double:
    """A copy of a module, which shares its parameters and engines and has its own of all else.

    Args:
        module: Not modified, and neither are its tensors.
        written: Keys (`state_key`) of parameters that a call writes, which are copied too.

    Raises:
        StateError: The module cannot be copied.

    Attributes:
        module: The copy.
    """

    def __init__(self, module: torch.nn.Module, written: Collection[Any] = ()) -> None:
        held = list(_leaves(module, torch.Tensor))
        engines = {id(engine) for engine in _engines(module)}
        own = {memory_of(value) for value in held if id(value) not in engines and _is_own(value, written)}
        memo: dict[int, Any] = {id(value): value for value in held if memory_of(value) not in own}
        # What a call with gradients has written belongs to a graph of autograd, and cannot be copied as it is.
        memo |= {id(value): value.detach().clone() for value in held if id(value) not in memo and not value.is_leaf}
        memo |= {id(value): value for kind in (torch.ScriptObject, ShapeEnv) for value in _leaves(module, kind)}
        try:
            with quiet_specs():
                self.module = copy.deepcopy(module, memo)
        except Exception as error:
            raise StateError(
                f"the {type(module).__qualname__} to compare with",
                found=f"a refusal to be copied ({type(error).__name__}: {error})",
                expected="a module that copy.deepcopy copies",
                consequence="Its state would be changed by a call.",
                fix="Mend what the message names.",
            ) from error
        self._memo = memo
        self._copies = {state_key(value): memo.get(id(value), value) for value in held}
        self._places = {
            id(value): (part, name)
            for part in self.module.modules()
            for name, value in part.named_buffers(recurse=False, remove_duplicate=False)
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the copy without gradients."""
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def live(self, original: Any) -> Any:
        """The tensor of the copy that stands for a tensor of the module, or None when the module has it not.

        Of a buffer that a call has assigned it is the new one.
        """
        copied = self._memo.get(id(original), self._copies.get(state_key(original)))
        part, name = self._places.get(id(copied), (None, ""))
        return copied if part is None else getattr(part, name)


def _is_own(value: torch.Tensor, written: Collection[Any]) -> bool:
    return not isinstance(value, torch.nn.Parameter) or state_key(value) in written


def _leaves(module: torch.nn.Module, kind: type[Any]) -> Iterator[Any]:
    """Parameters, buffers, and what else of some type the attributes of a module and its submodules hold."""
    for part in module.modules():
        held = {name: value for name, value in vars(part).items() if name != "meta"}
        yield from (leaf for leaf in pytree.tree_leaves(held) if isinstance(leaf, kind))


def _engines(module: torch.nn.Module) -> list[Any]:
    """Engines that the graphs of a module run: large, and never written."""
    found: list[Any] = []
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        for node in part.graph.find_nodes(op="call_function", target=RUN_ENGINE):
            source = node.args[1]
            if isinstance(source, torch.fx.Node) and source.op == "get_attr":
                found.append(functools.reduce(getattr, str(source.target).split("."), part))
    return found
