"""How a person knows the leaves of a program's inputs and outputs: `x`, `cache['k']`, `output['rows']`."""

from __future__ import annotations

from collections.abc import Sequence

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from intarsia._torch import TreeSpec, pytree


def leaf_paths(in_spec: TreeSpec, names: Sequence[str]) -> list[str]:
    """Paths of the leaves of `(args, kwargs)`, in order.

    Args:
        in_spec: Structure of `(args, kwargs)`.
        names: Names of the positional arguments; keywords name themselves.

    Example:
        >>> leaf_paths(pytree.tree_structure(((1, [2, 3]), {"k": 4})), ["x", "pair"])
        ['x', 'pair[0]', 'pair[1]', 'k']
    """
    structure = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    with_paths, _ = pytree.tree_flatten_with_path(structure)
    paths = []
    for (part, argument, *rest), _leaf in with_paths:
        positional = isinstance(part, pytree.SequenceKey) and part.idx == 0
        index = argument.idx if isinstance(argument, pytree.SequenceKey) else 0
        name = names[index] if positional else str(getattr(argument, "key", argument))
        paths.append(name + pytree.keystr(tuple(rest)))
    return paths


def input_paths(program: ExportedProgram) -> list[str]:
    """Paths of a program's inputs, in order; the names of its placeholders where it does not tell its arguments.

    Example:
        >>> import torch
        >>> input_paths(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)))
        ['input']
    """
    signature = program.module_call_graph[0].signature
    names = signature.forward_arg_names if signature is not None else None
    if signature is None or names is None or len(names) < signature.in_spec.child(0).num_children:
        return [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    return leaf_paths(signature.in_spec, names)


def output_paths(out_spec: TreeSpec) -> list[str]:
    """Paths of a program's outputs, in order.

    Example:
        >>> output_paths(pytree.tree_structure({"rows": 1, "pair": [2, 3]}))
        ["output['rows']", "output['pair'][0]", "output['pair'][1]"]
    """
    leaves = pytree.tree_unflatten(list(range(out_spec.num_leaves)), out_spec)
    return [f"output{pytree.keystr(path)}" for path, _ in pytree.tree_leaves_with_path(leaves)]
