"""The adapter for Torch-TensorRT's modules: a graph that runs a module's engine in the module's place.

An engine of the C++ runtime is a script object, and stays one: the graph calls `tensorrt::execute_engine`, as
Torch-TensorRT's own exporter would have it. One of the Python runtime is an object of Python's, which ties a program to
that runtime: it becomes a container, which TensorRT's Python interface runs as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import FakeTensor, FakeTensorMode
from intarsia.core.foreign import EngineBody
from intarsia.core.op import RUN_ENGINE
from intarsia.engines.tensorrt.containers import make_signature, pack
from intarsia.engines.tensorrt.modules import ForeignEngine, find_engine
from intarsia.engines.tensorrt.shapes import describe_outputs
from intarsia.errors import HybridError

_aten = torch.ops.aten
_NUMBERS: Sequence[tuple[tuple[type, ...], torch.dtype]] = (
    ((bool, torch.SymBool), torch.bool),
    ((int, torch.SymInt), torch.int64),
    ((float, torch.SymFloat), torch.float32),
)


def adapt_module(module: Any, call: Node, inputs: Sequence[Any]) -> EngineBody | None:
    """The body for a call of a module of Torch-TensorRT; None for any other module.

    Args:
        module: What the call calls. Not modified.
        call: The call, as the hybrid has it.
        inputs: What describes its arguments: fake tensors, symbolic and plain numbers.

    Raises:
        HybridError: The module is of a version that is not known, or the call does not fit it.
    """
    engine = find_engine(module, str(call.target))
    if engine is None:
        return None
    if len(inputs) != len(engine.inputs) or call.kwargs:
        raise HybridError(
            engine.subject,
            found=f"a call with {len(inputs)} arguments",
            expected=f"{len(engine.inputs)}: {', '.join(engine.inputs)}",
            fix="Export the hybrid as torch_tensorrt.compile returned it.",
            node=call.name,
        )
    return _Body(engine, call, inputs).build()


class _Body:
    """A body under construction.

    Args:
        engine: What the module tells.
        call: The call.
        inputs: What describes its arguments.
    """

    def __init__(self, engine: ForeignEngine, call: Node, inputs: Sequence[Any]) -> None:
        self._engine = engine
        self._inputs = inputs
        self._name = f"{call.target}_engine".replace(".", "_")
        first = next((value for value in inputs if isinstance(value, FakeTensor)), None)
        self._mode = None if first is None else first.fake_mode
        self._device = engine.device or (torch.device("cuda") if first is None else first.device)
        self._tensors = [self._as_tensor(value) for value in inputs]
        self._visible = _visible_outputs(engine, call, self._tensors, self._mode)
        hidden = [self._tensors[engine.into[i]] for i in range(len(self._visible), len(engine.outputs))]
        self._outputs = [*map(self._as_tensor, self._visible), *hidden]
        self._graph = Graph()

    def build(self) -> EngineBody:
        placeholders = [self._place(name, value) for name, value in zip(self._engine.inputs, self._inputs, strict=True)]
        passed = [self._pass(node, described) for node, described in zip(placeholders, self._inputs, strict=True)]
        call, held = self._call(passed, self._graph.get_attr(self._name))
        call.meta["val"] = self._outputs
        elements = [self._element(call, i, described) for i, described in enumerate(self._outputs)]
        for output, into in self._engine.into.items():
            self._graph.call_function(_aten.copy_.default, (placeholders[into], elements[output]))
        returned = [self._return(node, said) for node, said in zip(elements, self._visible, strict=False)]
        self._graph.output(returned[0] if len(returned) == 1 else tuple(returned))
        body = GraphModule(torch.nn.Module(), Graph(), type(self._engine.module).__name__)
        setattr(body, self._name, held)
        body.graph = self._graph
        return EngineBody(body, call, self._engine.into)

    def _as_tensor(self, value: Any) -> torch.Tensor:
        """What describes the tensor that the engine takes or gives for a value: a number has no dimensions there."""
        if isinstance(value, torch.Tensor):
            return value
        dtype = _dtype(value, self._engine.subject)
        if self._mode is None:
            return torch.empty((), dtype=dtype, device="meta")
        with self._mode:
            return torch.empty((), dtype=dtype, device=self._device)

    def _place(self, name: str, described: Any) -> Node:
        safe = "".join(letter if letter.isalnum() else "_" for letter in name)
        placeholder = self._graph.placeholder(safe if safe.isidentifier() else f"input_{safe}")
        placeholder.meta["val"] = described
        return placeholder

    def _pass(self, placeholder: Node, described: Any) -> Node:
        """What the engine takes for an argument: a tensor where it runs, as the module's `forward` makes it."""
        if not isinstance(described, torch.Tensor):
            options: Any = {"dtype": _dtype(described, self._engine.subject), "device": self._device}
            return self._graph.call_function(_aten.scalar_tensor.default, (placeholder,), options)
        if described.device.type != self._device.type:
            return self._graph.call_function(_aten._to_copy.default, (placeholder,), {"device": self._device})  # noqa: SLF001 - an operator's name
        return placeholder

    def _call(self, passed: list[Node], held: Node) -> tuple[Node, Any]:
        """The call of the engine, and what holds the engine."""
        engine = self._engine
        if engine.script is not None:
            return self._graph.call_function(_execute_engine(engine.subject), (passed, held)), engine.script
        signature = make_signature(self._tensors, self._outputs, engine.into, engine.subject)
        container = pack(engine.read(), signature, engine.subject)
        return self._graph.call_function(RUN_ENGINE, (passed, held, signature)), container

    def _element(self, call: Node, position: int, described: torch.Tensor) -> Node:
        element = self._graph.call_function(getitem, (call, position))
        element.meta["val"] = described
        return element

    def _return(self, element: Node, said: Any) -> Node:
        """What the module returns for an output: a number where the hybrid had one."""
        if isinstance(said, torch.Tensor):
            return element
        number = self._graph.call_function(_aten.item.default, (element,))
        number.meta["val"] = said
        return number


def _visible_outputs(
    engine: ForeignEngine, call: Node, inputs: Sequence[torch.Tensor], mode: FakeTensorMode | None
) -> list[Any]:
    """What describes the outputs that the module returns.

    Torch-TensorRT appends outputs that the engine writes into inputs, which the module's `forward` leaves out.
    """
    said = call.meta.get("val")
    said = [said] if isinstance(said, torch.Tensor) else said
    counts = {len(told) for told in (said, engine.shapes and engine.shapes["outputs"]) if told is not None}
    count = counts.pop() if counts else len(engine.outputs)
    hidden = range(count, len(engine.outputs))
    if counts or not 0 < count <= len(engine.outputs) or any(i not in engine.into for i in hidden):
        raise HybridError(
            engine.subject,
            found=f"outputs of the engine ({', '.join(engine.outputs)}) that are not the {count} of the module",
            expected="the same, but for those that the engine writes into its inputs",
            fix="Export the hybrid as torch_tensorrt.compile returned it.",
            node=call.name,
        )
    if said is not None and all(one.fake_mode is mode for one in said if isinstance(one, FakeTensor)):
        return list(said)
    if engine.shapes is None or mode is None:
        raise HybridError(
            engine.subject,
            found="neither metadata of its call that fits, nor sizes that its module kept",
            expected="one of them",
            fix="Export the hybrid as torch_tensorrt.compile returned it.",
            node=call.name,
        )
    return list(describe_outputs(engine.shapes, inputs, engine.subject))


def _dtype(value: Any, subject: str) -> torch.dtype:
    for kinds, dtype in _NUMBERS:
        if isinstance(value, kinds):
            return dtype
    raise HybridError(
        subject,
        found=f"an argument of type {type(value).__name__}",
        expected="tensors and numbers",
        fix="Export the hybrid as torch_tensorrt.compile returned it.",
    )


def _execute_engine(subject: str) -> Callable[..., Any]:
    try:
        operator: Callable[..., Any] = torch.ops.tensorrt.execute_engine.default
    except AttributeError as error:
        raise HybridError(
            subject,
            found="no operator tensorrt::execute_engine",
            expected="the one that the C++ runtime of Torch-TensorRT registers",
            fix="Import torch_tensorrt first.",
        ) from error
    return operator
