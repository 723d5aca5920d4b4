"""What a backend is: it builds engines at compile time and loads them at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

POSITIONS = "positions"
"""Under which of a `BuiltEngine`'s options a backend may list the inputs that hold positions.

One mapping for each input and size, with the number of the input (`input`), the dim that it counts along (`dim`), the
size of that (`size`), and whether -1 is its last position (`counts_back`). `intarsia.verify` draws such inputs by it; a
`.pte` checks them.
"""

MASKS = "masks"
"""Under which of a `BuiltEngine`'s options a backend may list the numbers of integer inputs that hold a mask.

Such an input holds no positions, and its integers do not come out again. `intarsia.verify` draws zeros and ones for it.
"""

WIDENED = "widened"
"""Under which of a `BuiltEngine`'s options a backend may list the tensors without dimensions that cross its boundary.

A mapping with the numbers of `inputs` and of `outputs`, which the payload takes and gives with one dimension of size 1.
Some runtimes hand over no others.
"""


@dataclass(frozen=True)
class BuiltEngine:
    """What `Backend.build` returns: the sections of an engine container, and facts about them.

    Attributes:
        payload: Compiled engine, in the backend's own serialisation; or None where the library keeps none, and every
            engine is made of its source.
        source: Portable form from which `Backend.rebuild` makes the engine anew, or None. There is one of the two.
        backend_version: Version of the library that built the payload.
        target: What the payload was compiled for, as text that a person can read ("CPU x86-64 avx2").
        options: Options that `rebuild` needs again; JSON values only.
        constants: Where weights lie in `source`: position of the first byte, and number of bytes. A file stores those
            once that several engines, or an engine and torch, have.

    Example:
        >>> BuiltEngine(b"compiled", source=None, backend_version="1.0", target="CPU", options={}).payload
        b'compiled'
    """

    payload: bytes | None
    source: bytes | None
    backend_version: str
    target: str
    options: Mapping[str, Any]
    constants: Sequence[tuple[int, int]] = ()


@runtime_checkable
class Engine(Protocol):
    """A compiled partition, ready to run.

    It may be called from several threads at once. It holds on to the memory of its inputs until the call has
    ended. Its outputs are contiguous, and alias neither its inputs nor each other nor a later call's outputs; except
    that an output which the signature says goes into an input is that input, with the new value written into it. The
    partition's graph shows such a write, by a `copy_` of the output into the placeholder of the input.

    Example:
        >>> isinstance(lambda inputs: [inputs[0] + 1], Engine)
        True
    """

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine on inputs of the dtypes and shapes that its signature names."""
        ...


class Backend(Protocol):
    """Builds engines (`check_options`, `supports`, `build`) and loads them (`load`, `rebuild`).

    Importing and constructing a backend imports nothing heavy and never fails. The same holds of `available` and
    `accepts`, which tell at once what would become of an engine here. Each of the others imports the library when it
    first needs it, and raises `EngineUnavailable` (naming the extra that installs it) when it is missing.

    Where building an engine again needs more than loading one, a backend has a method `missing_to_rebuild` of the form
    of `available`, and `available` speaks of loading alone. It is asked where an engine has to be built again, and may
    import what it needs.

    A backend whose engines are native code, or become such when they are built again, has an attribute `native` that is
    true: a file that holds one of its engines is then loaded only where the caller allows it.

    Example:
        >>> from intarsia.core.registry import find_backend
        >>> import torch
        >>> backend: Backend = find_backend("openvino")
        >>> program = torch.export.export(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
        >>> engine = backend.load(memoryview(backend.build(program, {}).payload), {})
        >>> engine([torch.tensor([-3.0, 4.0])])
        [tensor([0., 4.])]
    """

    name: str

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse what no engine can be built with, before a model is captured.

        Raises:
            EngineUnavailable: The library is not installed.
            ArgumentError: The library does not know an option, or does not take its value.
        """
        ...

    def supports(self, node: torch.fx.Node) -> str | None:
        """None when the backend takes this `call_function` node, else the reason why not, as a short phrase.

        A backend refuses operators that draw random numbers: an engine would draw others, and in another order. Some
        draw only if an argument says so (dropout), which is why the backend decides.
        """
        ...

    def build(self, program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> BuiltEngine:
        """Compile a partition. Its weights become constants inside the engine.

        Raises:
            EngineBuildFailed: The library refuses the program.
        """
        ...

    def load(self, payload: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of a payload, whose memory is lent for this call only.

        Raises:
            EngineRefused: This machine's library or processor does not accept the payload.
        """
        ...

    def rebuild(self, source: memoryview, options: Mapping[str, Any]) -> Engine:
        """Make an engine of the portable source, on this machine; its memory is lent for this call only.

        Raises:
            EngineBuildFailed: The library refuses the source.
        """
        ...

    def available(self) -> str | None:
        """None when engines can be loaded here, and rebuilt, else what is missing, as a short phrase."""
        ...

    def accepts(self, version: str, target: str) -> str | None:
        """None when a payload is likely to be loaded here, else why it should be rebuilt, as a short phrase.

        Args:
            version: The payload's `BuiltEngine.backend_version`.
            target: The payload's `BuiltEngine.target`.
        """
        ...


def missing_to_rebuild(backend: Backend) -> str | None:
    """None when engines of an available backend can be built again from their portable form here, else what is missing.

    Example:
        >>> from intarsia.core.registry import find_backend
        >>> missing_to_rebuild(find_backend("openvino")) is None
        True
    """
    asked = getattr(backend, "missing_to_rebuild", None)
    missing: str | None = asked() if asked else None
    return missing
