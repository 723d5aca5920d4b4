"""The edge of ExecuTorch: hybrids and programs as its `EdgeProgramManager`, open for what its users do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.api import EngineForm, Savable, programs_of
from intarsia.formats.pte.edge import lower_to_edge
from intarsia.formats.pte.planning import backend_config
from intarsia.runtime.methods import Methods

__all__ = ["backend_config", "to_edge"]


def to_edge(
    hybrid_or_program_or_methods: Savable | Methods | Mapping[str, Savable],
    partitioners: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    transform_passes: Any = None,
    compile_config: Any = None,
    constant_methods: Mapping[str, Any] | None = None,
    *,
    engines: EngineForm = "compiled",
    generate_etrecord: bool = False,
) -> Any:
    """ExecuTorch's own `EdgeProgramManager`: engines as delegates, then what partitioners take, then portable kernels.

    The bytes of each engine become a delegate of their own, untouched. Nothing is traced again by intarsia. The state
    that a method writes starts with the values that it has now.

    Its `to_executorch()` plans state of one name as one state, in memory of its own, and proves that delegates take and
    give what their engines do. `backend_config` makes other configurations that plan so; one that would let the
    activations of one method overwrite the state of another is refused.

    Args:
        hybrid_or_program_or_methods: As for `intarsia.save`.
        partitioners: Partitioners of ExecuTorch, in order; for several methods they may be a mapping. None is one
            `XnnpackPartitioner` for each method, an empty list none.
        transform_passes: As for `executorch.exir.to_edge_transform_and_lower`; they run before the partitioners, and
            see an engine as a call of the operator `intarsia::engine_N`.
        compile_config: As for `executorch.exir.to_edge_transform_and_lower`.
        constant_methods: Likewise; the one that tells how the methods are called is added.
        engines: As for `intarsia.save`; "source" leaves the operators of engines to the partitioners.
        generate_etrecord: As for `executorch.exir.to_edge_transform_and_lower`.

    Returns:
        `executorch.exir.EdgeProgramManager`, and so are those that its `transform` and `to_backend` make.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.
        EngineError: An engine cannot travel, a partitioner has claimed it, or its torch operators are not known.
        ConventionError: A method's name cannot be one, a size has no upper bound, or partitioners are given for a
            method that is not there, or name another method in their compile specs. Or a constant method has the name
            of another method.
        MutationError: A write would be lost.
        FormatError: ExecuTorch refuses a program.

    Example:
        >>> edge = to_edge(hybrid, partitioners=[])  # doctest: +SKIP
        >>> edge.to_executorch().save("model.pte")  # doctest: +SKIP
    """
    return lower_to_edge(
        programs_of(hybrid_or_program_or_methods, engines),
        partitioners=partitioners,
        transform_passes=transform_passes,
        compile_config=compile_config,
        constant_methods=constant_methods,
        generate_etrecord=generate_etrecord,
    )
