"""Hybrids to exported programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

import torch

from intarsia import surgery
from intarsia.core.coverage import find_coverage, keep_coverage
from intarsia.core.examples import examples_by_method
from intarsia.core.ledger import Ledger, told
from intarsia.core.method_names import check_method_names
from intarsia.engines.tensorrt.bodies import adapt_module
from intarsia.engines.tensorrt.complexes import describe_complex_inputs
from intarsia.engines.tensorrt.lifted import show_lifted_writes
from intarsia.engines.tensorrt.packing import pack_engines
from intarsia.errors import ArgumentError, IntarsiaError
from intarsia.runtime.methods import check_methods
from intarsia.runtime.program import Program

Engines: TypeAlias = Literal["objects", "bytes"]
"""What becomes of engines that are script objects; see `export`."""


@overload
def export(
    hybrid: torch.fx.GraphModule,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    retrace: bool = False,
    engines: Engines = "objects",
) -> torch.export.ExportedProgram: ...


@overload
def export(
    hybrid: Mapping[str, torch.fx.GraphModule],
    args: Mapping[str, Sequence[Any] | None] | None = None,
    kwargs: Mapping[str, Mapping[str, Any] | None] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    retrace: bool = False,
    engines: Engines = "objects",
) -> dict[str, torch.export.ExportedProgram]: ...


def export(
    hybrid: torch.fx.GraphModule | Mapping[str, torch.fx.GraphModule],
    args: Any = None,
    kwargs: Any = None,
    *,
    dynamic_shapes: Any = None,
    retrace: bool = False,
    engines: Engines = "objects",
) -> torch.export.ExportedProgram | dict[str, torch.export.ExportedProgram]:
    """Export a hybrid: by graph surgery alone, or by `torch.export.export` when `retrace` asks for it.

    Surgery runs nothing and copies no weight; it needs no example inputs when the hybrid's graph carries metadata, as
    every hybrid of `compile` does. The hybrid is left as it was.

    Args:
        hybrid: A hybrid of `compile`, or of another tool: any graph module whose graph calls partitions. Or several,
            by the names of the methods that they are.
        args: Example positional inputs, where the graph has no metadata; only structure, shapes and dtypes are used.
            For several methods a mapping with their names.
        kwargs: Example keyword inputs, likewise.
        dynamic_shapes: As for `torch.export.export`, where the metadata does not tell which sizes are dynamic;
            likewise.
        retrace: Whether to trace the hybrid again instead; needs example inputs.
        engines: What becomes of Torch-TensorRT's engines that are script objects. "objects" leaves them as they are:
            the program calls `tensorrt::execute_engine`, which Torch-TensorRT registers. "bytes" puts each into a
            container, as `save` does: the program needs TensorRT alone.

    Returns:
        A program whose state is the very tensors of the hybrid; `ledger` tells what became of everything. Of several
        methods, a dict of their programs.

    Raises:
        HybridError: A partition has no graph, or a call does not fit it; or this is no graph module.
        StateError: A graph reads an attribute that is missing or cannot be exported, or state of one name differs
            between methods.
        ConventionError: The graph does not say how it is called, and neither do the examples; or as for `compile`.
        ConservationError: The result would not hold what the hybrid holds.
        CaptureError: `retrace` is True and torch refuses the hybrid.
        ArgumentError: `engines` is something else.

    Example:
        >>> import intarsia
        >>> hybrid = intarsia.compile(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> program = intarsia.export(hybrid)
        >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        ['intarsia.run_engine.default', '<built-in function getitem>']
    """
    if engines not in ("objects", "bytes"):
        raise ArgumentError(
            "argument 'engines'", found=repr(engines), expected="'objects' or 'bytes'", fix="Leave it out, or pass one."
        )
    export_one = surgery.retrace if retrace else _export_one
    finish = hold_engines if engines == "bytes" else _leave
    if not isinstance(hybrid, Mapping):
        surgery.check_hybrid(hybrid)
        return finish(keep_coverage(hybrid, export_one(hybrid, args, kwargs, dynamic_shapes=dynamic_shapes)))
    check_method_names(hybrid)
    examples = examples_by_method(hybrid, args, kwargs, dynamic_shapes)
    programs = {}
    for name, one in hybrid.items():
        with IntarsiaError.of_method(name):
            surgery.check_hybrid(one)
            own = examples[name]
            program = export_one(one, own.args, own.kwargs, dynamic_shapes=own.dynamic_shapes)
            programs[name] = finish(keep_coverage(one, program))
    check_methods(programs, {name: placed.held for name, one in hybrid.items() if (placed := find_coverage(one))})
    return programs


def hold_engines(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with containers in the place of Torch-TensorRT's script objects, as a file holds them.

    Raises:
        HybridError: An engine is of a layout that is not known, or cannot be a container.
        MutationError: An engine writes into an input, and the program does not say so.
    """
    packed = pack_engines(program)
    if packed is not program:
        surgery.keep_ledger(program, packed)
        keep_coverage(program.graph_module, packed)
    return packed


def _export_one(
    hybrid: torch.fx.GraphModule, args: Any = None, kwargs: Any = None, *, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    shown = describe_complex_inputs(show_lifted_writes(hybrid))
    return surgery.export(shown, args, kwargs, dynamic_shapes=dynamic_shapes, adapt=adapt_module)


def _leave(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    return program


def ledger(program: torch.export.ExportedProgram | Program) -> Ledger:
    """What export did with every node, output, state entry and write of the hybrid.

    Args:
        program: What `export` returned, or a program loaded from a file that `save` wrote.

    Raises:
        ConventionError: Nothing is known, for another tool made the program.

    Example:
        >>> import intarsia
        >>> hybrid = intarsia.compile(torch.nn.ReLU(), (torch.ones(2),), torch_executed_ops={"aten.relu"})
        >>> intarsia.ledger(intarsia.export(hybrid)).select("node")[0]
        Entry(kind='node', subject='relu', fate='kept', image='relu', reason='')
    """
    return told(program.ledger if isinstance(program, Program) else surgery.find_ledger(program))
