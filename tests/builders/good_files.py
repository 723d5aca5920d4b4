"""Good files of many kinds, and what they answer: what mutations start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

import intarsia
from builders.hostile import Members, read_members, small_program
from intarsia._torch import pytree

_X = torch.linspace(-1, 1, 3 * 40).view(3, 40)
_SMALL = [("forward", (torch.arange(rows * 3.0).view(rows, 3),), {"scale": torch.ones(1)}) for rows in (3, 4)]
_LAYERS = [("forward", (_X[:rows],), {}) for rows in (3, 1)]
_DECODER = [
    ("prefill", (_X,), {}),
    ("decode", (_X[:1], torch.tensor([3])), {}),
    ("decode", (_X[1:2], torch.tensor([4])), {}),
]

Call = tuple[str, tuple[Tensor, ...], dict[str, Tensor]]
CALLS: Mapping[str, list[Call]] = {
    "small": _SMALL,
    "engines": _LAYERS,
    "portable": _LAYERS,
    "methods": _DECODER,
    "foreign": _SMALL,
    "foreign_engines": _LAYERS,
}
"""The calls of each kind of file, in order: method, positional and keyword arguments."""


class Decoder(nn.Module):
    """Two methods with one state and one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(40, 40)
        self.register_buffer("seen", torch.zeros(8, 40))

    def prefill(self, prompt: Tensor) -> Tensor:
        self.seen[:3] = prompt
        return self.layer(self.seen.mean(0))

    def decode(self, row: Tensor, position: Tensor) -> Tensor:
        self.seen.index_copy_(0, position, row)
        return self.layer(self.seen).sum(0)


class GoodFile(NamedTuple):
    """A file that nothing is wrong with.

    Attributes:
        kind: One of `CALLS`.
        path: Where it is.
        data: Its bytes.
        members: What it is packed of.
        answers: What the calls of its kind return.
    """

    kind: str
    path: Path
    data: bytes
    members: Members
    answers: list[Any]

    @property
    def has_hashes(self) -> bool:
        """Whether intarsia wrote it."""
        return not self.kind.startswith("foreign")


def write_good_files(folder: Path) -> None:
    """Write a file of each kind."""
    torch.manual_seed(0)
    small = small_program()
    intarsia.save(small, folder / "small.pt2")
    torch.export.save(small, folder / "foreign.pt2")
    layers = nn.Sequential(nn.Linear(40, 40), nn.GELU(), nn.Linear(40, 40)).eval()
    sizes = ({0: Dim("rows", min=1, max=8)},)
    program = intarsia.export(intarsia.compile(layers, (_X,), dynamic_shapes=sizes, torch_executed_ops={"aten.gelu"}))
    vectors = [(args, kwargs) for _, args, kwargs in _LAYERS]
    intarsia.save(program, folder / "engines.pt2", test_vectors=vectors)
    intarsia.save(program, folder / "portable.pt2", payloads=False)
    torch.export.save(program, folder / "foreign_engines.pt2")
    decoder = Decoder().eval()
    hybrids = intarsia.compile(
        {"prefill": decoder.prefill, "decode": decoder.decode},
        {"prefill": _DECODER[0][1], "decode": _DECODER[1][1]},
    )
    intarsia.save(intarsia.export(hybrids), folder / "methods.pt2", test_vectors=_DECODER)


def read_good_files(folder: Path) -> list[GoodFile]:
    """The files that `write_good_files` wrote."""
    paths = {kind: folder / f"{kind}.pt2" for kind in CALLS}
    return [
        GoodFile(kind, path, path.read_bytes(), read_members(path), answers_of(intarsia.load(path), CALLS[kind]))
        for kind, path in paths.items()
    ]


def answers_of(loaded: Any, calls: list[Call]) -> list[Any]:
    """What a program, or its methods, answer to calls; each answer is copied before the next call."""
    answers = []
    for method, args, kwargs in calls:
        called = loaded if method == "forward" else getattr(loaded, method)
        given, named = pytree.tree_map(torch.clone, (args, kwargs))
        answers.append(pytree.tree_map_only(Tensor, torch.clone, called(*given, **named)))
    return answers


def same_answers(found: Any, expected: Any) -> bool:
    """Whether answers have the same structure, and the same values to the bit."""
    leaves, structure = pytree.tree_flatten(found)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    return structure == wanted_structure and all(map(_same, leaves, wanted))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and one == other
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    return bool(one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes())
