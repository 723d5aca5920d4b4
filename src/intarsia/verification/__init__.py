"""Two programs, or a program and its model, to errors per leaf, parity, and a result."""

from intarsia.verification.result import Check, Leaf, Verification
from intarsia.verification.tolerances import TOLERANCES, Tolerance
from intarsia.verification.verify import Inputs, Stages, verify

__all__ = ["TOLERANCES", "Check", "Inputs", "Leaf", "Stages", "Tolerance", "Verification", "verify"]
