"""A decoder with int4 experts: prefill and decode of one model in one file, with one state.

python examples/moe_decode.py                    everything
python examples/moe_decode.py --answer FILE OUT  only the last part: a process that has nothing but the file
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import intarsia

FILE, ANSWERS = Path("moe.pt2"), Path("answers.pt")
VOCABULARY, WIDTH, HIDDEN, LAYERS, LENGTH = 512, 512, 1024, 2, 128
HEADS, KEY_HEADS, HEAD_WIDTH = 8, 2, 64
EXPERTS, CHOSEN, GROUP = 8, 2, 32
PROMPT, STEPS = 16, 64

EXAMPLES = {
    "prefill": (torch.zeros(1, PROMPT, dtype=torch.int64),),
    "decode": (torch.tensor([[0]]), torch.tensor([PROMPT])),
}
DYNAMIC_SHAPES = {"prefill": ({1: Dim("length", min=2, max=LENGTH)},), "decode": None}
# Prompts after which the decoder never wavers between two tokens: rounding then changes none.
PROMPTS = [torch.randint(VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(seed)) for seed in (86, 237)]


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights f32[rows, columns] as packed int4, with a scale for each group of columns (and no zero point)."""
    groups = weight.view(len(weight), -1, GROUP)
    scales = groups.abs().amax(2, keepdim=True) / 7
    numbers = (groups / scales).round().clamp(-8, 7).add(8).flatten(1).to(torch.int32)
    scales_and_zeros = torch.cat([scales, torch.zeros_like(scales)], 2).transpose(0, 1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)  # noqa: SLF001 - torch's only name for it
    return packed, scales_and_zeros.contiguous().to(torch.bfloat16)


class Int4Layers(nn.Module):
    """One linear layer for each expert."""

    packed: Tensor
    scales: Tensor

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        layers = [quantize(torch.randn(rows, columns) / columns**0.5) for _ in range(EXPERTS)]
        packed, scales = (torch.stack(parts) for parts in zip(*layers, strict=True))
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor, expert: int | Tensor) -> Tensor:
        packed, scales = self.packed[expert], self.scales[expert]
        x = x.to(torch.bfloat16)  # The operator takes several times as long for f32.
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales)  # noqa: SLF001 - likewise
        return y.float()


class Experts(nn.Module):
    """Eight networks, of which each token goes through the two that the router likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up, self.down = Int4Layers(WIDTH, 2 * HIDDEN), Int4Layers(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.router(x).topk(CHOSEN)
        weights = best.softmax(-1)
        if x.shape[0] == 1:  # One token reads the weights of two; a prompt, of all, and what was not chosen counts 0.
            parts = [weights[:, i, None] * self.expert(x, chosen[0, i]) for i in range(CHOSEN)]
        else:
            every = torch.zeros(x.shape[0], EXPERTS).scatter(1, chosen, weights)
            parts = [every[:, i, None] * self.expert(x, i) for i in range(EXPERTS)]
        return torch.stack(parts).sum(0)

    def expert(self, x: Tensor, expert: int | Tensor) -> Tensor:
        gate, value = self.up(x, expert).chunk(2, -1)
        y: Tensor = self.down(functional.silu(gate) * value, expert)
        return y


class Attention(nn.Module):
    """Groups of queries share keys; keys and values are kept in caches, by position."""

    keys: Tensor
    values: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.sizes = [HEADS * HEAD_WIDTH, KEY_HEADS * HEAD_WIDTH, KEY_HEADS * HEAD_WIDTH]
        self.inward, self.outward = nn.Linear(WIDTH, sum(self.sizes), bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, KEY_HEADS, length, HEAD_WIDTH), persistent=False)
        self.register_buffer("values", torch.zeros(1, KEY_HEADS, length, HEAD_WIDTH), persistent=False)

    def forward(self, x: Tensor, position: Tensor, angles: Tensor) -> Tensor:
        parts = self.inward(x).split(self.sizes, -1)
        queries, keys, values = (part.unflatten(1, (-1, HEAD_WIDTH)).transpose(0, 1)[None] for part in parts)
        self.keys.index_copy_(2, position, rotate(keys, angles))
        self.values.index_copy_(2, position, values)
        seen = torch.arange(self.keys.shape[2]) <= position[:, None]
        read = functional.scaled_dot_product_attention(
            rotate(queries, angles), self.keys, self.values, seen, enable_gqa=True
        )
        y: Tensor = self.outward(read[0].transpose(0, 1).flatten(1))
        return y


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions: the two halves of each head are coordinates, turned by angles f32[s, width / 2]."""
    one, other = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


class Layer(nn.Module):
    """Attention, then experts."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.attention, self.experts = Attention(length), Experts()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, position: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), position, angles)
        y: Tensor = x + self.experts(self.second(x))
        return y


class Decoder(nn.Module):
    """Two entry points: a prompt, then one token after the other. Both give the logits f32[1, v] of what comes next."""

    frequencies: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.layers, self.norm = nn.ModuleList(Layer(length) for _ in range(LAYERS)), nn.RMSNorm(WIDTH)
        self.register_buffer("frequencies", 1e4 ** -torch.linspace(0, 1, HEAD_WIDTH // 2), persistent=False)

    def prefill(self, tokens: Tensor) -> Tensor:
        return self.run(tokens, torch.arange(tokens.shape[1]))

    def decode(self, token: Tensor, position: Tensor) -> Tensor:
        return self.run(token, position)

    def run(self, tokens: Tensor, position: Tensor) -> Tensor:
        x, angles = self.tokens(tokens[0]), position[:, None] * self.frequencies
        for layer in self.layers:
            x = layer(x, position, angles)
        logits: Tensor = self.head(self.norm(x[-1:]))
        return logits


def build_decoder(length: int = LENGTH) -> Decoder:
    torch.manual_seed(0)
    return Decoder(length).eval()


def answer(model: Any, prompt: Tensor) -> Iterator[Tensor]:
    """Logits f32[1, v] after the prompt and after each step, of whatever has `prefill` and `decode`."""
    logits = model.prefill(prompt)
    yield logits
    for position in range(PROMPT, PROMPT + STEPS):
        logits = model.decode(logits.argmax(-1, keepdim=True), torch.tensor([position]))
        yield logits


def answer_each(model: Any) -> Tensor:
    """The answers to both prompts, one after the other: f32[2, 1 + steps, v]."""
    with torch.no_grad():
        return torch.stack([torch.cat(list(answer(model, prompt))) for prompt in PROMPTS])


def answer_in_turns(model: Any) -> Tensor:
    """The same, a step of one and a step of the other, each in a session of its own."""
    steps = zip(*(answer(model.session(), prompt) for prompt in PROMPTS), strict=True)
    return torch.stack([torch.cat(logits) for logits in steps], 1)


def answer_from_file(file: Path, answers: Path) -> None:
    """What the new process does."""
    model = intarsia.load(file)
    torch.save((answer_each(model), answer_in_turns(model)), answers)


def same(what: str, found: Tensor, expected: Tensor) -> bool:
    """Print how many steps have the same logits, to the bit; whether all have."""
    equal = (found == expected).all(-1)
    print(f"{what}: {equal.sum()} of {equal.numel()} steps equal to the bit")
    return bool(equal.all())


def near(what: str, found: Tensor, expected: Tensor) -> bool:
    """Print how many steps choose the same token, and the largest error of a logit; whether all do."""
    equal = found.argmax(-1) == expected.argmax(-1)
    first, second = expected.topk(2).values.unbind(-1)
    print(f"{what}: {equal.sum()} of {equal.numel()} steps choose the same token,", end=" ")
    print(f"largest logit error {(found - expected).abs().max():.1e}, closest choice {(first - second).min():.1e}")
    return bool(equal.all())


def main() -> None:
    model = build_decoder()
    hybrids = intarsia.compile(
        {"prefill": model.prefill, "decode": model.decode}, EXAMPLES, dynamic_shapes=DYNAMIC_SHAPES
    )
    print(intarsia.coverage(hybrids["decode"]))
    programs = intarsia.export(hybrids)
    intarsia.save(programs, FILE)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
    subprocess.run([sys.executable, __file__, "--answer", FILE, ANSWERS], check=True)
    each, in_turns = torch.load(ANSWERS)

    in_memory = intarsia.Methods({name: intarsia.Program(program) for name, program in programs.items()})
    retraced = intarsia.export(hybrids, EXAMPLES, dynamic_shapes=DYNAMIC_SHAPES, retrace=True)
    plain = SimpleNamespace(**{name: program.module() for name, program in retraced.items()})
    checks = [
        same("two conversations in turns, as each alone", in_turns, each),
        same("from the file, as in memory", each, answer_each(in_memory)),
        same("without a retrace, as with one", each, answer_each(plain)),
        near("as eager torch", each, answer_each(model)),
    ]
    if not all(checks):
        sys.exit("wrong")


if __name__ == "__main__":
    torch.set_num_threads(1)  # One token is too little work to share.
    if sys.argv[1:2] == ["--answer"]:
        answer_from_file(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
