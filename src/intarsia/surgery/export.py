"""`export`: hybrid to exported program by graph surgery alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import TreeSpec, new_fake_mode, pytree
from intarsia.core.coverage import find_coverage
from intarsia.core.foreign import Adapter, adapt_nothing
from intarsia.errors import HybridError, with_article
from intarsia.surgery.aliasing import check_engine_writes
from intarsia.surgery.assemble import Parts, assemble, remove_dead
from intarsia.surgery.collection import collection_paused
from intarsia.surgery.conservation import check_conservation
from intarsia.surgery.convention import Constant, Convention, InputLeaf, read_convention
from intarsia.surgery.higher_order import Shared
from intarsia.surgery.inline import Inliner
from intarsia.surgery.ledger import Account
from intarsia.surgery.lift import Lifter, new_placeholder, order_placeholders
from intarsia.surgery.metadata import Described, Metadata, describe_input, find_mode
from intarsia.surgery.mutations import MutationFinder
from intarsia.surgery.ranges import Dims, Ranges, Symbols, leaf_dims, ranges_of, restates, stated_ranges
from intarsia.surgery.values import Value, flatten, is_container


def export(
    hybrid: GraphModule,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    adapt: Adapter = adapt_nothing,
) -> ExportedProgram:
    """Export a hybrid by inlining its partitions; nothing is traced again, run or copied.

    Args:
        hybrid: Graph module whose graph calls partitions. Not modified.
        args: Example positional arguments; needed only where the hybrid's graph has no metadata, and only their
            structure, shapes and dtypes are used.
        kwargs: Example keyword arguments, likewise.
        dynamic_shapes: As for `torch.export.export`; needed only where the metadata does not say it.
        adapt: Makes bodies for modules of other compilers, which have no graph.

    Returns:
        A program whose state is the very tensors of the hybrid. `ledger(program)` tells what became of everything.

    Raises:
        HybridError: A partition has no graph, or a call does not fit it.
        StateError: A graph reads an attribute that is missing or cannot be exported.
        ConventionError: The graph does not say how it is called, and neither do the examples.
        MutationError: A write would be lost: an engine writes into a computed value, or a body into its operand.
        ConservationError: The result would not hold what the hybrid holds.

    Example:
        >>> import torch
        >>> graph = torch.fx.symbolic_trace(torch.nn.Linear(3, 2))
        >>> program = export(graph, (torch.ones(4, 3),))
        >>> [spec.target for spec in program.graph_signature.input_specs]
        ['weight', 'bias', None]
    """
    check_hybrid(hybrid)
    with collection_paused():
        return _export(hybrid, _read_request(hybrid, args, kwargs, dynamic_shapes), adapt)


def check_hybrid(hybrid: object) -> None:
    """Refuse what has no graph to export.

    Raises:
        HybridError: It is no graph module.
    """
    if not isinstance(hybrid, GraphModule):
        is_model = isinstance(hybrid, torch.nn.Module)
        raise HybridError(
            "argument 'hybrid'",
            found=with_article(type(hybrid).__qualname__),
            expected="a torch.fx.GraphModule",
            fix="Compile the model first (intarsia.compile), or trace it to a GraphModule."
            if is_model
            else "Pass what intarsia.compile returned; what intarsia.load returned is exported already.",
        )


def _export(hybrid: GraphModule, request: _Request, adapt: Adapter) -> ExportedProgram:
    convention, metadata = request.convention, request.metadata
    graph, account = Graph(), Account()
    for name, reason in getattr(find_coverage(hybrid), "removed", ()):
        account.note("node", name, "removed", None, reason)
    inputs = _place_inputs(graph, convention.leaves, request.described)
    values = _bind_inputs(convention, inputs, request.described)
    lifter = Lifter(hybrid, graph, metadata)
    shared = Shared(metadata, account, adapt)
    inliner = Inliner(graph, lifter, shared)
    leaves, out_spec = _outputs(inliner.inline(hybrid, hybrid.graph, values), convention)
    _note_outputs(leaves, out_spec, account)
    output = graph.output(tuple(leaves))
    remove_dead(graph, inliner.bodies, account)

    targets = {node: entry.name for entry, node in lifter.lifted() if entry.kind is not InputKind.CUSTOM_OBJ}
    targets |= {node: leaf.path for leaf, node in zip(convention.leaves, inputs, strict=True)}
    partitions = {node: entry.path.rpartition(".")[0] or entry.path for entry, node in lifter.lifted()}
    foreign = {call: into for call, into in shared.writing.items() if call.graph is graph}
    check_engine_writes(graph, targets, partitions, foreign)
    mutations = MutationFinder(graph, targets, metadata, account).declare(inliner.writers, lifter.sharing())
    leaves = output.args[0]
    output.args = ((*mutations.values.values(), *leaves),)
    if mutations.copies:
        remove_dead(graph, inliner.bodies, account)
    lifted = lifter.finish(mutations.written, account)
    inliner.keep_apart({entry.name.partition(".")[0] for entry, _ in lifted})
    order_placeholders(graph, [*(node for _, node in lifted), *inputs])

    parts = Parts(
        graph=graph,
        lifted=lifted,
        inputs=inputs,
        outputs=leaves,
        mutations=mutations,
        in_spec=convention.in_spec,
        out_spec=out_spec,
        names=convention.names,
        ranges=_ranges(hybrid, graph, request),
        bodies={node.target: inliner.bodies[node.target] for node in graph.find_nodes(op="get_attr")},
        examples=request.examples,
    )
    program = assemble(parts)
    account.close(program)
    copies = [node.name for node in mutations.copies]
    check_conservation(hybrid, values, program, traced=shared.traced, copies=copies)
    return program


@dataclass(frozen=True)
class _Request:
    """What the caller asks for.

    Attributes:
        convention: How the hybrid is called.
        dims: Dynamic dims of each input leaf, as `dynamic_shapes` states them.
        metadata: Makes descriptions, in the mode of the hybrid's own metadata where that can be kept.
        described: What each input leaf is.
        examples: Example inputs `(args, kwargs)`, or None.
    """

    convention: Convention
    dims: Sequence[Dims]
    metadata: Metadata
    described: Sequence[Described]
    examples: tuple[tuple[Any, ...], dict[str, Any]] | None


def _read_request(
    hybrid: GraphModule, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> _Request:
    convention = read_convention(hybrid, args, kwargs)
    dims = leaf_dims(convention, dynamic_shapes)
    restated = restates(convention.leaves, dims)
    metadata = Metadata(new_fake_mode() if restated else find_mode(hybrid))
    symbols = Symbols(metadata)
    described = [
        symbols.describe(leaf, asked) if restated and asked else describe_input(leaf, metadata)
        for leaf, asked in zip(convention.leaves, dims, strict=True)
    ]
    examples = None if args is None and kwargs is None else (tuple(args or ()), dict(kwargs or {}))
    return _Request(convention, dims, metadata, described, examples)


def _ranges(hybrid: GraphModule, graph: Graph, request: _Request) -> Ranges:
    descriptions = [node.meta.get("val") for node in graph.nodes]
    stated = stated_ranges(request.described, request.dims)
    return ranges_of(descriptions, hybrid.meta.get("range_constraints"), stated, request.metadata)


def _place_inputs(graph: Graph, leaves: Sequence[InputLeaf], described: Sequence[Described]) -> list[Node]:
    inputs = []
    for leaf, description in zip(leaves, described, strict=True):
        placeholder = new_placeholder(graph, leaf.name)
        placeholder.meta["val"] = description
        inputs.append(placeholder)
    return inputs


def _bind_inputs(convention: Convention, inputs: Sequence[Node], described: Sequence[Described]) -> dict[Node, Value]:
    """Values of the hybrid's placeholders; a number is the number itself, for its use was fixed when it was traced."""

    def value(index: int) -> Value:
        symbolic = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        return inputs[index] if isinstance(described[index], symbolic) else described[index]

    return {
        node: bound.value if isinstance(bound, Constant) else pytree.tree_map(value, bound)
        for node, bound in convention.bindings.items()
    }


def _note_outputs(leaves: Sequence[Value], out_spec: TreeSpec, account: Account) -> None:
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(len(leaves)), out_spec))
    for path, index in paths:
        leaf = leaves[index]
        image = leaf if isinstance(leaf, Node) else None
        account.note("user output", pytree.keystr(path), "kept", image, "" if image else "a constant")


def _outputs(returned: Value, convention: Convention) -> tuple[list[Value], TreeSpec]:
    """Leaves and structure of what the hybrid returns."""
    if convention.out_spec is None:
        return flatten(returned)
    leaves = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    if any(is_container(leaf) for leaf in leaves):
        return flatten(pytree.tree_unflatten(leaves, convention.out_spec))
    return leaves, convention.out_spec
