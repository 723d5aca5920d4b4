"""Programs as the build loop makes them of partitions, their engines, and the comparison with torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from intarsia.core.backend import Backend, BuiltEngine, Engine
from intarsia.core.container import pack_engine
from intarsia.core.signature import EngineSignature

RUN = torch.ops.intarsia.run_engine.default


class Calls(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def export(module: torch.nn.Module, args: Sequence[torch.Tensor], dims: Any = None) -> torch.export.ExportedProgram:
    """A partition, as the build loop makes it: an exported program with all its weights."""
    if isinstance(module, Calls) and dims is not None:
        dims = (dims,)
    with torch.no_grad(), warnings.catch_warnings():
        # torch warns about a class of its own.
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(module, tuple(args), dynamic_shapes=dims).run_decompositions({})
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    return program


def operators_of(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Calls of a program that give tensors."""
    operators = [node for node in program.graph.nodes if node.op == "call_function"]
    return [node for node in operators if isinstance(node.meta["val"], torch.Tensor | tuple | list)]


def reasons_against(backend: Backend, program: torch.export.ExportedProgram) -> list[str]:
    """Why the backend leaves operators of the program to torch; empty when it takes all."""
    reasons = [backend.supports(node) for node in operators_of(program)]
    return [reason for reason in reasons if reason is not None]


def signature_of(program: torch.export.ExportedProgram) -> str:
    """The signature that the build loop gives a partition."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature
    inputs = [values[name] for name in names.user_inputs]
    return str(EngineSignature.from_values(inputs, [values[name] for name in names.user_outputs]))


def constant_of(built: BuiltEngine, backend: str, signature: str) -> torch.Tensor:
    """An engine as the constant that a graph holds."""
    data = pack_engine(built, name="engine_7", backend=backend, signature=signature)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def load_built(backend: Backend, built: BuiltEngine) -> Engine:
    """The engine of what a backend has built: of its payload, or of its source where there is none."""
    if built.payload is not None:
        return backend.load(memoryview(built.payload), built.options)
    assert built.source is not None, "neither a payload nor a source"
    return backend.rebuild(memoryview(built.source), built.options)


def assert_same(
    actual: Sequence[torch.Tensor],
    expected: Any,
    tolerance: float = 0.0,
    *,
    signs: bool = False,
    numbers: Sequence[int] | None = None,
) -> None:
    """Same number of outputs, shapes, dtypes, values; contiguous.

    Args:
        actual: What an engine gave.
        expected: What torch gave: a tensor, or several.
        tolerance: Relative and absolute.
        signs: Whether zeros have the same signs.
        numbers: What to call the outputs in messages; 0, 1, ... without it.
    """
    wanted = list(expected) if isinstance(expected, tuple | list) else [expected]
    assert [(t.shape, t.dtype) for t in actual] == [(t.shape, t.dtype) for t in wanted]
    assert all(tensor.is_contiguous() for tensor in actual)
    for i, got, want in zip(numbers or range(len(wanted)), actual, wanted, strict=True):
        if not torch.equal(got, want):

            def told(message: str, i: int = i) -> str:
                return f"output {i}: {message}"

            torch.testing.assert_close(got, want.contiguous(), rtol=tolerance, atol=tolerance, equal_nan=True, msg=told)
        if signs and want.is_floating_point() and want.dtype.itemsize > 1:
            zeros = want == 0
            assert torch.equal(got[zeros].signbit(), want[zeros].signbit()), f"output {i}: zeros of other signs"
