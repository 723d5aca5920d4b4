"""What every backend must do. Subclass `BackendConformance` in a test module and name the backend."""

from tests.engines.conformance.programs import Calls, assert_same, export, load_built, reasons_against
from tests.engines.conformance.suite import BackendConformance

__all__ = ["BackendConformance", "Calls", "assert_same", "export", "load_built", "reasons_against"]
