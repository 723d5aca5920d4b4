"""Two programs, or a program and its model, to errors per leaf, parity, and a result."""

from intarsia.verification.bits import snapshot
from intarsia.verification.drawing import Call, Drawing, UndrawableInput
from intarsia.verification.methods import MethodsVerification, verify_methods
from intarsia.verification.reference import Entry
from intarsia.verification.result import Check, Leaf, Verification
from intarsia.verification.sizes import middle
from intarsia.verification.tolerances import TOLERANCES, Tolerance
from intarsia.verification.verify import Inputs, Stages, verify

__all__ = [
    "TOLERANCES",
    "Call",
    "Check",
    "Drawing",
    "Entry",
    "Inputs",
    "Leaf",
    "MethodsVerification",
    "Stages",
    "Tolerance",
    "UndrawableInput",
    "Verification",
    "middle",
    "snapshot",
    "verify",
    "verify_methods",
]
