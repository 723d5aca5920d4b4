"""`intarsia doctor`: what works on this machine, found out by doing it."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from intarsia.cli.console import output_console, progress_reporter
from intarsia.cli.options import AsJson

if TYPE_CHECKING:
    from intarsia.report.installation import InstallationFacts, PartFacts


def examine_installation(
    *,
    as_json: AsJson = False,
) -> None:
    """Tell which backends and file formats work here.

    Prints versions, and for what is missing the command that installs it. Each installed backend compiles a small
    model, saves, loads and runs it. Exit code 1 when one of them fails.
    """
    from intarsia.report.installation import draw_installation

    facts = _gather()
    if as_json:
        typer.echo(json.dumps(facts.to_json(), indent=2))
    else:
        output_console().print(draw_installation(facts))
    if not facts.is_sound:
        raise typer.Exit(1)


def _gather() -> InstallationFacts:
    from intarsia.core.registry import available_backends
    from intarsia.report.installation import InstallationFacts, installed_versions

    versions = {"python": platform.python_version(), **installed_versions(("intarsia", "torch"))}
    backends = available_backends()
    parts = []
    with progress_reporter("trying formats and backends") as progress:
        trials: dict[str, Callable[[], PartFacts]] = {"pt2": _examine_pt2, "pte": _examine_pte}
        trials.update((name, partial(_examine_backend, name)) for name in backends)
        for done, (name, examine) in enumerate(trials.items()):
            progress(done, len(trials), name)
            parts.append(examine())
        progress(len(trials), len(trials), "")
    return InstallationFacts(versions, tuple(parts))


def _examine_backend(name: str) -> PartFacts:
    from intarsia.core.registry import find_backend
    from intarsia.errors import EngineUnavailable

    backend = find_backend(name)
    facts = _examine_extra(name, "backend", lambda _: "")
    if facts.state == "missing":
        return facts
    missing = backend.available()
    if missing:
        return replace(facts, state="missing", note=missing)
    if not getattr(backend, "builds", True):
        return replace(facts, note="not tried: another tool builds its engines")
    try:
        backend.check_options({})
    except EngineUnavailable as error:
        return replace(facts, state="missing", note=f"found {error.found}, expected {error.expected}. {error.fix}")
    fault = _try_out(name)
    return replace(facts, state="broken" if fault else "works", note=fault)


def _examine_pte() -> PartFacts:
    """Whether ExecuTorch runs engines here; in a process of its own, for what does not go together crashes."""
    from intarsia.formats.pte.combination import untried_here

    facts = _examine_extra("pte", "format", _try_pte)
    return replace(facts, note=untried_here()) if facts.state == "works" else facts


def _examine_extra(
    name: str, kind: Literal["backend", "format"], try_out: Callable[[Mapping[str, str]], str]
) -> PartFacts:
    """What an extra installs, and whether it works; `try_out` takes versions and tells what went wrong, or ""."""
    from intarsia.report.installation import PartFacts, extra_requirements, installed_versions

    wanted = extra_requirements(name)
    versions = installed_versions(wanted)
    missing = [package + wanted[package] for package, version in versions.items() if not version]
    if missing:
        command = shlex.join([sys.executable, "-m", "pip", "install", *missing])
        return PartFacts(name, kind, "missing", versions, command)
    fault = try_out(versions)
    return PartFacts(name, kind, "broken" if fault else "works", versions, fault)


_PTE_TRIAL = """
import sys, torch, intarsia
model, x = torch.nn.Linear(4, 3).eval(), torch.linspace(-1, 1, 8).reshape(2, 4)
try:
    intarsia.save(intarsia.compile(model, (x,), fallback=False), "trial.pte")
    torch.testing.assert_close(intarsia.load("trial.pte")(x), model(x).detach())
except Exception as error:
    sys.exit(f"trial: {type(error).__name__}: {error}")
"""


def _try_pte(versions: Mapping[str, str]) -> str:
    from intarsia.formats.pte.combination import find_fault

    fault = find_fault(executorch=versions.get("executorch", ""), openvino=versions.get("openvino", ""))
    if fault:
        return fault
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PTE_TRIAL]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if run.returncode == 0:
        return ""
    return run.stderr.rpartition("trial: ")[2].strip() if run.returncode == 1 else f"it ended with {run.returncode}"


def _examine_pt2() -> PartFacts:
    from intarsia.report.installation import PartFacts

    fault = _try_out(None)
    return PartFacts("pt2", "format", "broken" if fault else "works", {}, fault)


def _try_out(backend: str | None) -> str:
    """Take a small model all the way to a file and back; what went wrong, or "" when the numbers are right."""
    import torch

    from intarsia import api

    model = torch.nn.Linear(4, 3).eval()
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    try:
        if backend is None:
            program = torch.export.export(model, (x,))
        else:
            program = api.export(api.compile(model, (x,), backend=backend, fallback=False))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trial.pt2"
            api.save(program, path)
            found = api.load_pt2(path, allow={"native"})(x)
        torch.testing.assert_close(found, model(x).detach(), atol=1e-4, rtol=1e-4)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what the doctor is asked to tell
        return f"{type(error).__name__}: {error}"
    return ""
