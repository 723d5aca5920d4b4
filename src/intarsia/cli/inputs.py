"""The inputs of a command: read from files, drawn, or those of a target."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from intarsia.cli.console import activity
from intarsia.cli.target import Target, import_modules
from intarsia.errors import ArgumentError, IntarsiaError, first_line, near_match

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from intarsia.api.files import Loaded
    from intarsia.formats.tensors.named import NamedTensors
    from intarsia.report.program import LeafFacts
    from intarsia.runtime.graphless import GraphlessProgram
    from intarsia.runtime.methods import Methods
    from intarsia.runtime.program import Program
    from intarsia.verification import Call

    Callee: TypeAlias = Program | GraphlessProgram

File = Annotated[Path, typer.Argument(metavar="FILE", help="File that `intarsia compile` or `intarsia.save` wrote.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import package.module or file.py first, which registers an operator of FILE, or a class in its "
        "arguments or outputs; may be repeated.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="WORD",
        help="Accept in FILE what is refused otherwise and can run code: native (compiled code) or pickle. Only where "
        "you trust it.",
    ),
]
EnginesWord: TypeAlias = Literal["verify", "rebuild"]
EngineForms = Annotated[
    EnginesWord,
    typer.Option(
        "--engines",
        help="Take the compiled engines of FILE, or build them from their portable forms.",
    ),
]
Inputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--inputs",
        metavar="FILE.safetensors",
        help="Inputs of one call, by the names that `intarsia inspect` shows; repeat it for further calls.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="TARGET",
        help="The model to compare with: package.module:factory or file.py:factory, as for `intarsia compile`.",
    ),
]


MethodName = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="The method to call, of a FILE that holds several."),
]


def load_program(
    file: Path, imports: Sequence[str] | None, method: str | None, *, allow: Sequence[str] | None, engines: EnginesWord
) -> Callee:
    """Load one program of a file.

    Args:
        file: What to load.
        imports: Modules to import before.
        allow: What it may hold, as for `intarsia.load`.
        engines: What becomes of its engines, likewise.
        method: Which to take where the file holds several methods.

    Raises:
        FormatError: As for `load_file`.
        TargetError: Likewise.
        ArgumentError: The file holds several methods, and none of them was named; or it holds one program, and a
            method was named.
    """
    from intarsia.runtime.method_set import MethodSet

    loaded = load_file(file, imports, allow=allow, engines=engines)
    if not isinstance(loaded, MethodSet):
        if method is None:
            return loaded
        found, fix = f"one program, which has no methods, and --method {method}", "Leave --method out."
        raise ArgumentError(str(file), found=found, expected="several methods", fix=fix)
    if method in loaded.methods:
        program: Callee = getattr(loaded, method)
        return program
    listed = ", ".join(loaded.methods)
    raise ArgumentError(
        str(file),
        found=f"the methods {listed}" + ("" if method is None else f", and --method {method}"),
        expected="the name of one of them",
        fix=near_match(method or "", loaded.methods) or f"Add --method {loaded.methods[0]}, or another of them.",
    )


def load_file(
    file: Path, imports: Sequence[str] | None, *, allow: Sequence[str] | None, engines: EnginesWord
) -> Loaded:
    """Load what a file holds, to call it, and tell that it takes a while.

    Args:
        file: What to load.
        imports: Modules to import before.
        allow: What it may hold, as for `intarsia.load`.
        engines: What becomes of its engines, likewise.

    Raises:
        FormatError: The file cannot be read, or what it needs must be imported first.
        TargetError: A module cannot be imported.
        EngineUnavailable: The file is a `.pte`, and ExecuTorch is not installed.
    """
    from intarsia import api

    with loading(file, imports):
        return api.load(file, allow=allow or (), engines=engines)


def load_graphs(file: Path, imports: Sequence[str] | None, *, allow: Sequence[str] | None) -> Program | Methods:
    """Load a file of graphs, to read them; arguments and errors as for `load_file`, and `FormatError` for another."""
    from intarsia import api

    with loading(file, imports):
        return api.load_pt2(file, allow=allow or ())


def outline_of(program: Callee) -> ExportedProgram:
    """What a program takes and gives: the exported program, or the boundary of one whose file holds no graph."""
    from intarsia.runtime.graphless import GraphlessProgram

    return program.boundary if isinstance(program, GraphlessProgram) else program.exported_program


@contextmanager
def loading(file: Path, imports: Sequence[str] | None) -> Iterator[None]:
    """Import what a file needs, and tell that loading it takes a while, and which option helps where it fails.

    Raises:
        FormatError: The file cannot be read, or a class that it names must be imported first.
        TargetError: A module cannot be imported.
    """
    import_modules(imports or ())

    from intarsia.formats.loading import NotImported

    with activity(f"loading {file}"):
        try:
            yield
        except NotImported as error:
            fix = f"Add --import {error.module or 'MODULE'}, or another module that registers it: "
            fix += "a load imports nothing by itself."
            raise type(error)(
                error.subject, found=error.found, expected=error.expected, fix=fix, module=error.module
            ) from error


def read_call(program: Callee, path: Path) -> Call:
    """One call of a program, read from a `.safetensors` file.

    Tensors have the names that `intarsia inspect` shows. An input that is no tensor stands in the metadata of the
    file, as JSON; one whose value was fixed by the export may be left out.

    Raises:
        FormatError: The file cannot be read.
        ArgumentError: A name is missing, or the program does not know it. What a tensor must be like, the program
            checks when it is called.
    """
    from intarsia._torch import pytree
    from intarsia.formats.tensors.named import read_tensors
    from intarsia.report.program import describe_program
    from intarsia.verification import Call

    exported = outline_of(program)
    inputs = describe_program(exported).inputs
    content = read_tensors(path)
    _check_names(path, inputs, content)
    fixed = _fixed_values(program)
    leaves = [_value(path, leaf, content, fixed) for leaf in inputs]
    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    return Call(tuple(args), kwargs)


class Drawn(NamedTuple):
    """Calls with drawn inputs.

    Attributes:
        calls: One for each seed.
        findings: What was taken from the example, for people.
    """

    calls: list[Call]
    findings: tuple[str, ...]


def draw_calls(program: Callee, seeds: Iterable[int], example: Target | None = None) -> Drawn:
    """Calls with drawn inputs, every size in the middle of its range.

    Args:
        program: Tells dtypes and sizes.
        seeds: One for each call.
        example: Its example inputs, and the test vectors of the program's file, tell what may stand in integer inputs
            of which the program does not.

    Raises:
        UndrawableInput: Inputs cannot be drawn.
        ConventionError: The example has another structure than the program's arguments.
    """
    from intarsia.verification import Call, Drawing, middle

    exported = outline_of(program)
    examples = [] if example is None else [Call(example.args, example.kwargs or {})]
    drawing = Drawing(exported, *examples, *_recorded_calls(program))
    point = middle(exported)
    return Drawn([drawing.draw(point, seed) for seed in seeds], drawing.findings)


def _recorded_calls(program: Callee) -> list[Call]:
    """The calls of a program that its file records."""
    from intarsia.formats.archive.layout import METHOD
    from intarsia.runtime.graphless import GraphlessProgram
    from intarsia.verification import Call, calls_by_method

    vectors = program.test_vectors
    if vectors is None:
        return []
    name = program.name if isinstance(program, GraphlessProgram) else METHOD
    recorded = calls_by_method(vectors, {name: outline_of(program)})
    return [Call(args, kwargs) for args, kwargs in recorded[name]]


@contextmanager
def drawing_faults(fix: str) -> Iterator[None]:
    """Say in the words of a command what to do where inputs cannot be drawn."""
    from intarsia.verification import UndrawableInput

    try:
        yield
    except UndrawableInput as error:
        fix = f"{fix} Test vectors in a .pt2 file tell too."
        raise UndrawableInput(error.subject, found=error.found, expected=error.expected, fix=fix) from error


def call_program(program: Callee, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a program.

    Raises:
        ArgumentError: The inputs do not fit the program, or an operator refuses them.
        EngineError: An engine failed, or is damaged.
    """
    try:
        return program(*args, **kwargs)
    except IntarsiaError:
        raise
    except Exception as error:
        raise ArgumentError(
            "a call of the program",
            found=f"{type(error).__name__} ({first_line(error)})",
            expected="inputs and state that the program computes with",
            fix="Pass inputs that suit it with --inputs.",
        ) from error


def _check_names(path: Path, inputs: tuple[LeafFacts, ...], content: NamedTensors) -> None:
    names = {leaf.name for leaf in inputs}
    from intarsia.runtime.structure import suggest

    unknown = [name for name in content.tensors if name not in names]
    missing = [name for name in names if name not in content.tensors]
    if unknown:
        expected = ", ".join(f"{leaf.name}: {leaf.type}" for leaf in inputs)
        raise ArgumentError(
            str(path),
            found=f"a tensor {unknown[0]!r}",
            expected=f"the inputs of the program ({expected or 'none'})",
            fix=suggest(unknown, missing) or "Rename it, or take it out.",
        )


def _fixed_values(program: Callee) -> Mapping[str, Any]:
    """Values that the export fixed, by input name."""
    from torch.export.graph_signature import ConstantArgument, InputKind

    from intarsia.report.program import describe_program

    exported = outline_of(program)
    specs = [spec for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    leaves = describe_program(exported).inputs
    return {
        leaf.name: spec.arg.value
        for leaf, spec in zip(leaves, specs, strict=True)
        if isinstance(spec.arg, ConstantArgument)
    }


def _value(path: Path, leaf: LeafFacts, content: NamedTensors, fixed: Mapping[str, Any]) -> Any:
    if leaf.name in content.tensors:
        return content.tensors[leaf.name]
    if leaf.name in content.metadata:
        return _parse(path, leaf, content.metadata[leaf.name])
    if leaf.name in fixed:
        return fixed[leaf.name]
    held = ", ".join(content.tensors) or "no tensor"
    raise ArgumentError(
        f"input {leaf.name!r}",
        found=f"no value in {str(path)!r}, which holds {held}",
        expected=leaf.type,
        fix=f"Add it to the file under this name{'' if '[' in leaf.type else ', as JSON in the metadata'}.",
    )


def _parse(path: Path, leaf: LeafFacts, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(
            f"input {leaf.name!r}",
            found=f"{text!r} in the metadata of {str(path)!r}",
            expected='JSON, such as 3, 0.5, true, null or "text"',
            fix="Write the value with json.dumps.",
        ) from error
