"""The manifest of a program in a file: what is known of it besides its graph. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from intarsia.core.ledger import Ledger

if TYPE_CHECKING:
    from intarsia.core.container import EngineContainer
    from intarsia.core.sections import PackedEngine

FORMAT_VERSION = 1


@dataclass(frozen=True)
class EngineEntry:
    """One engine of a program.

    Attributes:
        constant: Name of the constant that holds the engine's container.
        name: Name of the engine.
        backend: Name of the backend that built it and loads it.
        backend_version: Version of the library that built it.
        target: What it was compiled for.
        signature: Text of its signature.
        size_bytes: Size of its container.
        payload_bytes: Size of the compiled form, 0 when there is none.
        source_bytes: Size of the portable form, 0 when there is none.
        sha256: SHA-256 of the container's header, which covers the hashes of all sections, in hexadecimal.
    """

    constant: str
    name: str
    backend: str
    backend_version: str
    target: str
    signature: str
    size_bytes: int
    payload_bytes: int
    source_bytes: int
    sha256: str

    @classmethod
    def of(cls, constant: str, engine: EngineContainer, stored: EngineContainer | PackedEngine) -> EngineEntry:
        """The entry of an engine.

        Args:
            constant: Name of the constant that holds its container.
            engine: The engine.
            stored: The container that the constant holds, of the same engine.
        """
        return cls(
            constant,
            engine.name,
            engine.backend,
            engine.backend_version,
            engine.target,
            engine.signature,
            stored.size_bytes,
            stored.payload_bytes,
            engine.source_bytes,
            stored.digest.hex(),
        )


@dataclass(frozen=True)
class WriteEntry:
    """One thing that a call of the program writes.

    Attributes:
        kind: What is written.
        name: Name of the state entry, or of the graph's input.
        declared: Whether the graph signature declares the write; otherwise an operator of the graph does it in place.
    """

    kind: Literal["buffer", "parameter", "constant", "input"]
    name: str
    declared: bool


@dataclass(frozen=True)
class Manifest:
    """What a file tells of a program.

    Attributes:
        format_version: Version of the manifest and of what else intarsia puts into the file.
        intarsia_version: Version of intarsia that wrote the file.
        torch_version: Version of torch that wrote the file.
        graph_schema: Version of torch's schema that the graphs are written in, "8.20" for instance.
        byte_order: Byte order of the tensors: "little" or "big".
        test_vectors: How many calls the file records, of all methods together.
        engines: Every engine of the program, in graph order.
        writes: Every write of the program.
        ledger: The account of the export, or None when the program was not exported by intarsia.
        coverage: Where each operator runs, as JSON values, or None when the program was not compiled by intarsia.
        packages: The package that provides operators, by their namespace, where it is neither torch nor intarsia.
        compiled: What the code of the program was compiled for, where the file holds code and no graph; else empty.
        precision: Where the file holds no graph: the coarsest dtype that each output and state entry passes through, by
            their names in a verification, as short names.
    """

    format_version: int
    intarsia_version: str
    torch_version: str
    graph_schema: str
    byte_order: str
    test_vectors: int
    engines: tuple[EngineEntry, ...]
    writes: tuple[WriteEntry, ...]
    ledger: Ledger | None
    coverage: Mapping[str, Any] | None
    packages: Mapping[str, str] = field(default_factory=dict)
    compiled: str = ""
    precision: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        """What wrote the file -> version."""
        return {"intarsia": self.intarsia_version, "torch": self.torch_version}
