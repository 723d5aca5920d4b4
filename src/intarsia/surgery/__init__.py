"""Hybrid to exported program, by graph surgery alone."""

from intarsia.surgery.export import check_hybrid, export
from intarsia.surgery.ledger import find_ledger, keep_ledger, ledger
from intarsia.surgery.restore import restore
from intarsia.surgery.retrace import retrace

__all__ = ["check_hybrid", "export", "find_ledger", "keep_ledger", "ledger", "restore", "retrace"]
