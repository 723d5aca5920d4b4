"""What an engine takes and gives: dtypes and shapes, as text that a person can read in a printed graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count

import sympy
import torch

from intarsia.core.dim import Dim, Size, Solution, evaluate, from_expression, rename, render, solve, symbol_names
from intarsia.core.grammar import TypeText, read_signature
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError

SHORT_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "b8",
}
DTYPES = {name: dtype for dtype, name in SHORT_NAMES.items()}
"""The dtype of each short name."""


@dataclass(frozen=True)
class TensorType:
    """Dtype and dims of one input or output.

    Example:
        >>> from intarsia.core.dim import Symbol, rename
        >>> str(TensorType(torch.float32, (Symbol("b"), 8)))
        'f32[b, 8]'
    """

    dtype: torch.dtype
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{SHORT_NAMES[self.dtype]}[{', '.join(map(render, self.dims))}]"


@dataclass(frozen=True)
class EngineSignature:
    """Dtypes and shapes of an engine's inputs and outputs.

    Attributes:
        inputs: Types of the inputs.
        outputs: Types of the outputs.
        into: For each output that the engine writes into the memory of an input: its position, and the input's.

    Example:
        >>> signature = EngineSignature.parse("(f32[b, 128], i64[b]) -> (f32[b, 2*b + 1])")
        >>> signature.output_shapes([(4, 128), (4,)])
        [(4, 9)]
        >>> dict(EngineSignature.parse("(f32[8], f32[4, 8]) -> (f32[8], f32[4, 8] into 1)").into)
        {1: 1}
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    into: Mapping[int, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        outputs = [
            f"{output} into {self.into[i]}" if i in self.into else f"{output}" for i, output in enumerate(self.outputs)
        ]
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(outputs)})"

    @classmethod
    def parse(cls, text: str) -> EngineSignature:
        """The signature that `str()` wrote.

        Raises:
            EngineError: The text does not follow the grammar, names an unknown dtype, has an output size that
                no input tells, or an output that goes into no input of its type, or into another output's.
        """
        return _parse(text)

    @classmethod
    def from_values(cls, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> EngineSignature:
        """The signature of fake tensors: the `meta["val"]` of a partition's placeholders and outputs.

        An input size that is an expression which cannot be solved for its symbols (`s0*s1`) becomes a named size
        of its own, and the output sizes are told in terms of it.

        Raises:
            EngineBuildFailed: A dtype has no short name, an output size is an expression that the signature cannot
                write, or depends on a symbol that no input size tells.
        """
        return _from_values(inputs, outputs)

    @cached_property
    def canonical(self) -> str:
        """The text with named sizes called n0, n1, ...: equal for signatures that differ in these names alone.

        Example:
            >>> EngineSignature.parse("(f32[s31, 8]) -> (f32[2*s31])").canonical
            '(f32[n0, 8]) -> (f32[2*n0])'
        """
        names: dict[str, str] = {}
        inputs, outputs = (
            tuple(TensorType(tensor.dtype, tuple(rename(dim, names) for dim in tensor.dims)) for tensor in tensors)
            for tensors in (self.inputs, self.outputs)
        )
        return str(EngineSignature(inputs, outputs, self.into))

    def output_shapes(self, shapes: Sequence[Sequence[Size]]) -> list[tuple[Size, ...]]:
        """Shapes of the outputs for given input shapes (integers or symbolic integers, none of which is compared)."""
        sizes = self._sizes(shapes)
        return [tuple(evaluate(dim, sizes) for dim in output.dims) for output in self.outputs]

    def check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Refuse tensors that are not of this signature's dtypes, ranks and sizes.

        Raises:
            ArgumentError: Names the first engine input that does not fit.
        """
        if len(inputs) != len(self.inputs):
            raise ArgumentError(
                "engine inputs",
                found=f"{len(inputs)} tensors",
                expected=f"{len(self.inputs)}, as in {self}",
                fix="Pass one tensor for each input.",
            )
        for i, (tensor, wanted) in enumerate(zip(inputs, self.inputs, strict=True)):
            if tensor.dtype is not wanted.dtype or tensor.dim() != len(wanted.dims):
                raise _misfit(i, tensor, wanted, {})
            if tensor.layout is not torch.strided:
                raise ArgumentError(
                    f"engine input {i}",
                    found=f"a {tensor.layout} tensor",
                    expected="a dense one",
                    fix="Pass tensor.to_dense().",
                )
        sizes: dict[str, int] = self._sizes([tensor.shape for tensor in inputs])  # type: ignore[assignment]
        for i, (tensor, wanted) in enumerate(zip(inputs, self.inputs, strict=True)):
            for size, dim in zip(tensor.shape, wanted.dims, strict=True):
                if size != evaluate(dim, sizes):
                    raise _misfit(i, tensor, wanted, sizes)

    def unknown_sizes(self, output: TensorType) -> list[str]:
        """Named sizes of an output that no input tells."""
        return [name for dim in output.dims for name in symbol_names(dim) if name not in self._solutions]

    @cached_property
    def _solutions(self) -> dict[str, Solution]:
        return solve([tensor.dims for tensor in self.inputs])

    def _sizes(self, shapes: Sequence[Sequence[Size]]) -> dict[str, Size]:
        sizes: dict[str, Size] = {}
        for name, solution in self._solutions.items():
            sizes[name] = solution.value(shapes, sizes)
        return sizes


@lru_cache(maxsize=1024)
def _parse(text: str) -> EngineSignature:
    inputs, outputs = read_signature(text)
    signature = EngineSignature(
        tuple(_tensor_type(text, tensor) for tensor in inputs),
        tuple(_tensor_type(text, tensor) for tensor, _ in outputs),
        {i: into for i, (_, into) in enumerate(outputs) if into is not None},
    )
    _check_into(text, signature)
    for i, output in enumerate(signature.outputs):
        unknown = signature.unknown_sizes(output)
        if unknown:
            raise EngineError(
                f"engine signature {text!r}",
                found=f"output {i} with the size {unknown[0]!r}, which no input tells",
                expected="sizes that follow from the inputs'",
                fix="Write the output's sizes in terms of the input sizes.",
            )
    return signature


def _check_into(text: str, signature: EngineSignature) -> None:
    taken = list(signature.into.values())
    for i, k in signature.into.items():
        if k >= len(signature.inputs) or signature.inputs[k] != signature.outputs[i] or taken.count(k) > 1:
            raise EngineError(
                f"engine signature {text!r}",
                found=f"output {i}, a {signature.outputs[i]}, into input {k}",
                expected="an input of the same type, that no other output goes into",
                fix="Name the input whose memory the engine writes.",
            )


def _tensor_type(text: str, tensor: TypeText) -> TensorType:
    name, dims = tensor
    if name not in DTYPES:
        raise EngineError(
            f"engine signature {text!r}",
            found=f"the dtype {name!r}",
            expected=f"one of {', '.join(DTYPES)}",
            fix="Use torch's short form of the dtype.",
        )
    return TensorType(DTYPES[name], dims)


def _from_values(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> EngineSignature:
    shapes = [_expressions(value) for value in inputs]
    named = _name_unsolvable(shapes)
    signature = EngineSignature(
        tuple(
            _describe(f"engine input {i}", value.dtype, [named.get(size, size) for size in shape])
            for i, (value, shape) in enumerate(zip(inputs, shapes, strict=True))
        ),
        tuple(
            _describe(f"engine output {i}", value.dtype, [size.subs(named) for size in _expressions(value)])
            for i, value in enumerate(outputs)
        ),
    )
    for i, output in enumerate(signature.outputs):
        unknown = signature.unknown_sizes(output)
        if unknown:
            raise EngineBuildFailed(
                f"engine output {i}",
                found=f"the type {output}, whose {unknown[0]!r} no input tells",
                expected="sizes that follow from the inputs'",
                fix="Keep the operator that makes this size in torch.",
            )
    return signature


def _expressions(value: torch.Tensor) -> list[sympy.Expr]:
    sizes: Sequence[Size] = value.shape
    return [size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in sizes]


def _name_unsolvable(shapes: list[list[sympy.Expr]]) -> dict[sympy.Expr, sympy.Symbol]:
    """A new symbol for each input size whose own symbols no input size tells, so that it is read as a whole."""
    sizes = [size for shape in shapes for size in shape]
    known = solve([tuple(from_expression(size) or 0 for size in shape) for shape in shapes]).keys()
    taken = {str(symbol) for size in sizes for symbol in size.free_symbols}
    names = (name for name in map("d{}".format, count()) if name not in taken)
    named: dict[sympy.Expr, sympy.Symbol] = {}
    for size in sizes:
        told = {str(symbol) for symbol in size.free_symbols} <= known
        if size not in named and not (told and from_expression(size) is not None):
            named[size] = sympy.Symbol(next(names), integer=True, nonnegative=True)
    return named


def _describe(subject: str, dtype: torch.dtype, sizes: Sequence[sympy.Expr]) -> TensorType:
    if dtype not in SHORT_NAMES:
        raise EngineBuildFailed(
            subject,
            found=f"the dtype {dtype}",
            expected=f"one of {', '.join(map(str, SHORT_NAMES))}",
            fix="Keep the operators of this dtype in torch.",
        )
    return TensorType(dtype, tuple(_dim(subject, size) for size in sizes))


def _dim(subject: str, size: sympy.Expr) -> Dim:
    dim = from_expression(size)
    if dim is None:
        raise EngineBuildFailed(
            subject,
            found=f"the size {size}",
            expected="integers, named sizes, + - * // % min and max",
            fix="Keep the operator that makes this size in torch.",
        )
    return dim


def _misfit(i: int, tensor: torch.Tensor, wanted: TensorType, sizes: Mapping[str, Size]) -> ArgumentError:
    found = SHORT_NAMES.get(tensor.dtype, str(tensor.dtype))
    told = ", ".join(f"{name} = {sizes[name]}" for dim in wanted.dims for name in symbol_names(dim) if name in sizes)
    return ArgumentError(
        f"engine input {i}",
        found=f"{found}{list(tensor.shape)}",
        expected=f"{wanted}" + (f" with {told}" if told else ""),
        fix="Pass a tensor of the dtype and shape that the engine was built for.",
    )
