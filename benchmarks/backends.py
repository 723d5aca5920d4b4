"""Calls of the demo's encoder with each backend: as one engine, as the hybrid with attention in torch, and bare.

    python benchmarks/backends.py [--backend NAME ...] [--batch 8] [--length 64] [--rounds 15] [--threads N]

One process for each backend, in which all calls take turns; medians, and ratios to the bare call: the same model
converted as a whole and called by the backend's library alone, with the same tensors. Eager torch and `torch.compile`
are beside them in each process. Build times are those of `intarsia.compile` and of the bare conversion.
OMP_WAIT_POLICY=PASSIVE in the environment lets torch's idle threads leave the cores to the engines. --threads is the
number of threads of engines of ONNX Runtime; the bare session keeps the number that ONNX Runtime chooses.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import Call, medians
from torch.export import Dim

import intarsia

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import minilm

SIZE = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=256)}
ATTENTION = {"aten.scaled_dot_product_attention"}


def make_program(encoder: torch.nn.Module, backend: str, **options: Any) -> tuple[intarsia.Program, int]:
    """The encoder through a file, and how many engines it has."""
    example = minilm.tokenize(minilm.SENTENCES)
    hybrid = intarsia.compile(
        encoder, kwargs=example, dynamic_shapes=dict.fromkeys(example, SIZE), backend=backend, **options
    )
    with tempfile.TemporaryDirectory() as folder:
        intarsia.save(hybrid, Path(folder) / "encoder.pt2")
        return intarsia.load(Path(folder) / "encoder.pt2", allow={"native"}), len(intarsia.coverage(hybrid).engines)


def export_encoder(encoder: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.export.ExportedProgram:
    return torch.export.export(encoder, (), inputs, dynamic_shapes=dict.fromkeys(inputs, SIZE))


def make_openvino(encoder: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Call:
    """A request in f32, as the engines are, with its inputs bound once; outputs stay in the request's memory."""
    import openvino

    model = openvino.convert_model(export_encoder(encoder, inputs).run_decompositions({}))
    request = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    for index, tensor in enumerate(inputs.values()):
        request.set_input_tensor(index, openvino.Tensor(tensor.numpy(), shared_memory=True))
    return request.infer


def make_onnxruntime(encoder: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Call:
    """A session whose inputs are bound once; it makes its outputs."""
    import onnxruntime

    exported = torch.onnx.export(export_encoder(encoder, inputs), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for given, tensor in zip(session.get_inputs(), inputs.values(), strict=True):
        binding.bind_ortvalue_input(given.name, onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()))
    for made in session.get_outputs():
        binding.bind_output(made.name)
    return lambda: session.run_with_iobinding(binding)


def make_inductor(encoder: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Call:
    """A package of AOTInductor with its default settings."""
    with tempfile.TemporaryDirectory() as folder:
        package = torch._inductor.aoti_compile_and_package(  # noqa: SLF001 - documented under this name
            export_encoder(encoder, inputs), package_path=str(Path(folder) / "encoder.pt2")
        )
        run = torch._inductor.aoti_load_package(package)  # noqa: SLF001 - likewise
    return lambda: run(**inputs)


BARE = {"openvino": make_openvino, "onnxruntime": make_onnxruntime, "inductor": make_inductor}


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    """What a function makes, and the seconds that it takes."""
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


@torch.no_grad()
def compare(backend: str, batch: int, length: int, rounds: int, threads: int | None) -> None:
    """Print the times of one backend."""
    encoder = minilm.load_encoder()
    ids = torch.randint(1000, 2000, (batch, length), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    own = {"options": {"intra_op_num_threads": threads}} if threads and backend == "onnxruntime" else {}
    (whole, engines), whole_time = timed(lambda: make_program(encoder, backend, min_block_size=3, **own))
    (demo, parts), demo_time = timed(lambda: make_program(encoder, backend, torch_executed_ops=ATTENTION, **own))
    bare, bare_time = timed(lambda: BARE[backend](encoder, inputs))
    compiled = torch.compile(encoder)
    built = {
        "bare": (bare, bare_time),
        f"program, {engines} engine{'s' * (engines > 1)}": (lambda: whole(**inputs), whole_time),
        f"program, {parts} engines, attention in torch": (lambda: demo(**inputs), demo_time),
        "torch.compile": (lambda: compiled(**inputs), None),
        "eager": (lambda: encoder(**inputs), None),
    }
    times = medians({name: call for name, (call, _) in built.items()}, rounds)
    print(f"{backend}: batch {batch}, {length} tokens, {torch.get_num_threads()} threads")
    for name, taken in times.items():
        seconds = built[name][1]
        note = "" if seconds is None else f", built in {seconds:.1f} s"
        print(f"  {name:42} {taken / 1e3:7.2f} ms  {taken / times['bare']:5.2f} times the bare call{note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=BARE)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    chosen = options.backend or list(BARE)
    if len(chosen) == 1:
        compare(chosen[0], options.batch, options.length, options.rounds, options.threads)
        return
    numbers = {name: getattr(options, name) for name in ("batch", "length", "rounds", "threads")}
    sizes = [f"--{name}={number}" for name, number in numbers.items() if number]
    for backend in chosen:  # in processes of their own, for the libraries' threads disturb each other
        subprocess.run([sys.executable, __file__, "--backend", backend, *sizes], check=True)


if __name__ == "__main__":
    main()
