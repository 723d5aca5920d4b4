"""Every exception that intarsia raises on purpose.

    IntarsiaError
    ├── CaptureError            torch.export cannot capture the model
    ├── PartitionError          the model cannot be cut as asked (an operator name that matches nothing, ...)
    ├── HybridError             a hybrid's graph cannot be exported (a call to something that is no graph, ...)
    ├── StateError              a parameter, buffer or constant is missing, or of an unsupported kind
    ├── MutationError           a write would be lost
    ├── ConventionError         the calling convention cannot be told, or the example inputs do not fit it
    ├── ConservationError       the export lost or invented something: a fault of intarsia itself
    ├── ArgumentError           a program was called with arguments that do not fit it
    ├── EngineError             an engine is damaged or failed while running
    │   ├── EngineUnavailable   the backend is unknown, or its library is not installed
    │   ├── EngineBuildFailed   a backend could not build a partition
    │   └── EngineRefused       this machine's library refuses a payload that another one built
    ├── FormatError             a file is missing, cut short, foreign or damaged, or cannot be written
    │   └── UnsupportedVersion  a file was written by a newer format version
    └── TargetError             a command line target cannot be imported or returns something else

Each message reads `<subject>: <found>, expected <expected>. <consequence> <fix>`; the parts are fields too.
"""

from __future__ import annotations


class IntarsiaError(Exception):
    """A fault that is told in one message; see the module docstring for the tree.

    Args:
        subject: What the message is about, named as the user knows it ("engine 'openvino_2'", "input 'x'").
        found: What was found.
        expected: What was expected instead.
        fix: A sentence that says how to mend it.
        consequence: A sentence that says what would have happened, when that is not plain.
        node: Name of the graph node concerned, when there is one.

    Example:
        >>> str(IntarsiaError("input 'x'", found="shape [3]", expected="shape [4]", fix="Pass 4 elements."))
        "input 'x': found shape [3], expected shape [4]. Pass 4 elements."
    """

    def __init__(
        self,
        subject: str,
        *,
        found: str,
        expected: str,
        fix: str,
        consequence: str = "",
        node: str | None = None,
    ) -> None:
        self.subject = subject
        self.found = found
        self.expected = expected
        self.consequence = consequence
        self.fix = fix
        self.node = node
        sentences = [f"{subject}: found {found}, expected {expected}.", consequence, fix]
        super().__init__(" ".join(sentence for sentence in sentences if sentence))


class CaptureError(IntarsiaError):
    """torch.export cannot capture the model."""


class PartitionError(IntarsiaError):
    """The model cannot be cut into partitions as asked."""


class HybridError(IntarsiaError):
    """The hybrid's graph cannot be exported."""


class StateError(IntarsiaError):
    """A parameter, buffer or constant is missing, or is of a kind that cannot be exported."""


class MutationError(IntarsiaError):
    """A write to state or to an input would be lost."""


class ConventionError(IntarsiaError):
    """The calling convention cannot be told, or the example inputs do not fit it."""


class ConservationError(IntarsiaError):
    """The export lost or invented a node, an output, a write or a state entry: a fault of intarsia itself."""


class ArgumentError(IntarsiaError):
    """A program was called with arguments that do not fit it."""


class EngineError(IntarsiaError):
    """An engine is damaged, or failed while running."""


class EngineUnavailable(EngineError):
    """The backend is unknown, or the library that it needs is not installed."""


class EngineBuildFailed(EngineError):
    """A backend could not build an engine for a partition."""


class EngineRefused(EngineError):
    """The backend's library on this machine refuses a payload that another version or processor built."""


class FormatError(IntarsiaError):
    """A file is missing, cut short, foreign or damaged, or cannot be written."""


class UnsupportedVersion(FormatError):
    """A file was written by a newer format version than this one reads."""


class TargetError(IntarsiaError):
    """A command line target cannot be imported, or returns something else than asked."""


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message that says anything, for a message of ours.

    Example:
        >>> first_line(ValueError("no such axis. " "Broadcast first."))
        'no such axis. Broadcast first.'
    """
    lines = (line.strip() for line in str(error).splitlines())
    return next((line[:300] for line in lines if line), "no message")
