"""One check for every hybrid: the program is the eager hybrid, to the bit, in memory, decomposed and from a file."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from intarsia.surgery import export

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def through_file(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # torch warns when no tensor covers a storage that several ones share; it saves and loads them rightly
        warnings.filterwarnings("ignore", "No complete tensor found in the group")
        torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


FORMS: dict[str, Callable[[ExportedProgram], ExportedProgram]] = {
    "memory": lambda program: program,
    "file": through_file,
    "decomposed": lambda program: program.run_decompositions({}),
}


def copied(structure: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone(), structure)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor that a module and its submodules hold, by path."""
    held: dict[str, torch.Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in {**part._parameters, **part._buffers, **vars(part)}.items():
            if isinstance(value, torch.Tensor):
                held[f"{path}.{name}" if path else name] = value
    return held


def printed(module: GraphModule) -> dict[str, Any]:
    """All that an export must leave as it was: graphs, code and the very metadata of their nodes."""
    seen: dict[str, Any] = {}
    for path, part in module.named_modules():
        if isinstance(part, GraphModule):
            metadata = [(node.name, {key: id(value) for key, value in node.meta.items()}) for node in part.graph.nodes]
            seen[path] = str(part.graph), part.code, metadata
    return seen


def assert_same(found: Any, expected: Any, where: str) -> None:
    """The same types all the way down, and the same bits."""
    assert type(found) is type(expected), f"{where}: {type(found)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        kinds = (found.dtype, found.shape), (expected.dtype, expected.shape)
        assert kinds[0] == kinds[1], f"{where}: {kinds[0]} instead of {kinds[1]}"
        assert _bits(found) == _bits(expected), f"{where}: {found} instead of {expected}"
    elif isinstance(expected, dict):
        assert list(found) == list(expected), f"{where}: keys {list(found)} instead of {list(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected), f"{where}: {len(found)} items instead of {len(expected)}"
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    elif dataclasses.is_dataclass(expected):
        assert_same(vars(found), vars(expected), where)
    else:
        assert found == expected, f"{where}: {found!r} instead of {expected!r}"


def _bits(value: torch.Tensor) -> bytes:
    flat = value.detach().contiguous().flatten()
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the eager hybrid did over some calls."""

    outputs: list[Any]
    inputs: list[Any]
    state: dict[str, torch.Tensor]


def expect(reference: GraphModule, calls: Sequence[Call]) -> Expected:
    outputs, inputs = [], []
    with torch.no_grad():
        for args, kwargs in copied(list(calls)):
            outputs.append(plain(copied(reference(*args, **kwargs))))
            inputs.append((args, kwargs))
    return Expected(outputs, inputs, copied(state_of(reference)))


def plain(structure: Any) -> Any:
    """What an eager graph returns, with plain containers in place of fx's immutable ones, held by accident."""
    from torch.fx.immutable_collections import immutable_dict, immutable_list

    if type(structure) in (list, immutable_list):
        return [plain(item) for item in structure]
    if type(structure) in (dict, immutable_dict):
        return {key: plain(item) for key, item in structure.items()}
    return tuple(plain(item) for item in structure) if type(structure) is tuple else structure


def assert_follows(program: ExportedProgram, names: Mapping[str, str], calls: Sequence[Call], wanted: Expected) -> None:
    """Run a program and compare outputs, inputs and state with what was expected.

    Args:
        program: Its own state is written.
        names: For each state name of the program the path of that tensor in the hybrid.
        calls: Inputs.
        wanted: What the hybrid did.
    """
    module = program.module()
    with torch.no_grad():
        for index, (args, kwargs) in enumerate(copied(list(calls))):
            assert_same(copied(module(*args, **kwargs)), wanted.outputs[index], f"call {index}: output")
            assert_same((args, kwargs), wanted.inputs[index], f"call {index}: inputs afterwards")
    held = {**program.state_dict, **program.constants}
    for name, path in names.items():
        if name in held:
            assert_same(held[name].detach(), wanted.state[path].detach(), f"state '{name}'")


def same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.data_ptr() == other.data_ptr()


def state_names(program: ExportedProgram, module: GraphModule) -> dict[str, str]:
    """The path in the hybrid of every tensor of a program; each must be the very tensor of the hybrid."""
    paths = {id(value): path for path, value in state_of(module).items()}
    names = {}
    for name, value in {**program.state_dict, **program.constants}.items():
        if isinstance(value, torch.Tensor):
            assert id(value) in paths, f"'{name}' is a copy"
            names[name] = paths[id(value)]
    return names


def check(
    build: Callable[[], GraphModule],
    calls: Sequence[Call],
    *,
    examples: Call | None = None,
    dynamic_shapes: Any = None,
    forms: Sequence[str] = tuple(FORMS),
) -> ExportedProgram:
    """Export a hybrid and hold the program against the eager hybrid.

    Args:
        build: Makes the hybrid anew; each copy is given its own state.
        calls: Inputs of several calls in a row.
        examples: Example inputs of the export; none unless given.
        dynamic_shapes: Handed to the export.
        forms: What is done with the program before it is called, by its name in `FORMS`.

    Returns:
        The program that was checked in the first form.
    """
    wanted = expect(build(), calls)
    args, kwargs = examples or (None, None)
    programs = []
    for form in forms:
        subject = build()
        before = printed(subject)
        programs.append(export(subject, copied(args), copied(kwargs), dynamic_shapes=dynamic_shapes))
        assert printed(subject) == before, "the export changed the hybrid"
        assert_follows(FORMS[form](programs[-1]), state_names(programs[-1], subject), calls, wanted)
    return programs[0]


def operators(program: ExportedProgram) -> list[Any]:
    """Targets of a program's calls, in order."""
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def targets(program: ExportedProgram, kind: str) -> list[str | None]:
    """Targets of a program's input specs (or output specs) of one kind, in order."""
    specs = [*program.graph_signature.input_specs, *program.graph_signature.output_specs]
    return [spec.target for spec in specs if spec.kind.name == kind]
