"""The sentence encoder of `minilm.py` for ExecuTorch: engines as delegates, attention by XNNPACK and portable kernels.

python examples/minilm_pte.py              everything
python examples/minilm_pte.py --compare    only the last part: a process that has nothing but the files
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import minilm
import torch
from minilm import DYNAMIC_SHAPES, SENTENCES, tokenize

import intarsia

PTE, PT2, EXPECTED = Path("minilm.pte"), Path("minilm.pt2"), Path("expected.pt")
BATCHES = (SENTENCES[:1], SENTENCES[1:3], SENTENCES[3:], SENTENCES, 16 * SENTENCES)


def compare() -> None:
    """Batches of 1 to 64 sentences, of their own lengths."""
    program, before = intarsia.load(PTE), intarsia.load(PT2)
    for batch, expected in zip(BATCHES, torch.load(EXPECTED), strict=True):
        inputs = tokenize(batch)
        found, known = program(**inputs), before(**inputs)
        errors = [
            max((found[name] - others[name]).abs().max().item() for name in found) for others in (known, expected)
        ]
        size = " x ".join(map(str, inputs["input_ids"].shape))
        print(f"{size}: largest error against the .pt2 {errors[0]:.1e}, against eager torch {errors[1]:.1e}")
        if max(errors) > 1e-4:
            sys.exit("wrong")


def main() -> None:
    encoder = minilm.load_encoder()
    hybrid = intarsia.compile(
        encoder,
        kwargs=tokenize(SENTENCES),
        dynamic_shapes=DYNAMIC_SHAPES,
        torch_executed_ops={"aten.scaled_dot_product_attention"},
    )
    program = intarsia.export(hybrid)
    intarsia.save(program, PT2)
    intarsia.save(program, PTE)
    print(f"{PTE}: {PTE.stat().st_size:,} bytes")
    with torch.no_grad():
        torch.save([encoder(**tokenize(batch)) for batch in BATCHES], EXPECTED)
    subprocess.run([sys.executable, __file__, "--compare"], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        compare()
    else:
        main()
