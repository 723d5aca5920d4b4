"""The decoder of `moe_decode.py` for ExecuTorch: prefill and decode in one `.pte`, beside the `.pt2`.

python examples/moe_decode_pte.py                    everything
python examples/moe_decode_pte.py --answer FILE OUT  only the last part: a process that has nothing but the file

ExecuTorch 1.5.1 has no kernel for torch's int4 product. It is written here with operators that ExecuTorch has; a device
that has a kernel of its own would register that instead.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import moe_decode
import torch
from moe_decode import DYNAMIC_SHAPES, EXAMPLES, PROMPTS, answer, near
from torch import Tensor

import intarsia

PT2, PTE, ANSWERS = Path("moe.pt2"), Path("moe.pte"), Path("answers.pt")
INT4_PRODUCT = torch.ops.aten._weight_int4pack_mm_for_cpu.default  # noqa: SLF001 - torch's only name for it


def unpack(packed: Tensor, block: int) -> Tensor:
    """Numbers 0 to 15, u8[columns, rows], of packed weights u8[rows, columns / 2].

    A block is so many rows. Its bytes stand column by column; each holds a row of the first half, and one of the other.
    """
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    pairs = packed.view(rows // block, columns, block // 2)
    low, high = pairs & 15, torch.div(pairs, 16, rounding_mode="floor")
    return torch.cat([low, high], 2).permute(1, 0, 2).reshape(columns, rows)


def find_block() -> int:
    """The rows in a block: torch packs 64 for AVX-512, and 32 for AVX2."""
    numbers = torch.arange(64 * 32, dtype=torch.int32).view(64, 32) % 13
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)  # noqa: SLF001 - likewise
    for block in (64, 32):
        if torch.equal(unpack(packed, block).T, numbers):
            return block
    sys.exit("This processor packs int4 weights in another way.")


BLOCK = find_block()


def int4_product(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    """What the operator computes: bf16[s, rows] of bf16[s, columns]."""
    numbers = unpack(packed, BLOCK)
    columns, rows = numbers.shape
    scale, zero = scales.float().unsqueeze(1).unbind(-1)
    weight = (numbers.float().view(columns // group, group, rows) - 8) * scale + zero
    return (x.float() @ weight.view(columns, rows)).to(torch.bfloat16)


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with the int4 product written out; everything else is as it was."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning)
        decomposed: torch.export.ExportedProgram = program.run_decompositions({INT4_PRODUCT: int4_product})
    return decomposed


def answer_all(model: Any) -> Tensor:
    """Logits f32[1 + steps + 1, v] after the prompt, after each step, and after a shorter prompt."""
    with torch.no_grad():
        return torch.cat([*answer(model, PROMPTS[0]), model.prefill(PROMPTS[1][:, :9])])


def main() -> None:
    model = moe_decode.build_decoder()
    hybrids = intarsia.compile(
        {"prefill": model.prefill, "decode": model.decode}, EXAMPLES, dynamic_shapes=DYNAMIC_SHAPES
    )
    programs = intarsia.export(hybrids)
    decomposed = {name: decompose(program) for name, program in programs.items()}
    intarsia.save(decomposed, PTE)
    print(f"{PTE}: {PTE.stat().st_size:,} bytes")
    subprocess.run([sys.executable, __file__, "--answer", PTE, ANSWERS], check=True)
    found = torch.load(ANSWERS)

    intarsia.save(programs, PT2)
    checks = [
        near("as the .pt2 with torch's int4 operator", found, answer_all(intarsia.load(PT2))),
        near("as eager torch", found, answer_all(model)),
    ]
    if not all(checks):
        sys.exit("wrong")


if __name__ == "__main__":
    torch.set_num_threads(1)  # One token is too little work to share.
    if sys.argv[1:2] == ["--answer"]:
        torch.save(answer_all(intarsia.load(sys.argv[2])), sys.argv[3])
    else:
        main()
