"""Export, save, load and run PyTorch programs that mix compiled engines and torch operators."""

from intarsia.api import compile, coverage, export, ledger, load, save
from intarsia.core import op as _op  # noqa: F401  registers intarsia::run_engine, so that files with engines load
from intarsia.runtime.program import Program

__all__ = ["Program", "compile", "coverage", "export", "ledger", "load", "save"]
__version__ = "0.1.0"
