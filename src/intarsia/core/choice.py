"""Which backends a caller wants for which operators, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.errors import ArgumentError, with_article

TORCH = "torch"
"""What stands for no engine, where a backend or the name of an engine is told."""

MODEL = ""
"""The path of the whole model among module paths, as in `torch.nn.Module.named_modules`."""


@dataclass(frozen=True)
class BackendChoice:
    """The backends of a model, and of single operators and modules of it.

    Attributes:
        orders: What is chosen for -> names of backends, the most wanted first. Keys are operators (objects or names),
            module paths, and `MODEL` for the rest. An empty order stands for torch.

    Example:
        >>> BackendChoice.of(["onnxruntime", "openvino"]).names
        ('onnxruntime', 'openvino')
        >>> BackendChoice.of({"encoder": "openvino", "aten.softmax": "torch"}).orders
        {'encoder': ('openvino',), 'aten.softmax': ()}
    """

    orders: Mapping[Any, tuple[str, ...]]

    @classmethod
    def of(cls, backend: Any) -> BackendChoice:
        """The choice that the argument `backend` of `compile` tells.

        Args:
            backend: The name of a backend, names in the order in which they are wanted, or a mapping from operators
                and module paths to either.

        Raises:
            ArgumentError: It is none of these, or empty, or an order has a name twice, or one after "torch".
        """
        if isinstance(backend, Mapping) and backend:
            return cls({key: _read_order(f"backend, {key!r}", names) for key, names in backend.items()})
        return cls({MODEL: _read_order("backend", backend)})

    @property
    def names(self) -> tuple[str, ...]:
        """The backends, each once: those of the whole model in their order, then the others."""
        orders = (self.orders.get(MODEL, ()), *self.orders.values())
        return tuple(dict.fromkeys(name for order in orders for name in order))


def _read_order(subject: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(
            subject,
            found=f"{given!r}, {with_article(type(given).__name__)}",
            expected="the name of a backend, or names in the order in which they are wanted",
            fix="Write backend='openvino', backend=['onnxruntime', 'openvino'] or "
            "backend={'': 'openvino', 'encoder.layer.0': 'onnxruntime', 'aten.softmax': 'torch'}.",
        )
    _check_order(subject, names)
    return tuple(name for name in names if name != TORCH)


def _check_order(subject: str, names: Sequence[str]) -> None:
    """Refuse an order with a name that it never comes to: torch takes everything, and a backend what it can at once."""
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    unreached = names[names.index(TORCH) + 1 :] if TORCH in names else ()
    if repeated is None and not unreached:
        return
    raise ArgumentError(
        subject,
        found=f"{repeated!r} twice" if repeated is not None else f"{unreached[0]!r} after {TORCH!r}, which takes all",
        expected="each name once, and torch last, if at all",
        fix=f"Leave out the second {repeated!r}." if repeated is not None else f"Leave out {TORCH!r}, or put it last.",
    )
