"""What a program says of one input, and the check of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from intarsia.core.dim import Dim, Symbol, from_expression, render
from intarsia.core.signature import SHORT_NAMES
from intarsia.errors import ArgumentError
from intarsia.runtime.sizes import NamedSizes, Sizes

RESHAPE = "Pass a tensor of that shape."


class ConstantInput:
    """An input whose value was fixed when the program was exported: a number, a text, a flag or None."""

    dims: tuple[Dim | None, ...] = ()

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def check(self, value: Any, sizes: Sizes) -> None:  # noqa: ARG002 - one signature for every kind of input
        """Refuse any other value."""
        expected = self.value
        if type(value) is type(expected) and (value == expected or (value != value and expected != expected)):  # noqa: PLR0124 - NaN
            return
        raise ArgumentError(
            f"input {self.name!r}",
            found=describe_value(value),
            expected=f"{expected!r}, the value that the program was exported with",
            fix="Pass that value, or export the model again with the other one.",
        )

    def shape(self, value: Any) -> tuple[int, ...]:  # noqa: ARG002
        """The sizes that the input tells: none."""
        return ()

    def __str__(self) -> str:
        return f"{self.name}: {self.value!r}"


class AnyInput(ConstantInput):
    """An input that the program does not describe, such as a script object: the graph itself takes it or not."""

    def check(self, value: Any, sizes: Sizes) -> None:
        """Accept anything."""

    def __str__(self) -> str:
        return self.name


class IntegerInput:
    """An integer that may differ from call to call."""

    def __init__(self, name: str, dim: Dim | None, sizes: NamedSizes) -> None:
        self.name = name
        self.dims = (dim,)
        self._sizes = sizes
        if isinstance(dim, Symbol):
            sizes.note_source(dim.name, f"input {name!r}")

    def check(self, value: Any, sizes: Sizes) -> None:
        """Refuse what is no integer, or out of range; note what the integer's name stands for."""
        if type(value) is not int:
            raise ArgumentError(
                f"input {self.name!r}", found=describe_value(value), expected="an int", fix="Pass a Python integer."
            )
        dim = self.dims[0]
        if isinstance(dim, Symbol):
            self._sizes.bind(dim.name, value, sizes, f"input {self.name!r}", f"{value}")

    def shape(self, value: int) -> tuple[int, ...]:
        """The integer, as a size."""
        return (value,)

    def __str__(self) -> str:
        return f"{self.name}: int {render_dim(self.dims[0])}"


class TensorInput:
    """A tensor of one dtype, device and rank.

    Attributes:
        name: Name that the user knows it by.
        dims: Its sizes: numbers, named sizes, expressions, or None for one that cannot be checked.
    """

    def __init__(self, name: str, value: torch.Tensor, sizes: NamedSizes) -> None:
        self.name = name
        self.dims = tuple(read_dim(size) for size in value.shape)
        self._dtype = value.dtype
        self._device = value.device
        self._layout = value.layout
        self._rank = len(self.dims)
        self._sizes = sizes
        self._named = tuple((i, dim.name) for i, dim in enumerate(self.dims) if isinstance(dim, Symbol))
        self._fixed = tuple((i, dim) for i, dim in enumerate(self.dims) if isinstance(dim, int))
        self._shape = self.dims if len(self._fixed) == self._rank else None
        for i, symbol in self._named:
            sizes.note_source(symbol, f"dimension {i} of input {name!r}")

    def check(self, value: Any, sizes: Sizes) -> None:
        """Refuse what does not fit; note what the named sizes stand for."""
        if not isinstance(value, torch.Tensor):
            raise self._misfit(describe_value(value), f"a tensor {self.type_text()}", "Pass a tensor.")
        if value.dtype is not self._dtype:
            raise self._misfit(
                f"dtype {dtype_name(value.dtype)}", dtype_name(self._dtype), f"Convert it with .to({self._dtype})."
            )
        if value.device != self._device or value.layout is not self._layout or value.is_nested:
            self._check_memory(value)
        shape = value.shape
        if shape == self._shape:
            return
        if len(shape) != self._rank:
            raise self._misfit(
                f"{len(shape)} dimensions (shape {list(shape)})", f"{self._rank}, as in {self.type_text()}", RESHAPE
            )
        for i, size in self._fixed:
            if shape[i] != size:
                raise self._misfit(f"size {shape[i]} in dimension {i} (shape {list(shape)})", f"{size}", RESHAPE)
        for i, name in self._named:
            if sizes.get(name) != shape[i]:
                found = f"size {shape[i]} in dimension {i} (shape {list(shape)})"
                self._sizes.bind(name, shape[i], sizes, f"input {self.name!r}", found)

    def shape(self, value: torch.Tensor) -> Sequence[int]:
        """Shape of a tensor that was checked."""
        return value.shape

    def type_text(self) -> str:
        """Dtype and sizes, as in `f32[b, 4]`."""
        return tensor_text(self._dtype, self.dims)

    def _check_memory(self, value: torch.Tensor) -> None:
        if value.layout is not self._layout or value.is_nested:
            layout = "nested" if value.is_nested else str(value.layout)
            fix = "Convert it, with .to_dense() for instance."
            raise self._misfit(f"a {layout} tensor", f"a {self._layout} tensor", fix)
        found = value.device
        if found.type == self._device.type and None in (found.index, self._device.index):
            return
        raise self._misfit(f"device {found}", str(self._device), f'Move it with .to("{self._device}").')

    def _misfit(self, found: str, expected: str, fix: str) -> ArgumentError:
        return ArgumentError(f"input {self.name!r}", found=found, expected=expected, fix=fix)

    def __str__(self) -> str:
        return f"{self.name}: {self.type_text()}"


Input: TypeAlias = ConstantInput | IntegerInput | TensorInput


def read_dim(size: int | torch.SymInt) -> Dim | None:
    """The dim that says the same as a size of a graph's metadata, or None when no dim can."""
    return size if isinstance(size, int) else from_expression(size.node.expr)


def render_dim(dim: Dim | None) -> str:
    """Text of a dim."""
    return "?" if dim is None else render(dim)


def dtype_name(dtype: torch.dtype) -> str:
    """Short name of a dtype."""
    return SHORT_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def describe_value(value: Any) -> str:
    """A value as messages show it: itself when it is short, else its type."""
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, int | float | str) else ""
    return f"{type(value).__name__} {text}" if 0 < len(text) < 40 else f"a value of type {type(value).__name__}"


def describe_type(value: Any) -> str:
    """Type of a graph's output: dtype and sizes of a node, or a constant itself."""
    if not isinstance(value, torch.fx.Node):
        return repr(value)
    meta = value.meta.get("val")
    if isinstance(meta, torch.Tensor):
        return tensor_text(meta.dtype, [read_dim(size) for size in meta.shape])
    return f"int {render_dim(read_dim(meta))}" if isinstance(meta, torch.SymInt) else "unknown"


def tensor_text(dtype: torch.dtype, dims: Sequence[Dim | None]) -> str:
    """Dtype and sizes, as in `f32[b, 4]`."""
    return f"{dtype_name(dtype)}[{', '.join(map(render_dim, dims))}]"
