"""Mixtral from transformers with its static cache: prefill and decode in one file, the experts left in torch.

python examples/mixtral_decode.py                    everything
python examples/mixtral_decode.py --answer FILE OUT  only the last part: a process that has nothing but the file
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from moe_decode import near, same
from torch import Tensor
from torch.export import Dim

import intarsia

FILE, ANSWERS = Path("mixtral.pt2"), Path("answers.pt")
VOCABULARY, LENGTH, PROMPT, STEPS = 512, 128, 16, 64

EXAMPLES = {
    "prefill": {"input_ids": torch.zeros(1, PROMPT, dtype=torch.int64), "cache_position": torch.arange(PROMPT)},
    "decode": {"input_ids": torch.zeros(1, 1, dtype=torch.int64), "cache_position": torch.tensor([PROMPT])},
}
SIZE = Dim("length", min=2, max=LENGTH)
DYNAMIC_SHAPES = {"prefill": {"input_ids": {1: SIZE}, "cache_position": {0: SIZE}}, "decode": None}
# Prompts after which the model never wavers between two tokens: rounding then changes none.
PROMPTS = [torch.randint(VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(seed)) for seed in (15, 34)]


def build_mixtral() -> tuple[Any, torch.nn.Module]:
    """A small Mixtral that was never trained; and the same as transformers exports it, with caches of fixed length."""
    # The process that has only the file does without transformers.
    from transformers import MixtralConfig, MixtralForCausalLM  # noqa: PLC0415
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache  # noqa: PLC0415

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        initializer_range=0.1,
        experts_implementation="batched_mm",
    )
    mixtral = MixtralForCausalLM(config).eval()
    mixtral.generation_config.update(use_cache=True, cache_implementation="static")
    return mixtral, TorchExportableModuleWithStaticCache(mixtral, batch_size=1, max_cache_len=LENGTH)


def generate(mixtral: Any) -> Tensor:
    """What transformers itself answers to both prompts, with a cache that grows: logits f32[2, 1 + steps, v]."""
    settings = {"max_new_tokens": 1 + STEPS, "do_sample": False, "cache_implementation": "dynamic"}
    answers = [
        mixtral.generate(prompt, eos_token_id=None, output_logits=True, return_dict_in_generate=True, **settings)
        for prompt in PROMPTS
    ]
    return torch.stack([torch.cat(found.logits) for found in answers])


def answer(model: Any, prompt: Tensor) -> Iterator[Tensor]:
    """Logits f32[1, v] after the prompt and after each step, of whatever has `prefill` and `decode`."""
    logits = model.prefill(input_ids=prompt, cache_position=torch.arange(PROMPT))[:, -1]
    yield logits
    for position in range(PROMPT, PROMPT + STEPS):
        token = logits.argmax(-1, keepdim=True)
        logits = model.decode(input_ids=token, cache_position=torch.tensor([position]))[:, -1]
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


def main() -> None:
    mixtral, model = build_mixtral()
    hybrids = intarsia.compile(
        {"prefill": model, "decode": model},
        kwargs=EXAMPLES,
        dynamic_shapes=DYNAMIC_SHAPES,
        torch_executed_ops={"aten.bmm", "aten.index"},
    )
    print(intarsia.coverage(hybrids["decode"]))
    programs = intarsia.export(hybrids)
    intarsia.save(programs, FILE)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
    subprocess.run([sys.executable, __file__, "--answer", FILE, ANSWERS], check=True)
    each, in_turns = torch.load(ANSWERS)

    # transformers registers each cache as a buffer and reads it as a constant: one tensor, and one entry.
    in_memory = intarsia.Methods({name: intarsia.Program(program) for name, program in programs.items()})
    print("caches:", ", ".join(name for name in in_memory.state if name in in_memory.state.written))
    retraced = intarsia.export(hybrids, kwargs=EXAMPLES, dynamic_shapes=DYNAMIC_SHAPES, retrace=True)
    plain = SimpleNamespace(**{name: program.module() for name, program in retraced.items()})
    checks = [
        same("two conversations in turns, as each alone", in_turns, each),
        same("from the file, as in memory", each, answer_each(in_memory)),
        same("without a retrace, as with one", each, answer_each(plain)),
        near("as transformers generates", each, generate(mixtral)),
    ]
    if not all(checks):
        sys.exit("wrong")


if __name__ == "__main__":
    torch.set_num_threads(1)  # One token is too little work to share.
    if sys.argv[1:2] == ["--answer"]:
        answer_from_file(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
