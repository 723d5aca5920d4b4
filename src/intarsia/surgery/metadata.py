"""Fake tensors that describe the values of the new graph: one fake mode, one shape environment, nothing executed.

The hybrid's own metadata is kept where it belongs to that mode. What is missing, or was made for other shapes, is
computed by calling the operator on fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg

from intarsia._torch import FakeTensor, FakeTensorMode, new_fake_mode, pytree, without_cache
from intarsia.errors import ConventionError, HybridError, first_line
from intarsia.surgery.convention import InputLeaf
from intarsia.surgery.values import Value

Described = Any
"""A fake tensor, a symbolic or plain number, None, or a container of such."""


class Metadata:
    """The fake mode of the new graph, and the descriptions made in it.

    Args:
        mode: Mode of the hybrid's own metadata, or a new one.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode

    @property
    def shape_env(self) -> ShapeEnv:
        """The shape environment of the mode, made when it has none."""
        if self.mode.shape_env is None:
            self.mode.shape_env = ShapeEnv()
        return self.mode.shape_env

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Describe a tensor of static shape; ties and views of one storage are described as such."""
        return self.mode.from_tensor(tensor, static_shapes=True)

    def of_state(self, node: Node | None, value: Any) -> Described:
        """Describe state: by the metadata of a node that reads it, or else from the tensor."""
        described = None if node is None else node.meta.get("val")
        if isinstance(described, FakeTensor) and described.fake_mode is self.mode and same_shape(described, value):
            return described
        return self.of_tensor(value)

    def owns(self, described: Described) -> bool:
        """Whether a description belongs to this mode; numbers belong to every mode."""
        if isinstance(described, torch.Tensor):
            return isinstance(described, FakeTensor) and described.fake_mode is self.mode
        if isinstance(described, (tuple, list)):
            return all(self.owns(item) for item in described)
        if isinstance(described, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return described.node.shape_env is self.mode.shape_env
        return True

    def fits(self, placeholder: Node, value: Value) -> bool:
        """Whether a placeholder's own metadata describes the value that a call binds to it."""
        known = placeholder.meta.get("val", value)
        if not isinstance(value, Node):
            return bool(known == value) if isinstance(known, (int, float, str, bool, type(None))) else False
        if value.op == "get_attr":
            return True
        described = value.meta["val"]
        if known is described:
            return self.owns(known)
        if isinstance(known, torch.Tensor) and isinstance(described, torch.Tensor):
            return self.owns(known) and same_shape(known, described) and same_strides(known, described)
        return self.owns(known) and type(known) is type(described) and expression(known) == expression(described)

    def of_call(self, node: Node, path: str, held: Mapping[Node, Any]) -> Described:
        """Describe what a call of the new graph returns, by calling its target on descriptions of its arguments.

        Args:
            node: The call.
            path: How the user knows it.
            held: Objects that stand for themselves: bodies of higher-order operators, script objects.

        Raises:
            HybridError: The target refuses arguments of these shapes and dtypes.
        """
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: describe(source, held))
        scripted = any(isinstance(held.get(source), torch.ScriptObject) for source in node.all_input_nodes)
        try:
            with self.mode, torch.no_grad(), without_cache(self.mode) if scripted else nullcontext():
                return node.target(*args, **kwargs)  # type: ignore[operator]  # the walk makes calls of functions only
        except Exception as error:
            raise refused_call(node, path, error) from error


def refused_call(node: Node, path: str, error: Exception) -> HybridError:
    """The error for a call that fails on descriptions of its arguments."""
    return HybridError(
        f"node '{path}'",
        found=f"{type(error).__name__} ({first_line(error)}) when {node.target} meets its inputs' shapes",
        expected="a call that accepts its inputs",
        fix="Check what the call passes to its partition, position by position.",
        node=node.name,
    )


def describe(node: Node, held: Mapping[Node, Any]) -> Described:
    """What a node of the new graph is: the object that it holds, or its description."""
    return held[node] if node in held else node.meta["val"]


def same_shape(described: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree in dtype, device and sizes; symbols are compared as expressions, adding no guard."""
    return (
        described.dtype == other.dtype
        and described.device == other.device
        and len(described.shape) == len(other.shape)
        and all(expression(a) == expression(b) for a, b in zip(described.shape, other.shape, strict=True))
    )


def same_strides(described: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape agree in strides; symbols are compared as expressions."""
    if described.layout is not torch.strided or other.layout is not torch.strided:
        return described.layout is other.layout
    return all(expression(a) == expression(b) for a, b in zip(described.stride(), other.stride(), strict=True))


def expression(size: Any) -> Any:
    """A size as an int or a sympy expression, comparable without a guard."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size


def find_mode(hybrid: GraphModule) -> FakeTensorMode:
    """The fake mode of the hybrid's inputs, else of its first described node, else a new one."""
    for node in hybrid.graph.nodes:
        for described in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(described, FakeTensor):
                return described.fake_mode
    return new_fake_mode()


def describe_input(leaf: InputLeaf, metadata: Metadata) -> Described:
    """Description of an input leaf: its placeholder's metadata, or else its example, of static shape.

    Raises:
        ConventionError: The leaf has neither metadata nor an example, or the two disagree.
    """
    known = leaf.described
    if known is InputLeaf.ABSENT and leaf.example is InputLeaf.ABSENT:
        raise ConventionError(
            f"input {leaf.path!r}",
            found="a placeholder without metadata and no example input",
            expected="one of the two",
            fix="Pass args=(...) and kwargs={...} to export; only their shapes and dtypes are used.",
            node=leaf.name,
        )
    if leaf.example is not InputLeaf.ABSENT and known is not InputLeaf.ABSENT:
        _check_example(leaf, known)
    if known is not InputLeaf.ABSENT and metadata.owns(known):
        return known
    return _describe_example(known if leaf.example is InputLeaf.ABSENT else leaf.example, metadata)


def _describe_example(example: Any, metadata: Metadata) -> Described:
    if not isinstance(example, torch.Tensor):
        return example
    if isinstance(example, FakeTensor):
        with metadata.mode:
            return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
    return metadata.of_tensor(example.detach())


def _check_example(leaf: InputLeaf, described: Described) -> None:
    example = leaf.example
    if not isinstance(described, torch.Tensor):
        return
    if not isinstance(example, torch.Tensor):
        found = f"a {type(example).__name__}"
    elif example.dtype != described.dtype or example.dim() != described.dim():
        found = f"{example.dtype} of shape {list(example.shape)}"
    elif any(
        isinstance(size, int) and size != given
        for size, given in zip(map(expression, described.shape), example.shape, strict=True)
    ):
        found = f"shape {list(example.shape)}"
    else:
        return
    raise ConventionError(
        f"input {leaf.path!r}",
        found=found,
        expected=f"{described.dtype} of shape {[expression(size) for size in described.shape]}",
        fix="Pass an example that the hybrid was built for, or none at all.",
        node=leaf.name,
    )
