"""The public functions: stages composed, and no logic of their own."""

from intarsia.api.compiling import compile  # noqa: A004  named as in torch
from intarsia.api.exporting import export, ledger
from intarsia.api.files import EngineForm, Savable, load, load_pt2, programs_of, save
from intarsia.api.verifying import verify
from intarsia.core.coverage import coverage
from intarsia.core.plan import plan

__all__ = [
    "EngineForm",
    "Savable",
    "compile",
    "coverage",
    "export",
    "ledger",
    "load",
    "load_pt2",
    "plan",
    "programs_of",
    "save",
    "verify",
]
