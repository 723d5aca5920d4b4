"""Operators that stand for engines while ExecuTorch works on a graph: one for each number of outputs.

ExecuTorch's verifier fixes the first size of an operator's first result when the operator returns a list, as
`run_engine` does; so these return a tensor or a tuple. They hold no bytes: the graph is copied often.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from intarsia.core.op import fake_run_engine

_library = torch.library.Library("intarsia", "FRAGMENT")  # type: ignore[no-untyped-call]


@cache
def engine_operator(outputs: int) -> Any:
    """The operator for engines of so many outputs: `(Tensor[] inputs, str engine, str signature)`.

    It has shapes and no kernel.

    Example:
        >>> engine_operator(2)
        <OpOverload(op='intarsia.engine_2', overload='default')>
    """
    name = f"engine_{outputs}"
    results = ", ".join(["Tensor"] * outputs)
    _library.define(  # type: ignore[no-untyped-call]
        f"{name}(Tensor[] inputs, str engine, str signature) -> ({results})", tags=(torch.Tag.pt2_compliant_tag,)
    )
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"intarsia::{name}", _fake, lib=_library)
    return getattr(torch.ops.intarsia, name).default


def _fake(inputs: Sequence[torch.Tensor], engine: str, signature: str) -> Any:  # noqa: ARG001 - as the schema says
    values = fake_run_engine(inputs, torch.empty(0, dtype=torch.uint8), signature)
    return values[0] if len(values) == 1 else tuple(values)
