"""Models to hybrids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch

from intarsia import surgery
from intarsia.api.wanted import Choice, Plan, read_wanted
from intarsia.capture import EntryPoint, capture, capture_methods
from intarsia.core.examples import examples_by_method
from intarsia.core.method_names import check_method_names
from intarsia.engines.build import EngineBuilder
from intarsia.engines.methods import build_methods
from intarsia.partition import Wishes, partition_methods
from intarsia.runtime.methods import check_methods


@overload
def compile(  # noqa: A001  as below
    model: EntryPoint,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    backend: Choice | None = None,
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    plan: Plan | None = None,
    fallback: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> torch.fx.GraphModule: ...


@overload
def compile(  # noqa: A001  as below
    model: Mapping[str, EntryPoint],
    args: Mapping[str, tuple[Any, ...] | None] | None = None,
    kwargs: Mapping[str, Mapping[str, Any] | None] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    backend: Choice | None = None,
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    plan: Plan | None = None,
    fallback: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, torch.fx.GraphModule]: ...


def compile(  # noqa: A001  named as torch.compile and torch_tensorrt.compile are
    model: EntryPoint | Mapping[str, EntryPoint],
    args: Any = None,
    kwargs: Any = None,
    *,
    dynamic_shapes: Any = None,
    backend: Choice | None = None,
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    plan: Plan | None = None,
    fallback: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> torch.fx.GraphModule | dict[str, torch.fx.GraphModule]:
    """Compile a model to a hybrid: engines for what the backend takes, torch operators for the rest.

    Args:
        model: Model, a bound method of it (`model.decode`), or a program that was exported already (then without
            `args`). Or several entry points of one model by the names of the methods that they are to be:
            `{"prefill": model.prefill, "decode": model.decode}`.
        args: Example positional inputs; for several methods a mapping with their names.
        kwargs: Example keyword inputs, likewise.
        dynamic_shapes: As for `torch.export.export`, likewise.
        backend: Name of the backend that builds the engines, by default "openvino". Or several in the order in which
            they are wanted: an operator goes to the first that takes it and can build it, else it stays in torch. Or a
            mapping from operators and module paths to names or orders, where the path "" stands for the rest of the
            model and the name "torch" for no engine; operators go before modules, and modules before those that hold
            them.
        torch_executed_ops: Operators that stay in torch: operator objects, or names ("aten.linear").
        min_block_size: Fewest operators that make an engine worth while, at least 1.
        plan: Where each operator runs, instead of `backend`, `torch_executed_ops` and `min_block_size`: what
            `intarsia.plan` returned, its text, or the path of a file with that text.
        fallback: Whether what a backend cannot build goes to the next one, or stays in torch: the operators that it
            names, else the partition. `coverage` tells why. Of a plan, what cannot be built is an error.
        options: Passed through to the backend's library; of several backends, a mapping from their names to the options
            of each.
        progress: Called with engines done, engines in all, and the name of the next one.

    Returns:
        A hybrid that can be called with the model's own arguments; `coverage` tells what runs where. Its weights and
        buffers are the model's own tensors: a call that writes state writes the model's, and `save` stores what they
        hold then. A `Program` has written state of its own. Of several methods, a dict of their hybrids.

    Raises:
        CaptureError: `torch.export` cannot capture the model.
        PartitionError: An operator name or module path matches nothing, the plan is that of another model, or an
            operator cannot run where the plan says.
        EngineUnavailable: A backend is not known, or its library is not installed; told before the capture.
        ArgumentError: A backend does not take an option, `backend` or `plan` is none, or there is a plan beside what it
            stands for; told before the capture.
        EngineBuildFailed: A partition cannot be built, and `fallback` is False or there is a plan.
        ConventionError: There is no method, a method's name is no name for an attribute or is taken, or examples are
            given for a method that is not there.
        StateError: State of one name differs between methods; told before an engine is built.

    Example:
        >>> import intarsia
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> hybrid = intarsia.compile(model, (torch.ones(2, 4),))
        >>> intarsia.coverage(hybrid).engines
        ('openvino_0',)
        >>> examples = {"all": (torch.ones(2, 4),), "first": (torch.ones(4),)}
        >>> list(intarsia.compile({"all": model, "first": model[0]}, examples))
        ['all', 'first']
    """
    kept = torch_executed_ops if isinstance(torch_executed_ops, str) else tuple(torch_executed_ops)
    wanted = read_wanted(backend, plan, torch_executed_ops=kept, min_block_size=min_block_size)
    builder = EngineBuilder(wanted.backends, surgery.export, wanted.read_options(options))
    captured = _capture(model, args, kwargs, dynamic_shapes)
    wishes = Wishes(
        supports={name: one.supports for name, one in wanted.backends.items()},
        choice=wanted.choice,
        torch_executed_ops=kept,
        min_block_size=min_block_size,
        plan=wanted.plan,
        modules=_module_paths(model),
    )
    hybrids = build_methods(
        lambda failures: partition_methods(captured, wishes, failures),
        builder,
        fallback=fallback and plan is None,
        progress=progress,
    )
    return hybrids if isinstance(model, Mapping) else hybrids[""]


def _module_paths(model: Any) -> set[str]:
    """The paths of the model's modules; none of a program, which keeps those alone that call operators."""
    entries = model.values() if isinstance(model, Mapping) else [model]
    owners = [getattr(entry, "__self__", entry) for entry in entries]
    return {path for one in owners if isinstance(one, torch.nn.Module) for path, _ in one.named_modules()}


def _capture(model: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> dict[str, torch.export.ExportedProgram]:
    """The program of each method; a model that is no mapping is one, without a name."""
    if not isinstance(model, Mapping):
        return {"": capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)}
    check_method_names(model)
    programs = capture_methods(model, examples_by_method(model, args, kwargs, dynamic_shapes))
    check_methods(programs)
    return programs
