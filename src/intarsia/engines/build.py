"""Build an engine for each partition of a hybrid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

import numpy as np
import torch

import intarsia.core.op  # noqa: F401  registers the operator that the bodies call
from intarsia.core.backend import Backend, BuiltEngine
from intarsia.core.container import pack_engine
from intarsia.core.coverage import Coverage, record_coverage
from intarsia.core.signature import EngineSignature
from intarsia.core.torch_source import keep_source
from intarsia.errors import ArgumentError, EngineBuildFailed, IntarsiaError, first_line

Progress = Callable[[int, int, str], None]


def build_engines(
    hybrid: torch.fx.GraphModule,
    plan: Coverage,
    *,
    backend: Backend,
    export: Callable[[torch.fx.GraphModule], torch.export.ExportedProgram],
    options: Mapping[str, Any] | None = None,
    fallback: bool = True,
    progress: Progress | None = None,
) -> tuple[torch.fx.GraphModule, Coverage]:
    """Build an engine for each partition that the plan names, and put it in the partition's place.

    Args:
        hybrid: Changed in place, partition by partition, so that what an engine has taken over can be freed.
        plan: What `partition` found: its engines are the partitions to build.
        backend: Builds the engines.
        export: Makes a partition's exported program.
        options: The backend's options.
        fallback: Whether a partition that cannot be built stays a torch partition; otherwise that is an error. So it is
            where the backend names operators of the partition that it refuses: without them it may be built.
        progress: Called with how many engines are done, how many there are, and the name of the next one; at the
            end once more, with an empty name.

    Returns:
        The hybrid, and where each operator runs now; `coverage(hybrid)` finds it too.

    Raises:
        ArgumentError: `options` is no mapping.
        EngineBuildFailed: The backend refuses a partition, and `fallback` is false or it names the operators concerned.
        IntarsiaError: As the backend raises it for what no fallback mends: its library is not installed, an
            option is wrong.
    """
    check_options(backend, options)
    report = progress or _ignore
    failed: dict[str, str] = {}
    planned = set(plan.engines)
    calls = (str(node.target) for node in hybrid.graph.find_nodes(op="call_module"))
    names = [name for name in calls if name in planned]
    for done, name in enumerate(names):
        report(done, len(names), name)
        try:
            body = _build_body(name, hybrid.get_submodule(name), backend, options or {}, export)
        except EngineBuildFailed as error:
            planned_here = {placement.operator for placement in plan.placements if placement.place == name}
            error.operators = tuple(operator for operator in error.operators if operator in planned_here)
            if error.operators or not fallback:
                raise
            failed[name] = error.found
        else:
            hybrid.set_submodule(name, body)
    report(len(names), len(names), "")
    found = _settle(plan, failed)
    record_coverage(hybrid, found)
    return hybrid, found


def _ignore(done: int, total: int, name: str) -> None:
    """Progress that nobody watches."""


def check_options(backend: Backend, options: Any) -> None:
    """Refuse options before anything is captured or built with them.

    Raises:
        ArgumentError: `options` is no mapping, or the backend does not take one of them.
        EngineUnavailable: The backend's library is not installed.
    """
    if not isinstance(options, Mapping | None):
        raise ArgumentError(
            "options",
            found=f"an object of type {type(options).__name__!r}",
            expected="a mapping from names to values, or None",
            fix='Write options={"NAME": "value"}, with the names of the backend\'s library.',
        )
    backend.check_options(options or {})


def _settle(plan: Coverage, failed: Mapping[str, str]) -> Coverage:
    """The plan, with the operators of failed partitions back in torch."""
    placements = tuple(
        replace(placement, place="torch", reason=f"{placement.place} could not be built")
        if placement.place in failed
        else placement
        for placement in plan.placements
    )
    held = tuple((engine, state) for engine, state in plan.held if engine not in failed)
    return replace(plan, placements=placements, failed=(*plan.failed, *failed.items()), held=held)


def _build_body(
    name: str,
    partition: torch.nn.Module,
    backend: Backend,
    options: Mapping[str, Any],
    export: Callable[[torch.fx.GraphModule], torch.export.ExportedProgram],
) -> torch.fx.GraphModule:
    assert isinstance(partition, torch.fx.GraphModule)  # noqa: S101  partition made it
    inputs = [(node.name, node.meta["val"]) for node in partition.graph.find_nodes(op="placeholder")]
    outputs = list(partition.graph.output_node().meta["val"])
    signature = str(EngineSignature.from_values([value for _, value in inputs], outputs))
    built = _build(name, backend, export(partition), options)
    container = pack_engine(built, name=name, backend=backend.name, signature=signature)
    del built
    engine = _as_tensor(container)
    keep_source(engine, partition)
    return make_engine_body(name, engine, signature, inputs, outputs)


def _build(
    name: str, backend: Backend, program: torch.export.ExportedProgram, options: Mapping[str, Any]
) -> BuiltEngine:
    try:
        return backend.build(program, options)
    except EngineBuildFailed as error:
        raise _refusal(name, backend, error.found, error.operators) from error
    except IntarsiaError:
        # A library that is missing, an option that is wrong: the caller's to mend, whatever the partition.
        raise
    except Exception as error:
        raise _refusal(name, backend, f"{type(error).__name__}: {first_line(error)}") from error


def _refusal(name: str, backend: Backend, found: str, operators: Sequence[str] = ()) -> EngineBuildFailed:
    return EngineBuildFailed(
        f"partition {name!r}",
        found=f"a refusal by {backend.name}: {found}",
        expected="an engine",
        fix="Leave the operator in torch with torch_executed_ops, or what cannot be built with fallback=True.",
        operators=operators,
    )


def _as_tensor(container: bytes) -> torch.Tensor:
    engine = torch.empty(len(container), dtype=torch.uint8)
    engine.numpy()[:] = np.frombuffer(container, np.uint8)
    return engine


def make_engine_body(
    name: str,
    engine: torch.Tensor,
    signature: str,
    inputs: Sequence[tuple[str, Any]],
    outputs: Sequence[torch.Tensor],
) -> torch.fx.GraphModule:
    """The graph module that runs an engine in a partition's place.

    The engine is an attribute of the partition's name, under which the exported program knows it too.

    Args:
        name: Name of the partition.
        engine: uint8[n]: the engine's container.
        signature: Text of the engine's signature.
        inputs: Name and fake tensor of each input.
        outputs: Fake tensor of each output, contiguous.
    """
    graph = torch.fx.Graph()
    arguments = [graph.placeholder(argument) for argument, _ in inputs]
    for node, (_, value) in zip(arguments, inputs, strict=True):
        node.meta["val"] = value
    attribute = graph.get_attr(name)
    attribute.meta["val"] = outputs[0].fake_mode.from_tensor(engine, static_shapes=True)  # type: ignore[attr-defined]
    call = graph.call_function(torch.ops.intarsia.run_engine.default, (arguments, attribute, signature))
    call.meta["val"] = list(outputs)
    results = [graph.call_function(getitem, (call, i)) for i in range(len(outputs))]
    for node, value in zip(results, outputs, strict=True):
        node.meta["val"] = value
    graph.output(tuple(results)).meta["val"] = tuple(outputs)
    body = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph(), name)
    setattr(body, name, engine)
    body.graph = graph
    return body
