"""Build an engine for each partition of a hybrid."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import getitem
from typing import Any

import numpy as np
import torch

import intarsia.core.op  # noqa: F401  registers the operator that the bodies call
from intarsia.core.backend import Backend, BuiltEngine
from intarsia.core.build_failure import BuildFailure
from intarsia.core.container import pack_engine
from intarsia.core.coverage import Coverage, record_coverage
from intarsia.core.signature import EngineSignature
from intarsia.core.torch_source import keep_source
from intarsia.engines.built import check_built
from intarsia.engines.equal import key_of_partition, renamed
from intarsia.errors import EngineBuildFailed, IntarsiaError, first_line

Progress = Callable[[int, int, str], None]
Export = Callable[[torch.fx.GraphModule], torch.export.ExportedProgram]


class EngineBuilder:
    """Builds engines for the partitions of hybrids; for equal ones once, in one hybrid or in several of one model.

    Args:
        backends: The backends, by their names.
        export: Makes a partition's exported program.
        options: Options of each backend, as `options_by_backend` returns them.
    """

    def __init__(
        self, backends: Mapping[str, Backend], export: Export, options: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._backends = backends
        self._export = export
        self._options = options
        self._engines: dict[Hashable, torch.Tensor] = {}

    def build(
        self,
        hybrid: torch.fx.GraphModule,
        plan: Coverage,
        *,
        method: str = "",
        fallback: bool,
        progress: Progress | None,
    ) -> list[BuildFailure]:
        """Build an engine for each partition that the plan names, and put it in the partition's place.

        Args:
            hybrid: Changed in place, partition by partition, so that what an engine has taken over can be freed.
                `coverage(hybrid)` finds the plan.
            plan: What `partition` found: its engines are the partitions to build.
            method: Name of the method that the hybrid is, for what failed.
            fallback: Whether a partition that cannot be built is told of; otherwise that is an error.
            progress: Called with how many engines are done, how many there are, and the name of the next one; at the
                end once more, with an empty name.

        Returns:
            What could not be built, and is still a torch partition.

        Raises:
            EngineBuildFailed: A backend refuses a partition, and `fallback` is false.
            EngineError: A backend builds what no container holds.
            IntarsiaError: As the backend raises it for what no fallback mends: its library is not installed, an
                option is wrong.
        """
        report = progress or _ignore
        failures: list[BuildFailure] = []
        backends = dict(plan.backends)
        calls = (str(node.target) for node in hybrid.graph.find_nodes(op="call_module"))
        names = [name for name in calls if name in backends]
        for done, name in enumerate(names):
            report(done, len(names), name)
            try:
                hybrid.set_submodule(name, self._build_body(name, hybrid.get_submodule(name), backends[name]))
            except _Refusal as refusal:
                failures.append(_failure(method, name, plan, refusal))
                if not fallback:
                    raise _as_error(failures[-1]) from refusal.__cause__
        report(len(names), len(names), "")
        record_coverage(hybrid, plan)
        return failures

    def _build_body(self, name: str, partition: torch.nn.Module, backend: str) -> torch.fx.GraphModule:
        assert isinstance(partition, torch.fx.GraphModule)  # noqa: S101  partition made it
        inputs = [(node.name, node.meta["val"]) for node in partition.graph.find_nodes(op="placeholder")]
        outputs = list(partition.graph.output_node().meta["val"])
        signature = str(EngineSignature.from_values([value for _, value in inputs], outputs))
        key = backend, key_of_partition(partition)
        if key in self._engines:
            container = renamed(self._engines[key], name)
        else:
            built = self._build(backend, self._export(partition))
            container = pack_engine(built, name=name, backend=backend, signature=signature)
            del built
        engine = self._engines[key] = _as_tensor(container)
        keep_source(engine, partition)
        return make_engine_body(name, engine, signature, inputs, outputs)

    def _build(self, backend: str, program: torch.export.ExportedProgram) -> BuiltEngine:
        try:
            built = self._backends[backend].build(program, self._options[backend])
        except EngineBuildFailed as error:
            raise _Refusal(_reason(error), error.operators) from error
        except IntarsiaError:
            # A library that is missing, an option that is wrong: the caller's to mend, whatever the partition.
            raise
        except Exception as error:
            raise _Refusal(f"{type(error).__name__}: {first_line(error)}") from error
        return check_built(backend, built)


class _Refusal(Exception):
    """What a backend says of a partition that it cannot build, and the operators to blame."""

    def __init__(self, reason: str, operators: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operators = operators


def _reason(error: EngineBuildFailed) -> str:
    """What a backend found, to be told after its name."""
    return error.found.removeprefix("that ").removeprefix("it refuses the program: ")


def _ignore(done: int, total: int, name: str) -> None:
    """Progress that nobody watches."""


def _failure(method: str, name: str, plan: Coverage, refusal: _Refusal) -> BuildFailure:
    placed = [placement for placement in plan.placements if placement.place == name]
    known = {placement.operator for placement in placed}
    operators = tuple(operator for operator in refusal.operators if operator in known)
    backend = dict(plan.backends)[name]
    return BuildFailure(method, name, backend, tuple(one.node for one in placed), operators, refusal.reason)


def _as_error(failure: BuildFailure) -> EngineBuildFailed:
    return EngineBuildFailed(
        f"partition {failure.partition!r}",
        found=f"a refusal by {failure.backend}: {failure.reason}",
        expected="an engine",
        fix="Leave the operator in torch, by torch_executed_ops or in the plan. Without a plan, fallback=True leaves "
        "there what cannot be built.",
        operators=failure.operators,
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
