"""The real check of what only stand-ins test: hybrids of Torch-TensorRT on an NVIDIA GPU, to a file and back.

Needs a GPU, torch for CUDA, and torch_tensorrt 2.13 or newer. Prints what to send us, whatever goes wrong.

python examples/tensorrt_check.py
"""

from __future__ import annotations

import copy
import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import intarsia
from intarsia.core.registry import find_backend

DEVICE = "cuda"
OLDEST = (2, 13)
LIFTS_BUFFERS = (2, 14)
PLAN, METADATA = 3, 7
"""Positions of long texts in the list of an engine."""


class Model(torch.nn.Module):
    """An operator between two engines."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.first(x).relu()
        return {"out": self.last(torch.erf(hidden)), "hidden": hidden}


class Decoder(torch.nn.Module):
    """A cache with a row for each position, and a count of calls."""

    cache: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 4, 16, 8))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(2, position, row)
        self.calls.add_(1)
        return self.cache.sum(2) * self.calls


def check_engines() -> str:
    return check_program(Model(), [(torch.randn(4, 16),), (torch.randn(4, 16),)], torch_executed_ops={_ERF})


def check_sizes() -> str:
    trt: Any = importlib.import_module("torch_tensorrt")
    return check_program(
        Model(),
        [(torch.randn(rows, 16),) for rows in (4, 2, 8)],
        dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=8)},),
        arg_inputs=[trt.Input(min_shape=(2, 16), opt_shape=(4, 16), max_shape=(8, 16))],
        torch_executed_ops={_ERF},
    )


def check_cache() -> str:
    if release(installed("torch_tensorrt")) < LIFTS_BUFFERS:
        return "left out: this version drops what a model writes into its buffers"
    return check_program(Decoder(), [(torch.randn(1, 4, 1, 8), torch.tensor([position])) for position in (3, 5)])


def check_damage() -> str:
    """Bytes that are no engine; we want to see what TensorRT says of them."""
    try:
        find_backend("tensorrt").load(memoryview(b"no engine"), {"inputs": [], "outputs": [], "into": []})
    except intarsia.errors.EngineRefused as error:
        return str(error)
    raise RuntimeError("TensorRT took bytes that are no engine")


def check_python_runtime() -> str:
    """The same with the Python runtime, which Torch-TensorRT uses where its library is missing: a copy without it."""
    package = Path(str(importlib.import_module("torch_tensorrt").__file__)).parent
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(package, Path(folder, "torch_tensorrt"), ignore=shutil.ignore_patterns("*.so"))
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        told = run([__file__, "engines", "sizes", "cache"], {"PYTHONPATH": path})
    if "TRTEngine" not in told:
        raise RuntimeError(f"the C++ runtime was used:\n{told}")
    return f"\n{told}"


CHECKS: Mapping[str, Callable[[], str]] = {
    "engines": check_engines,
    "sizes": check_sizes,
    "cache": check_cache,
    "damage": check_damage,
    "python-runtime": check_python_runtime,
}
_ERF = "torch.ops.aten.erf.default"


def check_program(model: torch.nn.Module, calls: Sequence[Any], **options: Any) -> str:
    """Compare a hybrid's program, with engines of both kinds, and its file with the model, call after call."""
    model = model.eval().to(DEVICE)
    calls = [tuple(x.to(DEVICE) for x in args) for args in calls]
    hybrid = compile_hybrid(copy.deepcopy(model), calls[0], **options)
    wanted = answer(model, calls)
    program, as_bytes = intarsia.export(hybrid), intarsia.export(hybrid, engines="bytes")
    before = {name: tensor.clone() for name, tensor in program.state_dict.items()}
    for one, what in ((program, "engines='objects'"), (as_bytes, "engines='bytes'")):
        compare(answer(one.module(), calls), wanted, what)
        for name, tensor in before.items():
            one.state_dict[name].data.copy_(tensor)
    with tempfile.TemporaryDirectory() as folder:
        intarsia.save(hybrid, Path(folder, "model.pt2"))
        compare(answer_alone(folder, calls), wanted, "the file, without Torch-TensorRT")
    return f"{describe(hybrid)}; {intarsia.ledger(program).summary().splitlines()[0]}"


def compile_hybrid(model: torch.nn.Module, args: Any, **options: Any) -> Any:
    trt: Any = importlib.import_module("torch_tensorrt")
    exported = torch.export.export(model, args, dynamic_shapes=options.pop("dynamic_shapes", None))
    return trt.dynamo.compile(exported, **{"arg_inputs": list(args), "min_block_size": 1} | options)


def answer(program: Callable[..., Any], calls: Sequence[Any]) -> list[Any]:
    with torch.no_grad():
        return [[leaf.clone() for leaf in tree_leaves(program(*args))] for args in calls]


def answer_alone(folder: str, calls: Sequence[Any]) -> Any:
    """What the file answers in a process that cannot import Torch-TensorRT."""
    torch.save(calls, f"{folder}/calls.pt")
    run(["-c", _ALONE, folder], {})
    return torch.load(f"{folder}/answers.pt")


_ALONE = """
import sys, torch, intarsia
from torch.utils._pytree import tree_leaves
sys.modules["torch_tensorrt"] = None
folder = sys.argv[1]
program = intarsia.load(f"{folder}/model.pt2")
answers = [[leaf.clone() for leaf in tree_leaves(program(*args))] for args in torch.load(f"{folder}/calls.pt")]
torch.save(answers, f"{folder}/answers.pt")
"""


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        raise RuntimeError(f"{done.stdout}{done.stderr}")
    return done.stdout


def compare(found: Any, wanted: Any, what: str) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-2, msg=lambda text: f"{what}: {text}")


def describe(hybrid: Any) -> str:
    parts = {name: part for name, part in hybrid.named_children() if hasattr(part, "engine")}
    told = [f"{name}: {type(part.engine).__name__} {fields(part.engine)}" for name, part in parts.items()]
    return f"metadata {sorted(hybrid.meta)}; {', '.join(told)}"


def fields(engine: Any) -> list[str]:
    """The list of an engine without its long texts."""
    texts = engine.serialized_info if hasattr(engine, "serialized_info") else engine.__getstate__()[0]
    return [str(text) for i, text in enumerate(texts) if i not in (PLAN, METADATA)]


def find_missing() -> str:
    """What this check needs and does not find, in one line; "" when nothing is missing."""
    if not torch.cuda.is_available():
        return "This check needs an NVIDIA GPU and a build of torch for CUDA: torch finds no GPU."
    found = installed("torch_tensorrt")
    if not found:
        return "This check needs torch_tensorrt (pip install torch-tensorrt): it is not installed."
    if release(found) < OLDEST:
        return f"This check needs torch_tensorrt {OLDEST[0]}.{OLDEST[1]} or newer: {found} is installed."
    try:
        importlib.import_module("torch_tensorrt")
    except Exception as error:  # noqa: BLE001 - it raises whatever its own imports raise
        told = " ".join(str(error).split())
        return f"torch_tensorrt {found} cannot be imported beside torch {torch.__version__}: {told}"
    return ""


def describe_machine() -> str:
    packages = ("torch", "torch_tensorrt", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA GPU"
    found = [f"{name} {text}" for name in packages if (text := installed(name))]
    return ", ".join([platform.platform(), gpu, f"intarsia {intarsia.__version__}", *found])


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def main(names: Sequence[str]) -> int:
    print(describe_machine())
    missing = find_missing()
    if missing:
        print(missing)
        return 2
    told = [(name, *attempt(CHECKS[name])) for name in names or CHECKS]
    for name, is_right, text in told:
        print(f"{name}: {'right' if is_right else 'wrong'}; {text}")
    if not names:
        print("Please send us all of this output, from its first line on.")
    return 0 if all(is_right for _, is_right, _ in told) else 1


def attempt(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except Exception:  # noqa: BLE001 - whatever goes wrong is what we want to know
        return False, f"\n{traceback.format_exc()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
