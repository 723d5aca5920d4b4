"""Whether two values are the same, to the bit."""

from __future__ import annotations

from typing import Any

import torch

from intarsia._torch import FakeTensor, pytree
from intarsia.core.memory import bytes_of


def snapshot(structure: Any) -> Any:
    """A copy of a structure whose tensors nobody else writes."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone(), structure)


def leaves_of(structure: Any, name: str) -> dict[str, Any]:
    """Leaves by the path that leads to them from `name`.

    Example:
        >>> leaves_of({"a": [1, 2]}, "output")
        {"output['a'][0]": 1, "output['a'][1]": 2}
    """
    return {f"{name}{pytree.keystr(path)}": leaf for path, leaf in pytree.tree_leaves_with_path(structure)}


def difference(found: Any, expected: Any) -> str:
    """How two leaves differ, or no text; tensors must agree in dtype, shape and every bit."""
    if not (isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor)):
        same = type(found) is type(expected) and (
            found is expected or found == expected or repr(found) == repr(expected)
        )
        return "" if same else f"{_short(found)}, not {_short(expected)}"
    if isinstance(found, FakeTensor):
        return "a fake tensor, which has no values"
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{_type_text(found)}, not {_type_text(expected)}"
    if _same_bits(found, expected):
        return ""
    return f"other bits, {_distance(found, expected)}"


def _same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.layout is not torch.strided or found.is_quantized:
        return bool(torch.equal(found, expected))
    if not found.numel():
        return True
    one, other = (bytes_of(value.detach().resolve_conj().resolve_neg()) for value in (found, expected.to(found.device)))
    return bool(torch.equal(one, other))


def _distance(found: torch.Tensor, expected: torch.Tensor) -> str:
    if found.dtype is torch.bool:
        return f"{int((found != expected).sum())} of {found.numel()} elements"
    kind = torch.complex128 if found.dtype.is_complex else torch.float64
    apart = (found.to(kind) - expected.to(kind)).abs().max()
    return f"at most {apart:.2g} apart"


def _type_text(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _short(value: Any) -> str:
    return _type_text(value) if isinstance(value, torch.Tensor) else repr(value)[:60]
