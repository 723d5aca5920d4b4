"""The calling convention of a hybrid: which arguments it takes and what it returns, as nested structures.

It comes from the graph's pytree code generation when there is one. A graph with plain code generation takes one
positional argument per placeholder, unless example inputs say more: a container for one placeholder, arguments passed
by keyword, or a default that is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from intarsia._torch import PytreeConvention, TreeSpec, pytree, pytree_convention
from intarsia.core.paths import leaf_paths
from intarsia.errors import ConventionError
from intarsia.surgery.values import flatten, plain_spec

_ABSENT = object()


@dataclass(frozen=True)
class InputLeaf:
    """One leaf of the inputs.

    Attributes:
        name: Name for its placeholder ("x", or "cache_k" for an element of a container).
        path: How the user knows it ("x", "cache['k']").
        example: Example value, or `InputLeaf.ABSENT` when none was given.
        described: What the placeholder's metadata says it is, or `InputLeaf.ABSENT`.
    """

    name: str
    path: str
    example: Any
    described: Any

    ABSENT = _ABSENT


@dataclass(frozen=True)
class Convention:
    """How a hybrid is called.

    Attributes:
        leaves: Leaves of the inputs, in the order of `in_spec`.
        in_spec: Structure of `(args, kwargs)`.
        names: Names of the arguments, positional ones first.
        bindings: For every placeholder of the graph, the structure that it holds: indices into `leaves` in place of
            leaves; or a `Constant`.
        out_spec: Structure of the outputs, or None when the graph's output node shows it.
    """

    leaves: tuple[InputLeaf, ...]
    in_spec: TreeSpec
    names: tuple[str, ...]
    bindings: Mapping[Node, Any]
    out_spec: TreeSpec | None


@dataclass(frozen=True)
class Constant:
    """A default that stands for a placeholder which the caller leaves out."""

    value: Any


def read_convention(hybrid: GraphModule, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Convention:
    """Tell how a hybrid is called.

    Args:
        hybrid: Its graph says what it can; not modified.
        args: Example positional arguments, or None.
        kwargs: Example keyword arguments, or None.

    Raises:
        ConventionError: The examples do not fit the graph.
    """
    placeholders = hybrid.graph.find_nodes(op="placeholder", sort=True)
    if args is not None and not isinstance(args, (tuple, list)):
        raise ConventionError(
            "argument 'args'",
            found=f"a {type(args).__name__}",
            expected="a tuple of the positional arguments",
            fix="Pass args=(x,) for a single argument.",
        )
    known = pytree_convention(hybrid.graph)
    if known is not None:
        return _from_pytree(placeholders, known, args, kwargs)
    if args is None and kwargs is None:
        return _from_placeholders(placeholders)
    return _from_examples(placeholders, tuple(args or ()), dict(kwargs or {}))


def describe(placeholder: Node) -> Any:
    """What a placeholder's metadata says it is, or `InputLeaf.ABSENT`."""
    return placeholder.meta.get("val", _ABSENT)


def _from_pytree(
    placeholders: Sequence[Node],
    known: PytreeConvention,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> Convention:
    in_spec = plain_spec(_two_part(known.in_spec))
    if in_spec.num_leaves != len(placeholders):
        raise ConventionError(
            "the hybrid's inputs",
            found=f"{len(placeholders)} placeholders",
            expected=f"{in_spec.num_leaves}, as its own input structure says",
            fix="Give the graph one placeholder for each leaf of its inputs.",
        )
    names = _argument_names(known.names, in_spec)
    examples: list[Any] = [_ABSENT] * len(placeholders)
    if args is not None or kwargs is not None:
        examples = _examples_for(in_spec, names, tuple(args or ()), dict(kwargs or {}))
    paths = leaf_paths(in_spec, names)
    leaves = tuple(
        InputLeaf(node.name, path, example, describe(node))
        for node, path, example in zip(placeholders, paths, examples, strict=True)
    )
    bindings = {node: index for index, node in enumerate(placeholders)}
    out_spec = None if known.out_spec is None else plain_spec(known.out_spec)
    return Convention(leaves, in_spec, names, bindings, out_spec)


def _two_part(in_spec: TreeSpec) -> TreeSpec:
    """The structure as `(args, kwargs)`; some graphs carry that of the positional arguments alone."""
    children = in_spec.children()
    if in_spec.type is tuple and len(children) == 2 and children[0].type is tuple and children[1].type is dict:
        return in_spec
    positional = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    return pytree.tree_structure((tuple(positional), {}))


def _argument_names(names: Sequence[str], in_spec: TreeSpec) -> tuple[str, ...]:
    """Names of positional and keyword arguments; those of keywords are the keywords."""
    positional, keywords = in_spec.children()
    own = [name for index, name in enumerate(names) if not (index == 0 and name == "self")]
    padded = own[: positional.num_children]
    padded += [f"arg_{index}" for index in range(len(padded), positional.num_children)]
    return (*padded, *keywords.context)


def _examples_for(in_spec: TreeSpec, names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Leaves of the examples in the order of the input structure."""
    positional, keywords = in_spec.children()
    expected = list(keywords.context)
    if set(kwargs) == set(expected):
        kwargs = {name: kwargs[name] for name in expected}
    leaves, spec = flatten((args, kwargs))
    if len(args) != positional.num_children or set(kwargs) != set(expected):
        raise ConventionError(
            "the example inputs",
            found=f"{len(args)} positional arguments and keywords {sorted(kwargs)}",
            expected=f"{positional.num_children} positional and keywords {sorted(expected)} ({', '.join(names)})",
            fix="Pass the arguments that the hybrid takes, or none at all.",
        )
    if spec.num_leaves != in_spec.num_leaves:
        raise ConventionError(
            "the example inputs",
            found=f"{spec.num_leaves} leaves in {spec}",
            expected=f"{in_spec.num_leaves} leaves in {in_spec}",
            fix="Nest the example inputs as the hybrid's own inputs are nested.",
        )
    return leaves


def _from_placeholders(placeholders: Sequence[Node]) -> Convention:
    leaves: list[InputLeaf] = []
    bindings: dict[Node, Any] = {}
    for node in placeholders:
        if _is_left_out(node):
            bindings[node] = Constant(node.args[0])
            continue
        bindings[node] = len(leaves)
        leaves.append(InputLeaf(node.name, str(node.target), _ABSENT, describe(node)))
    in_spec = pytree.tree_structure((tuple(range(len(leaves))), {}))
    return Convention(tuple(leaves), in_spec, tuple(leaf.path for leaf in leaves), bindings, None)


def _is_left_out(placeholder: Node) -> bool:
    """Whether a default stands for the placeholder: nothing says that a tensor is passed."""
    return bool(placeholder.args) and not isinstance(describe(placeholder), torch.Tensor)


def _from_examples(placeholders: Sequence[Node], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Convention:
    given = _match(placeholders, args, kwargs)
    positional = tuple(value for _, value, by_keyword in given if not by_keyword)
    keywords = {str(node.target): value for node, value, by_keyword in given if by_keyword}
    _, in_spec = flatten((positional, keywords))
    leaves: list[InputLeaf] = []
    bindings: dict[Node, Any] = {node: Constant(node.args[0]) for node in placeholders if node.args}
    for node, value, _ in given:
        bindings[node] = _bind_leaves(node, value, leaves)
    names = tuple(str(node.target) for node, _, _ in given)
    return Convention(tuple(leaves), in_spec, names, bindings, None)


def _match(placeholders: Sequence[Node], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Node, Any, bool]]:
    """Placeholders with the examples that they take, in placeholder order; whether each came by keyword."""
    by_target = {str(node.target): node for node in placeholders[len(args) :]}
    unknown = [name for name in kwargs if name not in by_target]
    missing = [name for name, node in by_target.items() if name not in kwargs and not node.args]
    if len(args) > len(placeholders) or unknown or missing:
        raise ConventionError(
            "the example inputs",
            found=f"{len(args)} positional arguments and keywords {sorted(kwargs)}",
            expected=f"values for {', '.join(str(node.target) for node in placeholders) or 'no inputs'}",
            consequence=f"Missing: {', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}.",
            fix="Pass each input once, by position or by its name.",
        )
    matched = [(node, value, False) for node, value in zip(placeholders, args, strict=False)]
    matched += [(node, kwargs[name], True) for name, node in by_target.items() if name in kwargs]
    return matched


def _bind_leaves(node: Node, value: Any, leaves: list[InputLeaf]) -> Any:
    """Append the leaves of an example to `leaves`; return its structure with their indices for leaves."""
    with_paths, spec = pytree.tree_flatten_with_path(value)
    first = len(leaves)
    single = spec.is_leaf()
    for path, leaf in with_paths:
        suffix = pytree.keystr(path)
        name = node.name + "".join(c if c.isalnum() else "_" for c in suffix).rstrip("_")
        leaves.append(InputLeaf(name, f"{node.target}{suffix}", leaf, describe(node) if single else _ABSENT))
    return pytree.tree_unflatten(list(range(first, len(leaves))), spec)
