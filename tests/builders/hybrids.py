"""Builds hybrids by hand, or from a model that is cut by torch's own splitters."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.passes.split_module import split_module
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that depend on the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parameter(value: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(value, requires_grad=False)


@dataclass(frozen=True)
class Buffer:
    """A tensor that is registered as a buffer; any other tensor stays a plain attribute."""

    value: torch.Tensor
    persistent: bool = True


class Draft(Graph):
    """A graph under construction."""

    def inputs(self, names: str) -> list[Node]:
        return [self.placeholder(name) for name in names.split()]

    def op(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self.call_function(target, args, kwargs)

    def part(self, target: str, *args: Any, **kwargs: Any) -> Node:
        return self.call_module(target, args, kwargs)

    def item(self, node: Node, key: Any) -> Node:
        return self.call_function(operator.getitem, (node, key))


def hybrid(fill: Callable[[Draft], Any], attributes: Mapping[str, Any] | None = None) -> GraphModule:
    """A graph module whose graph `fill` draws, and whose attributes keep the kind that they are given as.

    Args:
        fill: Draws the graph, and gives what its output node returns.
        attributes: Submodules, parameters, `Buffer`s, plain tensors and anything else, by dotted name; `fill` may add
            some.
    """
    draft = Draft()
    draft.output(fill(draft))
    module = GraphModule(torch.nn.Module(), Graph())
    module.graph = draft  # before there are submodules: torch compiles those again as well
    for name, value in (attributes or {}).items():
        owner: Any = module
        *parents, last = name.split(".")
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, torch.nn.Module())
            owner = getattr(owner, parent)
        if isinstance(value, Buffer):
            owner.register_buffer(last, value.value, persistent=value.persistent)
        else:
            setattr(owner, last, value)
    return module


def wrap(part: GraphModule, arity: int = 1, **attributes: Any) -> GraphModule:
    """A hybrid that calls one partition with all its inputs and returns what that returns."""

    def fill(g: Draft) -> Any:
        return g.part("part", *[g.placeholder(f"x{index}") for index in range(arity)])

    return hybrid(fill, {"part": part, **attributes})


def chain(*parts: GraphModule) -> GraphModule:
    """A hybrid that hands one tensor through partitions `part_0`, `part_1`, ... and returns what the last returns."""

    def fill(g: Draft) -> Any:
        value = g.placeholder("x")
        for index in range(len(parts)):
            value = g.part(f"part_{index}", value)
        return value

    return hybrid(fill, {f"part_{index}": part for index, part in enumerate(parts)})


def give_convention(
    module: GraphModule, names: list[str], inputs: tuple[Any, dict[str, Any]], outputs: Any
) -> GraphModule:
    """Make a graph of leaves take and return structures, as the graphs of `torch.export` do."""
    spec = pytree.tree_structure(outputs)
    module.graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(names, pytree.tree_structure(inputs), spec)))
    module.recompile()
    return module


def new_mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def describe(
    module: GraphModule, args: Any = (), kwargs: Any = None, *, mode: FakeTensorMode | None = None, dynamic: Any = None
) -> GraphModule:
    """Leave fake tensors as metadata on every node, in nested partitions too; nothing is run.

    Args:
        module: Gets the metadata.
        args: Example positional inputs.
        kwargs: Example keyword inputs, in any order.
        mode: Mode of the fake tensors; a new one unless given.
        dynamic: Names of dims, by input position and dim; inputs that name the same dim share its symbol.
    """
    mode = mode or new_mode()
    placeholders = module.graph.find_nodes(op="placeholder", sort=True)
    if isinstance(module.graph._codegen, _PyTreeCodeGen):
        values = pytree.tree_leaves((tuple(args), kwargs or {}))
    else:
        named = kwargs or {}
        rest = [named.get(str(node.target), *node.args) for node in placeholders[len(args) :]]
        values = [*args, *rest]
    sources: dict[str, Any] = {}
    fakes = [_fake(mode, value, index, (dynamic or {}).get(index), sources) for index, value in enumerate(values)]
    _describe(module, fakes, mode)
    return module


def _fake(mode: FakeTensorMode, value: Any, index: int, dims: Any, symbols: dict[str, Any]) -> Any:
    if not isinstance(value, torch.Tensor):
        return pytree.tree_map_only(torch.Tensor, lambda leaf: mode.from_tensor(leaf, static_shapes=True), value)
    if not dims:
        return mode.from_tensor(value.detach(), static_shapes=True)
    kinds = [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(value.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    fake = mode.from_tensor(value, symbolic_context=context, source=ConstantSource(f"input_{index}"))
    sizes = list(fake.shape)
    for dim, name in dims.items():
        sizes[dim] = symbols.setdefault(name, sizes[dim])
    with mode:
        return torch.empty(sizes, dtype=value.dtype)


def _describe(module: GraphModule, values: list[Any], mode: FakeTensorMode) -> Any:
    return _Describer(module, mode).run(*values, enable_io_processing=False)


class _Describer(Interpreter):
    def __init__(self, module: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.mode = mode

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if not isinstance(value, torch.Tensor):
            return value
        return self.mode.from_tensor(value.detach(), static_shapes=True)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.module.get_submodule(target)
        if not isinstance(module, GraphModule):
            fake = {name: self.mode.from_tensor(state.detach(), static_shapes=True) for name, state in _state(module)}
            return torch.func.functional_call(module, fake, args, kwargs)
        placeholders = module.graph.find_nodes(op="placeholder", sort=True)
        if isinstance(module.graph._codegen, _PyTreeCodeGen):
            returned = _describe(module, pytree.tree_leaves((args, kwargs)), self.mode)
            return module.graph._codegen.process_outputs(returned)
        if any(str(node.target).startswith("*") for node in placeholders):
            return _describe(module, [tuple(args)], self.mode)
        rest = [kwargs.get(str(node.target), *node.args) for node in placeholders[len(args) :]]
        return _describe(module, [*args, *rest], self.mode)

    def run_node(self, n: Node) -> Any:
        with self.mode, torch.no_grad():
            value = super().run_node(n)
        assert self.mode.shape_env is not None
        self.mode.shape_env.pending_fresh_unbacked_symbols.clear()  # they stay symbols of what was just described
        if n.op != "output" and not isinstance(value, (torch.nn.Module, torch.ScriptObject)):
            n.meta["val"] = value
        return value


def _state(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def strip(module: GraphModule) -> GraphModule:
    """Take the metadata off every node, in nested partitions too."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                node.meta.clear()
    return module


def captured(model: torch.nn.Module, args: Any, kwargs: Any = None, **options: Any) -> GraphModule:
    """The graph module of an exported model, decomposed, without its guard call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own doings while it captures higher-order operators
        program = torch.export.export(model, tuple(args), kwargs, dynamic_shapes=options.get("dynamic_shapes"))
        if options.get("decompose", True):
            program = program.run_decompositions({})
    module = program.module()
    for node in list(module.graph.find_nodes(op="call_module")):
        if node.target == "_guards_fn":
            module.graph.erase_node(node)
            del module._guards_fn
    module.recompile()
    return module


def split(module: GraphModule, colour: Callable[[int], int]) -> GraphModule:
    """Cut by `split_module`: weights stay in the parent and are passed in; call nodes get no metadata."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    order = {node: index for index, node in enumerate(calls)}
    parts = split_module(module, module, lambda node: colour(order.get(node, 0)), keep_original_order=True)
    parts.graph.set_codegen(module.graph._codegen)
    parts.recompile()
    return parts


def fuse(module: GraphModule, colour: Callable[[int], int | None]) -> GraphModule:
    """Cut by `fuse_by_partitions`: state is read in the parent or passed in; calls of no colour stay in the parent."""
    groups: dict[int, dict[Node, int | None]] = {}
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    for index, node in enumerate(calls):
        chosen = colour(index)
        if chosen is not None:
            groups.setdefault(chosen, {})[node] = None
    return fuse_by_partitions(module, list(groups.values()), prefix="part_")


CUTS: dict[str, Callable[[GraphModule], GraphModule]] = {
    "whole": lambda module: module,
    "split in pairs": lambda module: split(module, lambda index: index // 2),
    "split one by one": lambda module: split(module, lambda index: index),
    "fused in pairs": lambda module: fuse(module, lambda index: index // 2),
    "fused, every third in the parent": lambda module: fuse(module, lambda i: i // 3 if i % 3 else None),
}
"""Ways to cut a captured graph into partitions."""
