"""Two programs, or a program and its model or its recorded answers, to errors per leaf, parity, and a result."""

from intarsia.core.vectors import Tolerance
from intarsia.verification.answers import Answering, verify_answers, verify_method_answers
from intarsia.verification.bits import snapshot
from intarsia.verification.drawing import Call, Drawing, UndrawableInput
from intarsia.verification.methods import MethodsVerification, verify_methods
from intarsia.verification.precision import leaf_dtypes
from intarsia.verification.reference import Entry
from intarsia.verification.result import Check, Leaf, Replay, Verification
from intarsia.verification.sizes import middle
from intarsia.verification.tolerances import TOLERANCES
from intarsia.verification.vectors import calls_by_method, calls_of, record_vectors, replay_vectors
from intarsia.verification.verify import Inputs, Stages, verify

__all__ = [
    "TOLERANCES",
    "Answering",
    "Call",
    "Check",
    "Drawing",
    "Entry",
    "Inputs",
    "Leaf",
    "MethodsVerification",
    "Replay",
    "Stages",
    "Tolerance",
    "UndrawableInput",
    "Verification",
    "calls_by_method",
    "calls_of",
    "leaf_dtypes",
    "middle",
    "record_vectors",
    "replay_vectors",
    "snapshot",
    "verify",
    "verify_answers",
    "verify_method_answers",
    "verify_methods",
]
