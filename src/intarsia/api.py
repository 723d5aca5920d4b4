"""The public functions: stages composed, and no logic of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias, overload

import torch

from intarsia import surgery
from intarsia.capture import EntryPoint, capture, capture_methods
from intarsia.core.coverage import coverage, find_coverage, keep_coverage
from intarsia.core.examples import examples_by_method
from intarsia.core.ledger import Ledger, told
from intarsia.core.registry import find_backend
from intarsia.engines.build import check_options
from intarsia.engines.methods import build_methods
from intarsia.errors import IntarsiaError
from intarsia.formats.archive.layout import METHOD
from intarsia.formats.loading import Engines, load_methods, telling
from intarsia.formats.pte.loading import has_pte_ending, open_pte
from intarsia.formats.pte.saving import save_pte
from intarsia.formats.saving import save_methods
from intarsia.partition import partition_methods
from intarsia.runtime.executorch import ExecutorchMethods, ExecutorchProgram, LoadedFile
from intarsia.runtime.methods import Methods, check_method_names, check_methods, run_methods
from intarsia.runtime.program import Program
from intarsia.verification import (
    Entry,
    Inputs,
    MethodsVerification,
    Replay,
    Stages,
    Verification,
    first_calls,
    record_vectors,
    replay_vectors,
    verify_methods,
)
from intarsia.verification import verify as _verify

__all__ = ["compile", "coverage", "export", "ledger", "load", "save"]

TestVectors: TypeAlias = (
    Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | Sequence[tuple[str, Sequence[Any], Mapping[str, Any]]]
)
"""Calls of one program, or of several methods by their names."""

Savable: TypeAlias = torch.fx.GraphModule | torch.export.ExportedProgram | Program
Loaded: TypeAlias = Program | Methods | ExecutorchProgram | ExecutorchMethods


@overload
def compile(  # noqa: A001  as below
    model: EntryPoint,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    backend: str = "openvino",
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    fallback: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> torch.fx.GraphModule: ...


@overload
def compile(  # noqa: A001  as below
    model: Mapping[str, EntryPoint],
    args: Mapping[str, tuple[Any, ...] | None] | None = None,
    kwargs: Mapping[str, Mapping[str, Any] | None] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    backend: str = "openvino",
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    fallback: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, torch.fx.GraphModule]: ...


def compile(  # noqa: A001  named as torch.compile and torch_tensorrt.compile are
    model: EntryPoint | Mapping[str, EntryPoint],
    args: Any = None,
    kwargs: Any = None,
    *,
    dynamic_shapes: Any = None,
    backend: str = "openvino",
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int = 1,
    fallback: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> torch.fx.GraphModule | dict[str, torch.fx.GraphModule]:
    """Compile a model to a hybrid: engines for what the backend takes, torch operators for the rest.

    Args:
        model: Model, a bound method of it (`model.decode`), or a program that was exported already (then without
            `args`). Or several entry points of one model by the names of the methods that they are to be:
            `{"prefill": model.prefill, "decode": model.decode}`.
        args: Example positional inputs; for several methods a mapping with their names.
        kwargs: Example keyword inputs, likewise.
        dynamic_shapes: As for `torch.export.export`, likewise.
        backend: Name of the backend that builds the engines.
        torch_executed_ops: Operators that stay in torch: operator objects, or names ("aten.linear").
        min_block_size: Fewest operators that make an engine worth while, at least 1.
        fallback: Whether what cannot be built stays in torch: the operators that the backend names, else the partition.
            `coverage` tells why.
        options: Passed through to the backend's library.
        progress: Called with engines done, engines in all, and the name of the next one.

    Returns:
        A hybrid that can be called with the model's own arguments; `coverage` tells what runs where. Its weights and
        buffers are the model's own tensors: a call that writes state writes the model's, and `save` stores what they
        hold then. A `Program` has written state of its own. Of several methods, a dict of their hybrids.

    Raises:
        CaptureError: `torch.export` cannot capture the model.
        PartitionError: An operator name matches nothing.
        EngineUnavailable: The backend is not known, or its library is not installed; told before the capture.
        ArgumentError: The backend does not take an option; told before the capture.
        EngineBuildFailed: A partition cannot be built and `fallback` is False.
        ConventionError: There is no method, a method's name is no name for an attribute or is taken, or examples are
            given for a method that is not there.
        StateError: State of one name differs between methods; told before an engine is built.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> hybrid = compile(model, (torch.ones(2, 4),))
        >>> coverage(hybrid).engines
        ('openvino_0',)
        >>> list(compile({"all": model, "first": model[0]}, {"all": (torch.ones(2, 4),), "first": (torch.ones(4),)}))
        ['all', 'first']
    """
    builder = find_backend(backend)
    check_options(builder, options)
    captured = _capture(model, args, kwargs, dynamic_shapes)
    kept = torch_executed_ops if isinstance(torch_executed_ops, str) else tuple(torch_executed_ops)
    hybrids = build_methods(
        lambda supports: partition_methods(
            captured, supports=supports, torch_executed_ops=kept, min_block_size=min_block_size, prefix=backend
        ),
        backend=builder,
        export=surgery.export,
        options=options,
        fallback=fallback,
        progress=progress,
    )
    return hybrids if isinstance(model, Mapping) else hybrids[""]


def _capture(model: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> dict[str, torch.export.ExportedProgram]:
    """The program of each method; a model that is no mapping is one, without a name."""
    if not isinstance(model, Mapping):
        return {"": capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)}
    check_method_names(model)
    programs = capture_methods(model, examples_by_method(model, args, kwargs, dynamic_shapes))
    check_methods(programs)
    return programs


@overload
def export(
    hybrid: torch.fx.GraphModule,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    retrace: bool = False,
) -> torch.export.ExportedProgram: ...


@overload
def export(
    hybrid: Mapping[str, torch.fx.GraphModule],
    args: Mapping[str, Sequence[Any] | None] | None = None,
    kwargs: Mapping[str, Mapping[str, Any] | None] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    retrace: bool = False,
) -> dict[str, torch.export.ExportedProgram]: ...


def export(
    hybrid: torch.fx.GraphModule | Mapping[str, torch.fx.GraphModule],
    args: Any = None,
    kwargs: Any = None,
    *,
    dynamic_shapes: Any = None,
    retrace: bool = False,
) -> torch.export.ExportedProgram | dict[str, torch.export.ExportedProgram]:
    """Export a hybrid: by graph surgery alone, or by `torch.export.export` when `retrace` asks for it.

    Surgery runs nothing and copies no weight; it needs no example inputs when the hybrid's graph carries metadata, as
    every hybrid of `compile` does. The hybrid is left as it was.

    Args:
        hybrid: A hybrid of `compile`, or of another tool: any graph module whose graph calls partitions. Or several,
            by the names of the methods that they are.
        args: Example positional inputs, where the graph has no metadata; only structure, shapes and dtypes are used.
            For several methods a mapping with their names.
        kwargs: Example keyword inputs, likewise.
        dynamic_shapes: As for `torch.export.export`, where the metadata does not tell which sizes are dynamic;
            likewise.
        retrace: Whether to trace the hybrid again instead; needs example inputs.

    Returns:
        A program whose state is the very tensors of the hybrid; `ledger` tells what became of everything. Of several
        methods, a dict of their programs.

    Raises:
        HybridError: A partition has no graph, or a call does not fit it.
        StateError: A graph reads an attribute that is missing or cannot be exported, or state of one name differs
            between methods.
        ConventionError: The graph does not say how it is called, and neither do the examples; or as for `compile`.
        ConservationError: The result would not hold what the hybrid holds.
        CaptureError: `retrace` is True and torch refuses the hybrid.

    Example:
        >>> hybrid = compile(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> program = export(hybrid)
        >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        ['intarsia.run_engine.default', '<built-in function getitem>']
    """
    export_one = surgery.retrace if retrace else surgery.export
    if not isinstance(hybrid, Mapping):
        return keep_coverage(hybrid, export_one(hybrid, args, kwargs, dynamic_shapes=dynamic_shapes))
    check_method_names(hybrid)
    examples = examples_by_method(hybrid, args, kwargs, dynamic_shapes)
    programs = {}
    for name, one in hybrid.items():
        with IntarsiaError.of_method(name):
            own = examples[name]
            program = export_one(one, own.args, own.kwargs, dynamic_shapes=own.dynamic_shapes)
            programs[name] = keep_coverage(one, program)
    check_methods(programs, {name: placed.held for name, one in hybrid.items() if (placed := find_coverage(one))})
    return programs


def save(
    hybrid_or_program_or_methods: Savable | Methods | Mapping[str, Savable],
    path: str | os.PathLike[str],
    *,
    payloads: bool = True,
    test_vectors: TestVectors | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Save a program, or several methods of one model, as a `.pt2` or `.pte` file; a hybrid is exported first.

    `torch.export.load` reads a `.pt2` file of one program too, once intarsia is imported. It holds no pickle. What
    methods share is stored once. State is the initial one: what calls of a loaded program have written is not stored.

    A path that ends in `.pte` makes a file for ExecuTorch (the extra `intarsia[pte]`): engines as delegates, then what
    XNNPACK takes, then portable kernels. `intarsia.executorch.to_edge` leaves the choice to you.

    Args:
        hybrid_or_program_or_methods: What `compile`, `export` or `load` returned, or any hybrid or exported program; or
            several by the names of the methods that they are, exported from one model. State of one name is one state.
        path: Where to, and by its ending the kind of file; one that is there is replaced when the new one is whole.
        payloads: Whether to store the compiled form of each engine. Without it the file is smaller, loads on any
            machine, and each engine is built from its portable form when it is first called. A `.pte` needs it.
        test_vectors: Calls to make now, in order, from the initial state on: the file records them and the answers, and
            `verify` makes them again. Pairs of positional and keyword arguments; for several methods triples that begin
            with the name of the method. When they are left out, what `load` returned keeps those of its file. A `.pte`
            has none.
        progress: Called with bytes written, bytes in all, and the name of the next member of a `.pt2`.

    Raises:
        FormatError: The file cannot be written; what was there before is left whole. Or ExecuTorch refuses the program.
        EngineUnavailable: The file is a `.pte`, and ExecuTorch is not installed.
        MutationError: The file is a `.pte`, and a write would be lost.
        StateError: State of the program could be stored as a pickle only, or differs between methods.
        ConventionError: There is no method, or a method's name is no name for an attribute, or is taken. Or test
            vectors are no calls, or hold what no file can.
        ArgumentError: A test vector does not fit the program, or its call fails.
        EngineError: An engine is damaged, or has no portable form, and `payloads` is false.

    Example:
        >>> import tempfile
        >>> hybrid = compile(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(hybrid, f"{folder}/model.pt2")
        ...     load(f"{folder}/model.pt2")(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """
    given = hybrid_or_program_or_methods
    methods = _methods_of(given)
    programs = {name: program for name, (program, _) in methods.items()}
    if has_pte_ending(path):
        save_pte(programs, path, payloads=payloads, vectors=test_vectors is not None)
        return
    vectors = given.test_vectors if test_vectors is None and isinstance(given, Program | Methods) else None
    if test_vectors is not None:
        named = isinstance(given, Mapping | Methods)
        vectors = record_vectors(test_vectors, programs, run_methods(programs), named=named)
    facts = {name: known for name, (_, known) in methods.items()}
    save_methods(programs, path, facts=facts, payloads=payloads, vectors=vectors, progress=progress)


def programs_of(given: Savable | Methods | Mapping[str, Savable]) -> dict[str, torch.export.ExportedProgram]:
    """The programs that `save` would write, by the names of their methods; raises as it does."""
    return {name: program for name, (program, _) in _methods_of(given).items()}


def _methods_of(given: Any) -> dict[str, tuple[torch.export.ExportedProgram, dict[str, Any]]]:
    """The programs to save, and what is known of them."""
    if isinstance(given, Methods):
        given = {name: getattr(given, name) for name in given.methods}
    if not isinstance(given, Mapping):
        return {METHOD: _resolve(given)}
    methods = _resolve_methods(given)
    programs = {name: program for name, (program, _) in methods.items()}
    check_methods(programs, {name: (facts["coverage"] or {}).get("held", ()) for name, (_, facts) in methods.items()})
    return methods


def _resolve_methods(methods: Mapping[str, Savable]) -> dict[str, tuple[torch.export.ExportedProgram, dict[str, Any]]]:
    check_method_names(methods)
    resolved = {}
    for name, one in methods.items():
        with IntarsiaError.of_method(name):
            resolved[name] = _resolve(one)
    return resolved


def _resolve(savable: Savable) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """The program to save, and what is known of it."""
    program = savable
    placed = manifest = None
    if isinstance(program, Program):
        program.check()
        manifest = program.manifest
        program = program.exported_program
    elif isinstance(program, torch.fx.GraphModule):
        placed = find_coverage(program)
        program = surgery.export(program)
    elif isinstance(program, torch.export.ExportedProgram):
        placed = find_coverage(program.graph_module)
    account = manifest.ledger if manifest else surgery.find_ledger(program)
    places = manifest.coverage if manifest else placed and asdict(placed)
    return program, {"coverage": places, "ledger": account and account.to_json()}


def load(
    path: str | os.PathLike[str],
    *,
    allow: Iterable[str] = (),
    engines: Engines = "verify",
    verify: bool = False,
) -> Loaded:
    """Load a program from a `.pt2` file, whoever wrote it, or from a `.pte` file that `save` wrote.

    No code of the file is run, and nothing is unpickled or imported. The library of a backend reads an engine's
    compiled form when the engine is first called.

    Args:
        path: Of the file.
        allow: What may be in it that is refused otherwise: "pickle", for another tool's file with pickled tensors or
            objects, which can run code.
        engines: "verify" takes the compiled forms of engines, which are compared with their hashes. "rebuild" ignores
            them: each engine is built from its portable form when it is first called.
        verify: Whether to compare every byte with its hash now. Otherwise a tensor is compared when it is first needed:
            at the first call of a method that reads it.

    Returns:
        A program that takes the model's own arguments and gives the model's own structure; of a file that was saved
        with names of methods, its methods: `loaded.prefill(...)`. ExecuTorch runs those of a `.pte`.

    Raises:
        FormatError: The path is none, or the file is missing, cut short, foreign or damaged, holds what could run code,
            is beyond a limit, or needs an operator or a class that has to be imported first; or `verify` is True and
            the file has no hashes: another tool wrote it, or it is a `.pte`.
        EngineUnavailable: The file is a `.pte`, and ExecuTorch is not installed.
        UnsupportedVersion: A newer intarsia wrote it, or a torch whose graphs this torch does not read.
        EngineError: The bytes of an engine were changed, or `engines` is "rebuild" and one has no portable form.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(compile(torch.nn.ReLU(), (torch.ones(2),)), f"{folder}/relu.pt2")
        ...     program = load(f"{folder}/relu.pt2")
        >>> program(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if has_pte_ending(path):
        return _load_pte(path, engines=engines, verify=verify)
    return load_pt2(path, allow=allow, engines=engines, verify=verify)


def load_pt2(
    path: str | os.PathLike[str], *, allow: Iterable[str] = (), engines: Engines = "verify", verify: bool = False
) -> Program | Methods:
    """Load a program from a `.pt2` file, as `load` does."""
    loaded = load_methods(path, allow=allow, engines=engines, verify=verify)
    with telling(path):
        if list(loaded) == [METHOD]:
            return Program(*loaded[METHOD])
        programs = {name: Program(*method[:3]) for name, method in loaded.items()}
        return Methods(programs, next(iter(loaded.values())).vectors)


def _load_pte(path: str | os.PathLike[str], *, engines: Engines, verify: bool) -> ExecutorchProgram | ExecutorchMethods:
    opened = open_pte(path, rebuild=engines == "rebuild", verify=verify)
    methods = ExecutorchMethods(opened.boundaries, LoadedFile(opened.load))
    return getattr(methods, METHOD) if methods.methods == (METHOD,) else methods


def ledger(program: torch.export.ExportedProgram | Program) -> Ledger:
    """What export did with every node, output, state entry and write of the hybrid.

    Args:
        program: What `export` returned, or a program loaded from a file that `save` wrote.

    Raises:
        ConventionError: Nothing is known, for another tool made the program.

    Example:
        >>> hybrid = compile(torch.nn.ReLU(), (torch.ones(2),), torch_executed_ops={"aten.relu"})
        >>> ledger(export(hybrid)).select("node")[0]
        Entry(kind='node', subject='relu', fate='kept', image='relu', reason='')
    """
    return told(program.ledger if isinstance(program, Program) else surgery.find_ledger(program))


@overload
def verify(
    path_or_program: torch.fx.GraphModule | torch.export.ExportedProgram | Program,
    reference: Entry | None = None,
    inputs: Inputs | None = None,
    *,
    example: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Verification: ...


@overload
def verify(
    path_or_program: Methods | Mapping[str, Savable],
    reference: torch.nn.Module | Mapping[str, Entry] | None = None,
    inputs: Mapping[str, Inputs] | None = None,
    *,
    example: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> MethodsVerification: ...


@overload
def verify(
    path_or_program: str | os.PathLike[str],
    reference: Entry | Mapping[str, Entry] | None = None,
    inputs: Inputs | Mapping[str, Inputs] | None = None,
    *,
    example: Any = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Verification | MethodsVerification: ...


def verify(
    path_or_program: str | os.PathLike[str] | Savable | Methods | Mapping[str, Savable],
    reference: Any = None,
    inputs: Any = None,
    *,
    example: Any = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Verification | MethodsVerification:
    """Compare a program to the bit with the retraced one and with its eager graph, and with its model in tolerances.

    Args:
        path_or_program: A hybrid, whose export is verified; an exported or loaded program; or the path of a file. Or
            several methods: a mapping, or what `load` returns. No tensor of it is changed.
        reference: The model that it was made of, or a bound method of it, to compare outputs with. For several methods
            the model that has methods of their names, or a mapping of entry points. Not changed.
        inputs: Calls to make, pairs of positional and keyword arguments. When they are left out, inputs are drawn at
            the corners of the ranges. For several methods a mapping with their names, of which some may be left out.
        example: One call that suits the program. Where the graph does not tell what an integer input is for, its
            integers are drawn between the lowest and the highest of the example. For several methods a mapping.
        progress: Called with calls done, calls in all, and the name of what comes next.

    Returns:
        A result that prints as a table; its `ok` is the verdict. For several methods, each is verified alone, and then
        all of them are called in turn on one state. Its `replay` tells how near the answers to the calls that a file
        records are to the recorded ones; where no example is given, they are the example too.

    Raises:
        ConventionError: Inputs cannot be drawn: pass them, or an example. Or a name is none of a method.
        ArgumentError: Given inputs do not fit the program.
        FormatError: The file cannot be read, or its test vectors do not fit.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> result = verify(compile(model, (torch.ones(3, 4),)), model)
        >>> result.ok, [leaf.name for leaf in result.leaves]
        (True, ['output'])
    """
    subject = load_pt2(path_or_program) if isinstance(path_or_program, (str, os.PathLike)) else path_or_program
    replay, recorded = _replay(subject) if isinstance(subject, Program | Methods) else (None, {})
    stages = Stages(surgery.export, surgery.retrace, Program, run_methods)
    if isinstance(subject, Methods):
        subject = {name: getattr(subject, name) for name in subject.methods}
    if isinstance(subject, Mapping):
        check_method_names(subject)
        subjects = {name: _program_of(one) for name, one in subject.items()}
        example = recorded if example is None else example
        several = verify_methods(subjects, reference, inputs, stages=stages, example=example, progress=progress)
        return replace(several, replay=replay)
    example = recorded.get(METHOD) if example is None else example
    result = _verify(_program_of(subject), reference, inputs, stages=stages, example=example, progress=progress)
    return replace(result, replay=replay)


def _replay(loaded: Program | Methods) -> tuple[Replay | None, dict[str, Any]]:
    """What the test vectors of a file tell, and example arguments for each method that they call."""
    vectors = loaded.test_vectors
    if vectors is None:
        return None, {}
    methods = {METHOD: loaded} if isinstance(loaded, Program) else {name: getattr(loaded, name) for name in loaded}
    programs = {name: program.exported_program for name, program in methods.items()}
    return replay_vectors(vectors, programs, run_methods(programs)), first_calls(vectors, programs)


def _program_of(subject: Savable) -> torch.fx.GraphModule | torch.export.ExportedProgram:
    if not isinstance(subject, Program):
        return subject
    subject.check()
    return subject.exported_program
