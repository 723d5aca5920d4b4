"""The real check of what only stand-ins test: hybrids of Torch-TensorRT on an NVIDIA GPU, to a file and back.

Needs a GPU, torch for CUDA, torch_tensorrt and tensorrt. Prints what to send us, whatever happens.

python examples/tensorrt_check.py
"""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import intarsia


class Model(torch.nn.Module):
    """An operator between two engines."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.first(x).relu()
        return {"out": self.last(torch.erf(hidden)), "hidden": hidden}


class Cache(torch.nn.Module):
    """A cache that the model writes at one position."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 4, 16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:, :, 3:4, :] = x
        return self.cache.sum(2)


def compile_hybrid(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> Any:
    trt: Any = importlib.import_module("torch_tensorrt")
    exported = torch.export.export(model, (x,))
    return trt.dynamo.compile(exported, arg_inputs=[x], min_block_size=1, **options)


def check_program(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> str:
    hybrid = compile_hybrid(model, x, **options)
    kinds = sorted({type(part).__name__ for part in hybrid.children()})
    with torch.no_grad():
        wanted = model(x)
        programs = [intarsia.export(hybrid), intarsia.export(hybrid, engines="bytes")]
        for program in programs:
            torch.testing.assert_close(program.module()(x), wanted, atol=1e-2, rtol=1e-2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt2"
            intarsia.save(hybrid, path)
            torch.testing.assert_close(intarsia.load(path)(x), wanted, atol=1e-2, rtol=1e-2)
            alone = subprocess.run(
                [sys.executable, "-c", _ALONE, str(path), *map(str, x.shape)],
                capture_output=True,
                text=True,
                check=False,
            )
    if alone.returncode:
        raise RuntimeError(alone.stderr)
    return f"{kinds}; {intarsia.ledger(programs[0]).summary().splitlines()[0]}"


_ALONE = """
import sys, torch, intarsia
sys.modules["torch_tensorrt"] = None
intarsia.load(sys.argv[1])(torch.ones([int(size) for size in sys.argv[2:]], device="cuda"))
"""


def check_another_model() -> str:
    return check_program(Model().eval().cuda(), torch.randn(4, 16, device="cuda"), torch_executed_ops={"aten.erf"})


def check_python_runtime() -> str:
    x = torch.randn(4, 16, device="cuda")
    return check_program(Model().eval().cuda(), x, use_python_runtime=True)


def check_cache() -> str:
    return check_program(Cache().eval().cuda(), torch.ones(1, 4, 1, 8, device="cuda"))


def describe_machine() -> str:
    packages = ("torch", "torch_tensorrt", "torch-tensorrt", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA GPU"
    found = [f"{name} {text}" for name in packages if (text := installed(name))]
    return ", ".join([platform.platform(), gpu, f"intarsia {intarsia.__version__}", *found])


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def main() -> int:
    print(describe_machine())
    if not torch.cuda.is_available() or not (installed("torch_tensorrt") or installed("torch-tensorrt")):
        print("This check needs an NVIDIA GPU, torch for CUDA, torch_tensorrt and tensorrt.")
        return 2
    checks: list[tuple[str, Callable[[], str]]] = [
        ("two engines, an operator between them", check_another_model),
        ("the Python runtime", check_python_runtime),
        ("a cache that an engine writes", check_cache),
    ]
    told = [(name, *attempt(check)) for name, check in checks]
    for name, is_right, text in told:
        print(f"{name}: {'right; ' if is_right else 'wrong'}{text}")
    print("Please send us all of this output, from its first line on.")
    return 0 if all(is_right for _, is_right, _ in told) else 1


def attempt(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except Exception:  # noqa: BLE001 - whatever goes wrong is what we want to know
        return False, f"\n{traceback.format_exc()}"


if __name__ == "__main__":
    sys.exit(main())
