"""The operator `intarsia::run_engine`, by which a graph calls an engine. Importing this module registers it.

The module imports nothing but torch, so that the operator can be registered while other modules of intarsia are still
being imported; the kernels import what they need.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_library = torch.library.Library("intarsia", "DEF")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "run_engine(Tensor[] inputs, Tensor engine, str signature) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,)
)


def run_engine(inputs: Sequence[torch.Tensor], engine: torch.Tensor, signature: str) -> list[torch.Tensor]:
    """Run the engine whose container `engine` holds; the kernel of the operator on every device.

    Args:
        inputs: Tensors of the dtypes and shapes that the signature names.
        engine: uint8[n] on the CPU: an engine container.
        signature: Text of the engine's signature.

    An input that the engine writes into is copied first: like every operator without a declared write, this one
    changes nothing that it is given.

    Returns:
        Contiguous tensors that alias nothing and do not require grad.

    Raises:
        EngineError: The engine is damaged, cannot be loaded, or fails while running.
        ArgumentError: An input does not fit the signature.
    """
    try:
        return run_engine_in_place(inputs, engine, signature, ())
    except Exception as error:
        for faults in _faults():
            faults.append(error)
        raise


_watch = threading.local()


def _faults() -> list[list[Exception]]:
    """Where this thread wants to have what engines raise."""
    if not hasattr(_watch, "faults"):
        _watch.faults = []
    watched: list[list[Exception]] = _watch.faults
    return watched


@contextmanager
def watched_engines() -> Iterator[list[Exception]]:
    """What engines that this thread calls raise meanwhile: compiled code keeps the text alone of it."""
    faults: list[Exception] = []
    _faults().append(faults)
    try:
        yield faults
    finally:
        _faults().pop()


def run_engine_in_place(
    inputs: Sequence[torch.Tensor], engine: torch.Tensor, signature: str, written: Sequence[int]
) -> list[torch.Tensor]:
    """Run an engine that may write into some of its inputs.

    Args:
        inputs: As for `run_engine`; those that are written are contiguous.
        engine: As for `run_engine`.
        signature: As for `run_engine`.
        written: Positions of the inputs that the engine may write into; others that it would write are copied first.

    Returns:
        As `run_engine`; an output that goes into one of `written` is that input.

    Raises:
        EngineError: As for `run_engine`; or an output is not in the memory that the signature says.
        ArgumentError: An input does not fit the signature.
    """
    from intarsia.core.instance import find_instance

    instance = find_instance(engine, signature)
    instance.signature.check(inputs)
    into = instance.signature.into
    if into:
        copied = set(into.values()).difference(written)
        inputs = [x.clone(memory_format=torch.contiguous_format) if i in copied else x for i, x in enumerate(inputs)]
    if torch.is_grad_enabled():
        with torch.no_grad():
            outputs = instance.run(inputs)
    else:
        outputs = instance.run(inputs)
    for i, k in into.items():
        if outputs[i].data_ptr() != inputs[k].data_ptr():
            raise _not_written(instance.subject, i, k)
    return outputs


def _not_written(subject: str, output: int, into: int) -> Exception:
    from intarsia.errors import EngineError

    return EngineError(
        subject,
        found=f"output {output} in memory of its own",
        expected=f"it in the memory of input {into}, as the signature says",
        fix="Build the engine again, or take 'into' out of its signature.",
    )


def fake_run_engine(inputs: Sequence[torch.Tensor], engine: torch.Tensor, signature: str) -> list[torch.Tensor]:
    """Outputs of the right dtypes and (symbolic) shapes, told by the signature alone."""
    from intarsia.core.signature import EngineSignature

    parsed = EngineSignature.parse(signature)
    device = inputs[0].device if inputs else engine.device
    shapes = parsed.output_shapes([value.shape for value in inputs])
    return [
        torch.empty(shape, dtype=output.dtype, device=device)
        for shape, output in zip(shapes, parsed.outputs, strict=True)
    ]


_library.impl("run_engine", run_engine, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
# An engine has no gradient. Without this, outputs would require grad where inputs do, and fail only in backward().
_library.impl("run_engine", torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("intarsia::run_engine", fake_run_engine, lib=_library)

RUN_ENGINE = torch.ops.intarsia.run_engine.default
"""The operator, as it stands in graphs."""
