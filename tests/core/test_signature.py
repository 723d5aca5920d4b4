"""Engine signatures: text, shapes, checks, and making them from fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from intarsia.core.signature import EngineSignature
from intarsia.errors import ArgumentError, EngineBuildFailed, EngineError


@pytest.mark.parametrize(
    "text",
    [
        "() -> ()",
        "(f32[]) -> (bf16[], b8[0])",
        "(f32[b, 128], i64[b]) -> (f32[b, 2*b + 1])",
        "(i8[s0, s1]) -> (f16[s0*s1, s0 - s1 - 1], u8[(s0 - 1)//2], i16[s0 % 3])",
        "(f64[a, b]) -> (c64[max(a, b + 1)], i32[min(a, 2*(b + 1))])",
        "(f32[2*b]) -> (f32[-1*b + 7])",
    ],
)
def test_text_survives_reading(text: str) -> None:
    signature = EngineSignature.parse(text)
    again = EngineSignature.parse(str(signature))
    assert again == signature
    assert str(again) == str(signature)


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        ("(f32[b, 128], i64[b]) -> (f32[b, 2*b + 1])", [(4, 128), (4,)], [(4, 9)]),
        ("(f32[2*b]) -> (f32[b])", [(6,)], [(3,)]),
        ("(f32[b + 1]) -> (f32[b])", [(1,)], [(0,)]),
        ("(f32[7 - 2*b]) -> (f32[b])", [(1,)], [(3,)]),
        ("(f32[a], f32[a + b]) -> (f32[b])", [(2,), (5,)], [(3,)]),
        ("(f32[a + b], f32[a]) -> (f32[b])", [(5,), (2,)], [(3,)]),
        ("(f32[a, b]) -> (f32[a*b, (a - b)//2, a % b, max(a, b), min(a, b, 3), a - (b - 1)])", [(7, 4)],
         [(28, 1, 3, 7, 3, 4)]),
        ("(f32[a]) -> (f32[2*a // 3, 2*(a // 3), -a + 9])", [(4,)], [(2, 2, 5)]),
    ],
)  # fmt: skip
def test_output_shapes(text: str, shapes: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> None:
    signature = EngineSignature.parse(text)
    assert signature.output_shapes(shapes) == expected
    assert EngineSignature.parse(str(signature)).output_shapes(shapes) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected '\\('"),
        ("(f32[b]) -> (f32[b]) x", "expected the end"),
        ("(f32[b]", "expected ','"),
        ("(f32[b/2]) -> ()", "found '/2\\]"),
        ("(q3[b]) -> ()", "the dtype 'q3'"),
        ("(f32[__import__('os')]) -> ()", "expected names, integers"),
        ("(f32[pow(2, 3)]) -> ()", "expected an operator"),
        ("(f32[b]) -> (f32[c])", "size 'c', which no input tells"),
        ("(f32[a*b]) -> (f32[a])", "size 'a', which no input tells"),
        ("(f32[" + "(" * 400 + "b" + ")" * 400 + "]) -> ()", "nested expressions"),
        ("(f32[" + "-" * 4000 + "b]) -> ()", "nested expressions"),
        ("(f32[" + "9" * 40 + "]) -> ()", "found '9999"),
        ("(f32[max()]) -> ()", "expected an operand"),
        (f"(f32[{'+'.join('b' * 102)}]) -> ()", "more than 100 operations in a size"),
        (f"(f32[max({', '.join('b' * 101)})]) -> ()", "more than 100 operations in a size"),
        (f"({' ' * 2**20}) -> ()", "at most 1048576"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        EngineSignature.parse(text)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(3, 2)], "found 1 tensors, expected 2"),
        ([torch.zeros(3, 2), torch.zeros(3)], r"engine input 1: found f32\[3\], expected i64\[b\]"),
        ([torch.zeros(3), torch.zeros(3, dtype=torch.int64)], r"engine input 0: found f32\[3\], expected f32\[b, 2\]"),
        ([torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)], "engine input 0: found f32"),
        ([torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64)], "engine input 1: .* with b = 3"),
        ([torch.zeros(3, 2).to_sparse(), torch.zeros(3, dtype=torch.int64)], "engine input 0: found a torch.sparse"),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[torch.Tensor], message: str) -> None:
    signature = EngineSignature.parse("(f32[b, 2], i64[b]) -> (f32[b])")
    signature.check([torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)])
    with pytest.raises(ArgumentError, match=message):
        signature.check(inputs)


@pytest.mark.parametrize("operator", ["//", "%"])
def test_a_division_by_zero_is_one_error(operator: str) -> None:
    signature = EngineSignature.parse(f"(f32[b], f32[c]) -> (f32[b {operator} (c - 7)])")
    with pytest.raises(ArgumentError, match=r"engine size b (//|%) \(c - 7\): found a division by zero"):
        signature.output_shapes([(4,), (7,)])


def test_sizes_that_follow_from_each_other_backwards_are_worked_out() -> None:
    count = 300
    sums = [f"f32[a{i}+a{i + 1}]" for i in range(count)]
    signature = EngineSignature.parse(f"({', '.join(sums)}, f32[a{count}]) -> (f32[a0])")
    assert signature.output_shapes([*[(10,)] * count, (4,)]) == [(4,)]
    assert signature.output_shapes([*[(10,)] * (count - 1), (11,), (4,)]) == [(3,)]


def test_a_derived_input_size_is_checked() -> None:
    signature = EngineSignature.parse("(f32[2*b]) -> (f32[b])")
    signature.check([torch.zeros(4)])
    with pytest.raises(ArgumentError, match="with b = 2"):
        signature.check([torch.zeros(5)])


class _Derived(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = torch.cat([x, y])
        padded = torch.nn.functional.pad(both, (1, 2))
        return both, x.reshape(-1), both[::2], padded, x.repeat(2, 3), torch.arange(x.shape[1] // 2)


def test_from_values_tells_the_shapes_of_a_real_program() -> None:
    module = _Derived()
    args = (torch.randn(6, 8), torch.randn(3, 8))
    columns = Dim("c", min=6, max=40)
    shapes = ({0: Dim.DYNAMIC, 1: columns}, {0: Dim.DYNAMIC, 1: columns})
    program = torch.export.export(module, args, dynamic_shapes=shapes).run_decompositions({})
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op != "output"}
    inputs = [values[name] for name in program.graph_signature.user_inputs]
    outputs = [values[name] for name in program.graph_signature.user_outputs]
    signature = EngineSignature.parse(str(EngineSignature.from_values(inputs, outputs)))
    for rows, more, width in [(6, 3, 9), (2, 9, 7), (7, 2, 40), (5, 5, 6)]:
        actual = module(torch.randn(rows, width), torch.randn(more, width))
        assert signature.output_shapes([(rows, width), (more, width)]) == [tuple(tensor.shape) for tensor in actual]


def _fake_program(module: torch.nn.Module, args: tuple[torch.Tensor, ...], shapes: object) -> dict[str, torch.Tensor]:
    program = torch.export.export(module, args, dynamic_shapes=shapes)
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


class _Flatten(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = x.reshape(-1)
        return flat, torch.cat([flat, flat])


def test_an_unsolvable_input_size_is_read_as_a_whole() -> None:
    values = _fake_program(_Flatten(), (torch.randn(3, 5),), ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    flat, twice = values["view" if "view" in values else "reshape"], values["cat"]
    signature = EngineSignature.from_values([flat], [twice, flat])
    assert str(signature) == "(f32[d0]) -> (f32[2*d0], f32[d0])"


def test_an_output_size_that_no_input_tells_is_refused() -> None:
    values = _fake_program(_Flatten(), (torch.randn(3, 5),), ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    flat = values["view" if "view" in values else "reshape"]
    with pytest.raises(EngineBuildFailed, match=r"engine output 0: .* no input tells"):
        EngineSignature.from_values([flat], [values["x"]])
