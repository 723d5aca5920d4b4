"""Programs to files, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias, get_args

import torch

from intarsia import surgery
from intarsia.api.exporting import export, hold_engines
from intarsia.core.coverage import find_coverage
from intarsia.core.method_names import check_method_names
from intarsia.core.signature import SHORT_NAMES
from intarsia.core.vectors import Vectors
from intarsia.errors import ConventionError, FormatError, IntarsiaError, near_match
from intarsia.formats.aoti.loading import is_package, open_aoti
from intarsia.formats.aoti.saving import save_aoti
from intarsia.formats.archive.layout import METHOD
from intarsia.formats.loading import Engines, load_methods, telling
from intarsia.formats.manifest import Manifest
from intarsia.formats.pte.loading import has_pte_ending, open_pte
from intarsia.formats.pte.saving import save_pte
from intarsia.formats.saving import save_methods
from intarsia.formats.tensors.storable import checked_program
from intarsia.runtime.compiled import CompiledFile, CompiledMethods, CompiledProgram
from intarsia.runtime.executorch import ExecutorchMethods, ExecutorchProgram, LoadedFile
from intarsia.runtime.methods import Methods, check_methods, run_methods
from intarsia.runtime.program import Program
from intarsia.verification import leaf_dtypes, record_vectors

TestVectors: TypeAlias = (
    Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | Sequence[tuple[str, Sequence[Any], Mapping[str, Any]]]
)
"""Calls of one program, or of several methods by their names."""

EngineForm: TypeAlias = Literal["compiled", "source"]
Savable: TypeAlias = torch.fx.GraphModule | torch.export.ExportedProgram | Program
Format: TypeAlias = Literal["pt2", "pte", "aoti"]
Loaded: TypeAlias = Program | Methods | ExecutorchProgram | ExecutorchMethods | CompiledProgram | CompiledMethods


def save(
    hybrid_or_program_or_methods: Savable | Methods | Mapping[str, Savable],
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,  # noqa: A002 - the word that torch uses too
    payloads: bool = True,
    engines: EngineForm = "compiled",
    test_vectors: TestVectors | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Save a program, or several methods of one model, as a `.pt2` or `.pte` file; a hybrid is exported first.

    `torch.export.load` reads a `.pt2` file of one program too, once intarsia is imported. It holds no pickle. What
    methods share is stored once. State is the initial one: what calls of a loaded program have written is not stored.

    A path that ends in `.pte` makes a file for ExecuTorch (the extra `intarsia[pte]`): engines as delegates, then what
    XNNPACK takes, then portable kernels. `intarsia.executorch.to_edge` leaves the choice to you.

    With `format="aoti"` a `.pt2` file holds code instead of graphs: torch operators compiled by AOTInductor, for which
    there must be a C++ compiler, and engines called as before. It runs on this version of torch and this kind of
    processor only.

    Args:
        hybrid_or_program_or_methods: What `compile`, `export` or `load` returned, or any hybrid or exported program; or
            several by the names of the methods that they are, exported from one model. State of one name is one state.
        path: Where to, and by its ending the kind of file; one that is there is replaced when the new one is whole.
        format: "aoti" for a `.pt2` of compiled code. Otherwise the ending tells.
        payloads: Whether to store the compiled form of each engine. Without it the file is smaller, loads on any
            machine, and each engine is built from its portable form when it is first called. A `.pte` needs it.
        engines: Of a `.pte`: "compiled" makes each engine a delegate. "source" puts the torch operators that it was
            built from in its place, for other delegates and for kernels. These are known in the process that compiled
            it, as long as the model lives.
        test_vectors: Calls to make now, in order, from the initial state on: the file records them and the answers, and
            `verify` makes them again. Pairs of positional and keyword arguments; for several methods triples that begin
            with the name of the method. When they are left out, what `load` returned keeps those of its file; of a part
            of it, or of several loaded programs, say what becomes of theirs: `[]` for none. A `.pte` has none.
        progress: Called with bytes written, bytes in all, and the name of the next member of a `.pt2`.

    Raises:
        FormatError: The file cannot be written; what was there before is left whole. Or ExecuTorch or AOTInductor
            refuses the program.
        EngineUnavailable: The file is a `.pte`, and ExecuTorch is not installed; or there is no compiler for its code.
        MutationError: The file is a `.pte`, and a write would be lost.
        StateError: State of the program could be stored as a pickle only, or differs between methods.
        ConventionError: There is no method, or a method's name is no name for an attribute, or is taken. Or test
            vectors are no calls, or hold what no file can, or those of a file do not fit what is saved.
        ArgumentError: A test vector does not fit the program, or its call fails.
        EngineError: An engine is damaged, or has no portable form, and `payloads` is false. Or the file is a `.pte`,
            and an engine cannot travel or its torch operators are not known.

    Example:
        >>> import intarsia
        >>> import tempfile
        >>> hybrid = intarsia.compile(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     intarsia.save(hybrid, f"{folder}/model.pt2")
        ...     intarsia.load(f"{folder}/model.pt2")(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """
    given = hybrid_or_program_or_methods
    _check_format(format, path)
    if has_pte_ending(path):
        programs = programs_of(given, engines)
        save_pte(programs, path, facts=_precision(programs), payloads=payloads, vectors=test_vectors is not None)
        return
    _check_form(engines, path)
    methods = _methods_of(given)
    programs = {name: program for name, (program, _) in methods.items()}
    facts = {name: known for name, (_, known) in methods.items()}
    if test_vectors is None:
        vectors = _kept_vectors(given)
    else:
        named = isinstance(given, Mapping | Methods)
        vectors = record_vectors(test_vectors, programs, run_methods(programs), named=named)
    if format == "aoti":
        told = {name: {**facts[name], **precision} for name, precision in _precision(programs).items()}
        save_aoti(programs, path, facts=told, payloads=payloads, vectors=vectors)
        return
    save_methods(programs, path, facts=facts, payloads=payloads, vectors=vectors, progress=progress)


def _precision(programs: Mapping[str, torch.export.ExportedProgram]) -> dict[str, dict[str, Any]]:
    """What a file without a graph tells, so that it can be verified: `precision`, for the manifest of each method."""
    return {
        method: {"precision": {name: SHORT_NAMES[dtype] for name, dtype in found.items() if dtype in SHORT_NAMES}}
        for method, found in leaf_dtypes({name: checked_program(one) for name, one in programs.items()}).items()
    }


def _check_format(chosen: str | None, path: object) -> None:
    """Refuse a format that is unknown, or another than the ending of the path tells."""
    formats, is_pte = get_args(Format), has_pte_ending(path)
    if chosen is None or (chosen in formats and (chosen == "pte") == is_pte):
        return
    raise FormatError(
        "format",
        found=f"{chosen!r}" if chosen not in formats else f"{chosen!r} for {path}",
        expected=" or ".join(map(repr, formats)) if chosen not in formats else "one that the ending tells",
        fix=near_match(str(chosen), formats) or "Leave it out: the ending of the path tells, .pt2 or .pte.",
    )


def _kept_vectors(given: Savable | Methods | Mapping[str, Savable]) -> Vectors | None:
    """The test vectors of the file that something was loaded from.

    Raises:
        ConventionError: It is a part of that file, or stands beside others: the calls may not answer as recorded.
    """
    kept = given.test_vectors if isinstance(given, Program | Methods) else None
    parts = given if isinstance(given, Mapping) else {} if isinstance(given, Methods) else {METHOD: given}
    for name, part in parts.items():
        known = part.manifest if isinstance(part, Program) else None
        if kept is None and isinstance(known, Manifest) and known.test_vectors:
            raise ConventionError(
                f"method {name!r}" if isinstance(given, Mapping) else "program",
                found="a part of a file with test vectors, which call the programs of that file in turn",
                expected="all that intarsia.load returned, which keeps them, or other test vectors",
                fix="Pass test_vectors=[...] with calls to record, or test_vectors=[] to leave them out.",
            )
    return kept


def programs_of(
    given: Savable | Methods | Mapping[str, Savable], engines: EngineForm = "compiled"
) -> dict[str, torch.export.ExportedProgram]:
    """The programs that `save` would write, by the names of their methods; raises as it does."""
    _check_form(engines)
    programs = {name: program for name, (program, _) in _methods_of(given).items()}
    if engines == "compiled":
        return programs
    restored = {}
    for name, program in programs.items():
        with IntarsiaError.of_method(name):
            restored[name] = surgery.restore(program)
    return restored


def _check_form(engines: str, pt2: object = None) -> None:
    """Refuse a form of engines that is unknown, or that a `.pt2` has no use for."""
    forms = get_args(EngineForm)
    if engines not in forms:
        raise FormatError(
            "engines",
            found=repr(engines),
            expected=" or ".join(map(repr, forms)),
            fix=near_match(str(engines), forms) or "Leave it out to save compiled engines.",
        )
    if pt2 is not None and engines != "compiled":
        raise FormatError(
            str(pt2),
            found=f"engines={engines!r}",
            expected="it for a .pte file only",
            fix="Leave it out: a .pt2 file runs engines, with payloads=False on any machine.",
        )


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
        program = export(program)
    elif isinstance(program, torch.export.ExportedProgram):
        placed = find_coverage(program.graph_module)
    account = manifest.ledger if manifest else surgery.find_ledger(program)
    places = manifest.coverage if manifest else placed and asdict(placed)
    if isinstance(program, torch.export.ExportedProgram):
        program = hold_engines(program)
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
        allow: What may be in it that is refused otherwise: "native", for engines that are native code and for packages
            of AOTInductor, whose code runs from the first call on; "pickle", for another tool's file with pickled
            tensors or objects, which can run code.
        engines: "verify" takes the compiled forms of engines, which are compared with their hashes. "rebuild" ignores
            them: each engine is built from its portable form when it is first called.
        verify: Whether to compare every byte with its hash now. Otherwise a tensor is compared when it is first needed:
            at the first call of a method that reads it. A `.pte` is always compared as a whole.

    Returns:
        A program that takes the model's own arguments and gives the model's own structure; of a file that was saved
        with names of methods, its methods: `loaded.prefill(...)`. ExecuTorch runs those of a `.pte`.

    Raises:
        FormatError: The path is none, or the file is missing, cut short, foreign or damaged, holds what could run code,
            is beyond a limit, or needs an operator or a class that has to be imported first; or `verify` is True and
            the file has no hashes, for another tool wrote it.
        EngineUnavailable: The file is a `.pte`, and ExecuTorch is not installed.
        UnsupportedVersion: A newer intarsia wrote it, or a torch whose graphs this torch does not read.
        EngineError: The bytes of an engine were changed, or `engines` is "rebuild" and one has no portable form.

    Example:
        >>> import intarsia
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     intarsia.save(intarsia.compile(torch.nn.ReLU(), (torch.ones(2),)), f"{folder}/relu.pt2")
        ...     program = intarsia.load(f"{folder}/relu.pt2")
        >>> program(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if has_pte_ending(path):
        return _load_pte(path, engines=engines, verify=verify)
    if is_package(path):
        return _load_aoti(path, allow=allow, engines=engines, verify=verify)
    return _load_graphs(path, allow=allow, engines=engines, verify=verify)


def load_pt2(
    path: str | os.PathLike[str], *, allow: Iterable[str] = (), engines: Engines = "verify", verify: bool = False
) -> Program | Methods:
    """Load a program from a `.pt2` file of graphs, as `load` does."""
    if is_package(path):
        raise FormatError(
            str(path),
            found="an AOTInductor package, which is compiled code without a graph",
            expected="a file of graphs",
            fix="Run or verify it, or take the program that was compiled.",
        )
    return _load_graphs(path, allow=allow, engines=engines, verify=verify)


def _load_graphs(
    path: str | os.PathLike[str], *, allow: Iterable[str], engines: Engines, verify: bool
) -> Program | Methods:
    loaded = load_methods(path, allow=allow, engines=engines, verify=verify)
    with telling(path):
        if list(loaded) == [METHOD]:
            return Program(*loaded[METHOD])
        programs = {name: Program(*method[:3]) for name, method in loaded.items()}
        return Methods(programs, next(iter(loaded.values())).vectors)


def _load_pte(path: str | os.PathLike[str], *, engines: Engines, verify: bool) -> ExecutorchProgram | ExecutorchMethods:
    opened = open_pte(path, rebuild=engines == "rebuild", verify=verify)
    file = LoadedFile(opened.load)
    with telling(path):
        programs = {
            name: ExecutorchProgram(name, boundary, file, opened.manifests[name])
            for name, boundary in opened.boundaries.items()
        }
    return programs[METHOD] if list(programs) == [METHOD] else ExecutorchMethods(programs, file)


def _load_aoti(
    path: str | os.PathLike[str], *, allow: Iterable[str], engines: Engines, verify: bool
) -> CompiledProgram | CompiledMethods:
    opened = open_aoti(path, allow=allow, rebuild=engines == "rebuild", verify=verify)
    writes = [write for manifest in opened.manifests.values() for write in manifest.writes]
    file = CompiledFile(opened.open, {write.name for write in writes if write.kind != "input"})
    with telling(path):
        programs = {
            name: CompiledProgram(name, boundary, file, opened.manifests[name], opened.vectors)
            for name, boundary in opened.boundaries.items()
        }
    return programs[METHOD] if list(programs) == [METHOD] else CompiledMethods(programs, file)
