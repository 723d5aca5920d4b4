"""Every exception that intarsia raises on purpose.

::

    IntarsiaError
    ├── CaptureError            torch.export cannot capture the model
    ├── PartitionError          the model cannot be cut as asked (an operator name that matches nothing, ...)
    ├── HybridError             a hybrid's graph cannot be exported (a call to something that is no graph, ...)
    ├── StateError              a parameter, buffer or constant is missing, or of an unsupported kind
    ├── MutationError           a write would be lost
    ├── ConventionError         the calling convention cannot be told, or the example inputs do not fit it
    ├── ConservationError       the export lost or invented something: a fault of intarsia itself
    ├── ArgumentError           a program was called with arguments that do not fit it
    │   └── PositionError       a position is outside of the tensor that it counts in; an IndexError too
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

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


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
        super().__init__(self._text())

    def _text(self) -> str:
        sentences = [f"{self.subject}: found {self.found}, expected {self.expected}.", self.consequence, self.fix]
        return " ".join(sentence for sentence in sentences if sentence)

    @classmethod
    @contextmanager
    def of_method(cls, name: str) -> Iterator[None]:
        """Have the errors of a block name the method of several that the block is about.

        Example:
            >>> with IntarsiaError.of_method("decode"):
            ...     raise IntarsiaError("input 'x'", found="none", expected="one", fix="Pass x.")
            Traceback (most recent call last):
            intarsia.errors.IntarsiaError: method 'decode', input 'x': found none, expected one. Pass x.
        """
        with cls.within(f"method {name!r}"):
            yield

    @classmethod
    @contextmanager
    def within(cls, place: str) -> Iterator[None]:
        """Have the errors of a block name what the block is about, before what they name themselves.

        Example:
            >>> with IntarsiaError.within("backend 'inductor'"):
            ...     raise IntarsiaError("backend 'inductor'", found="none", expected="one", fix="Install it.")
            Traceback (most recent call last):
            intarsia.errors.IntarsiaError: backend 'inductor': found none, expected one. Install it.
        """
        try:
            yield
        except cls as error:
            if error.subject.partition(",")[0] != place:
                error.subject = f"{place}, {error.subject}"
                error.args = (error._text(),)  # noqa: SLF001 - of its own class
            raise


class CaptureError(IntarsiaError):
    """torch.export cannot capture the model.

    Example:
        >>> import intarsia, torch
        >>> class Branching(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x if x.sum() > 0 else -x
        >>> intarsia.compile(Branching(), (torch.ones(3),))
        Traceback (most recent call last):
        intarsia.errors.CaptureError: model 'Branching': found Could not guard on data-dependent expression ...
    """


class PartitionError(IntarsiaError):
    """The model cannot be cut into partitions as asked.

    Example:
        >>> import intarsia, torch
        >>> intarsia.compile(torch.nn.ReLU(), (torch.ones(3),), torch_executed_ops={"aten.rleu"})
        Traceback (most recent call last):
        intarsia.errors.PartitionError: torch_executed_ops: found 'aten.rleu', ...
    """


class HybridError(IntarsiaError):
    """The hybrid's graph cannot be exported.

    Example:
        >>> import intarsia, torch
        >>> intarsia.export(torch.nn.ReLU())
        Traceback (most recent call last):
        intarsia.errors.HybridError: argument 'hybrid': found a ReLU, expected a torch.fx.GraphModule. ...
    """


class StateError(IntarsiaError):
    """A parameter, buffer or constant is missing, or is of a kind that cannot be exported.

    Example:
        >>> import intarsia, torch
        >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        >>> del traced._modules["0"]
        >>> intarsia.export(traced, (torch.ones(1, 2),))
        Traceback (most recent call last):
        intarsia.errors.StateError: attribute '0': found no '0' in ...
    """


class MutationError(IntarsiaError):
    """A write to state or to an input would be lost.

    Example:
        >>> import intarsia, torch
        >>> body, graph = torch.fx.Graph(), torch.fx.Graph()
        >>> x = body.placeholder("x")
        >>> _ = body.call_function(torch.ops.aten.add_.Tensor, (x, 1)), body.output((x,))
        >>> operands = graph.get_attr("body"), (graph.placeholder("x"),)
        >>> _ = graph.output(graph.call_function(torch.ops.higher_order.strict_mode, operands))
        >>> hybrid = torch.fx.GraphModule({"body": torch.fx.GraphModule({}, body)}, graph)
        >>> intarsia.export(hybrid, (torch.ones(3),))
        Traceback (most recent call last):
        intarsia.errors.MutationError: node 'strict_mode': found a body that writes %x in place, ...
    """


class ConventionError(IntarsiaError):
    """The calling convention cannot be told, or the example inputs do not fit it.

    Example:
        >>> import intarsia, torch
        >>> intarsia.export(torch.fx.symbolic_trace(torch.nn.ReLU()))
        Traceback (most recent call last):
        intarsia.errors.ConventionError: input 'input': found a placeholder without metadata and no example input, ...
    """


class ConservationError(IntarsiaError):
    """The export lost or invented a node, an output, a write or a state entry: a fault of intarsia itself.

    Example:
        >>> import intarsia, torch
        >>> from intarsia.surgery.conservation import check_conservation
        >>> model, x = torch.nn.Threshold(0.0, 1.0), torch.ones(3)
        >>> hybrid = intarsia.compile(model, (x,), torch_executed_ops={"aten.threshold"})
        >>> program = intarsia.export(hybrid)
        >>> before, after = (graph.find_nodes(op="placeholder")[0] for graph in (hybrid.graph, program.graph))
        >>> after.next.args = (after, 0.0, 2.0)
        >>> check_conservation(hybrid, {before: after}, program, traced={}, copies=())
        Traceback (most recent call last):
        intarsia.errors.ConservationError: the export, output 0: found %threshold of 2.0 (float), expected ...
    """


class ArgumentError(IntarsiaError):
    """A program was called with arguments that do not fit it.

    Example:
        >>> import intarsia, torch
        >>> intarsia.Program(torch.export.export(torch.nn.ReLU(), (torch.ones(3),)))(torch.ones(4))
        Traceback (most recent call last):
        intarsia.errors.ArgumentError: input 'input': found size 4 in dimension 0 (shape [4]), expected 3. ...
    """


class PositionError(ArgumentError, IndexError):
    """A program was to write its state, or an engine to read a tensor, at a position that is not there.

    Example:
        >>> import intarsia, torch
        >>> class Cache(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("cache", torch.zeros(8))
        ...     def forward(self, position, value):
        ...         return self.cache.index_copy_(0, position, value) + 0
        >>> program = torch.export.export(Cache(), (torch.tensor([0]), torch.ones(1)))
        >>> intarsia.Program(program)(torch.tensor([8]), torch.ones(1))
        Traceback (most recent call last):
        intarsia.errors.PositionError: input 'position': found index 8, which is out of bounds for dimension 0 ...
    """


class EngineError(IntarsiaError):
    """An engine is damaged, or failed while running.

    Example:
        >>> import intarsia, torch
        >>> engine = torch.zeros(100, dtype=torch.uint8)
        >>> torch.ops.intarsia.run_engine([torch.ones(3)], engine, "(f32[3]) -> (f32[3])")
        Traceback (most recent call last):
        intarsia.errors.EngineError: engine container: found no magic bytes 'INTARSIA' at its start, ...
    """


class EngineUnavailable(EngineError):
    """The backend is unknown, or the library that it needs is not installed.

    Example:
        >>> import intarsia, torch
        >>> intarsia.compile(torch.nn.ReLU(), (torch.ones(3),), backend="openvin")
        Traceback (most recent call last):
        intarsia.errors.EngineUnavailable: backend 'openvin': found no backend of that name, ...
    """


class EngineBuildFailed(EngineError):
    """A backend could not build an engine for a partition.

    Attributes:
        operators: Operators that it refuses ("aten.relu.default"), where it knows them: `compile` leaves those alone in
            torch, and not the whole partition.

    Example:
        >>> from intarsia.core.registry import find_backend
        >>> find_backend("openvino").rebuild(memoryview(b"no model"), {})
        Traceback (most recent call last):
        intarsia.errors.EngineBuildFailed: OpenVINO IR: found ...
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
        operators: Iterable[str] = (),
    ) -> None:
        self.operators = tuple(operators)
        super().__init__(subject, found=found, expected=expected, fix=fix, consequence=consequence, node=node)


class EngineRefused(EngineError):
    """The backend's library on this machine refuses a payload that another version or processor built.

    Example:
        >>> from intarsia.core.registry import find_backend
        >>> find_backend("openvino").load(memoryview(b"of another machine"), {})
        Traceback (most recent call last):
        intarsia.errors.EngineRefused: OpenVINO blob: found that OpenVINO ... on this machine refuses it ...
    """


class FormatError(IntarsiaError):
    """A file is missing, cut short, foreign or damaged, or cannot be written.

    Example:
        >>> import intarsia
        >>> intarsia.load("nothing.pt2")
        Traceback (most recent call last):
        intarsia.errors.FormatError: nothing.pt2: found no file, ...
    """


class UnsupportedVersion(FormatError):
    """A file was written by a newer format version than this one reads.

    Example:
        >>> from intarsia.formats.contents import Contents
        >>> Contents.from_text('{"format_version": 99}', "model.pt2")
        Traceback (most recent call last):
        intarsia.errors.UnsupportedVersion: model.pt2: found format version 99, expected at most 1. ...
    """


class TargetError(IntarsiaError):
    """A command line target cannot be imported, or returns something else than asked.

    Example:
        >>> from intarsia.cli.target import load_target
        >>> load_target("no_such_module:encoder")
        Traceback (most recent call last):
        intarsia.errors.TargetError: target 'no_such_module:encoder': found no module 'no_such_module', ...
    """


def near_match(name: str, known: Iterable[str]) -> str:
    """A sentence that names what a mistyped name was meant to be, or nothing when none is near.

    Example:
        >>> near_match("OPENVNIO", ["aotinductor", "openvino"])
        "Did you mean 'openvino'?"
    """
    folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f"Did you mean {folded[near[0]]!r}?" if near else ""


def with_article(name: str) -> str:
    """The name of a type as a sentence says it.

    Example:
        >>> with_article("int"), with_article("list")
        ('an int', 'a list')
    """
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message that says anything, for a message of ours.

    Example:
        >>> first_line(ValueError("no such axis. " "Broadcast first."))
        'no such axis. Broadcast first.'
    """
    lines = (line.strip() for line in str(error).splitlines())
    shown = shorten(next((line for line in lines if line), "no message"), 300)
    # What a library quotes of a file could steer the terminal.
    return shown if shown.isprintable() else "".join(x if x.isprintable() else ascii(x)[1:-1] for x in shown)


def shorten(text: str, width: int) -> str:
    """A text of at most `width` characters, cut after a word.

    Example:
        >>> shorten("index 2 is out of bounds", 15)
        'index 2 is ...'
    """
    return text if len(text) <= width else f"{text[: width - 3].rpartition(' ')[0] or text[: width - 4]} ..."
