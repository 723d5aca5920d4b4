"""The graph of a program as lines of text that do not depend on how its nodes and sizes happen to be numbered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from intarsia.core.op import RUN_ENGINE
from intarsia.report.program import value_type

_SYMBOL = re.compile(r"\b([su])\d+\b")


class Symbols:
    """New names for sizes, by the order in which they are met.

    Example:
        >>> symbols = Symbols()
        >>> symbols.rename("f32[s77, s3]"), symbols.rename("i64[s3 + u5]")
        ('f32[s0, s1]', 'i64[s1 + u0]')
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def rename(self, text: str) -> str:
        """A text with the new names of the sizes in it."""
        return _SYMBOL.sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        kind = found[1]
        count = sum(name[0] == kind for name in self._known)
        return self._known.setdefault(found[0], f"{kind}{count}")


def graph_lines(program: ExportedProgram, symbols: Symbols) -> list[str]:
    """A line for each operator in order, those of bodies indented, and one for what is returned and written.

    Values are numbered in order, state has its name in the model, and inputs are numbered.

    Args:
        program: Not modified.
        symbols: New names of the sizes.

    Example:
        >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
        >>> graph_lines(program, Symbols())
        ['%0 = aten.relu.default(input 0): f32[2]', 'return %0']
    """
    names: dict[torch.fx.Node, str] = {}
    inputs = 0
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.find_nodes(op="placeholder"):
        target = specs[node.name].target
        names[node] = f"input {inputs}" if target is None else repr(target)
        inputs += target is None
    lines = list(_Lines(names, symbols).of_body(program.graph_module))
    writes = [
        "" if spec.kind is OutputKind.USER_OUTPUT else f"{spec.kind.name.lower().replace('_', ' ')} {spec.target!r} = "
        for spec in program.graph_signature.output_specs
    ]
    outputs: Any = program.graph.output_node().args[0]
    returned = [write + _argument(value, names) for write, value in zip(writes, outputs, strict=True)]
    return [*lines, f"return {', '.join(returned)}"]


class _Lines:
    """Lines of a graph and of the bodies in it."""

    def __init__(self, names: dict[torch.fx.Node, str], symbols: Symbols) -> None:
        self._names = names
        self._symbols = symbols
        self._values = 0
        self._bodies = 0

    def of_body(self, module: torch.fx.GraphModule) -> Iterator[str]:
        """Everything but what it returns."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                yield from self._attribute(module, node)
            elif node.op == "call_function":
                yield self._call(node)

    def _attribute(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> Iterator[str]:
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.fx.GraphModule):
            self._names[node] = repr(node.target)
            return
        name = self._names[node] = f"body {self._bodies}"
        self._bodies += 1
        arguments = value.graph.find_nodes(op="placeholder")
        self._names.update({argument: f"{name} argument {index}" for index, argument in enumerate(arguments)})
        yield f"{name}:"
        yield from (f"  {line}" for line in self.of_body(value))
        yield f"  return {_argument(value.graph.output_node().args[0], self._names)}"

    def _call(self, node: torch.fx.Node) -> str:
        texts = [_argument(value, self._names) for value in node.args]
        texts += [f"{key}={_argument(value, self._names)}" for key, value in sorted(node.kwargs.items())]
        name = self._names[node] = f"%{self._values}"
        self._values += 1
        call = f"{operator_name(node.target)}({', '.join(texts)})"
        if node.target is RUN_ENGINE:
            call = self._symbols.rename(call)
        return f"{name} = {call}: {self._symbols.rename(_types(node.meta.get('val')))}"


def operator_name(target: Any) -> str:
    """What a node calls, as people write it."""
    return str(target) if hasattr(target, "namespace") else f"{target.__module__.lstrip('_')}.{target.__name__}"


def _types(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_types, value))})"
    return value_type(value)


def _argument(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(_argument(part, names) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_argument(part, names)}' for key, part in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_argument((value.start, value.stop, value.step), names)}"
    return operator_name(value) if callable(value) and hasattr(value, "__name__") else repr(value)
