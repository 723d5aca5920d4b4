"""The JSON of a program's graph, judged before torch makes a program of it.

torch's reader checks few types, and makes code of many texts: names are printed into the code of a graph, expressions
go to `sympify`, guards to `exec`, operators are looked up by attribute. So each value is compared with torch's own
schema, type by type, and each text with what may stand in its field. A field that is not listed here is refused, so
that a newer schema opens no new way.
"""

from __future__ import annotations

import json
import keyword
import re
import types
import typing
import unicodedata
from enum import Enum
from typing import Any, NamedTuple

from intarsia._torch import graph_schema, schema_hints
from intarsia.errors import FormatError, UnsupportedVersion, first_line
from intarsia.formats.archive.limits import (
    DEPTH,
    EXPRESSION_CHARACTERS,
    EXPRESSION_WORK,
    EXPRESSIONS,
    NAME_CHARACTERS,
    NODE_WORK,
    NODES,
    SYMBOLS,
)
from intarsia.formats.archive.refusal import Refused, quoted
from intarsia.formats.judgement.expressions import read_expression
from intarsia.formats.judgement.operators import find_operator
from intarsia.formats.judgement.structures import check_keywords, read_structure
from intarsia.formats.judgement.value_checks import (
    PLAIN,
    Check,
    fields_of,
    list_of,
    mapping_of,
    matching,
    number_of,
    one_of,
    optional,
    text_of,
)

_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_DIALECT = re.compile(r"[A-Za-z0-9_]{0,64}")
_UNBACKED = re.compile(r"(?:u|zuf)([0-9]+)")
# A size as sympy prints it, but no unbacked symbol.
_DERIVED = re.compile(r"(?!u|zuf)[A-Za-z0-9_ ()+*/,.-]+")
# torch prints the parts of a state entry's name into code, in double quotes, as they are.
_STATE_PART = re.compile(r"""(?!__\w*__$)[^"'\\]*""")
# Names that the code of a graph uses itself.
_TAKEN = frozenset(["self", "torch"])
_EXPECTED = "a graph that torch writes"
_FIX = "Load it with the tool that wrote it, where you trust the file, and save it again with intarsia."


class Findings(NamedTuple):
    """What a graph needs that this process does not have.

    Attributes:
        operators: Operators that are not registered, as `namespace::name`.
        containers: Classes among arguments and results that are not registered.
    """

    operators: list[str]
    containers: list[str]


def read_graph(text: bytes, subject: str, *, allow: frozenset[str]) -> tuple[dict[str, Any], Findings]:
    """The JSON values of a graph that torch may read, without its guards and its `source_fn_stack`.

    Nothing in a `Program` asks for these two, and torch would run the one and look the other up.

    Args:
        text: The member of an archive.
        subject: Names file and member in errors.
        allow: With "pickle", script objects may occur.

    Raises:
        FormatError: The graph says something that torch does not write, or is beyond a limit.
        UnsupportedVersion: Its schema is one that this torch does not read.
    """
    judge = _Judge(allow)
    try:
        values = _parse(text)
        _check_version(values, subject)
        judge.check(values)
        judge.check_work()
    except Refused as refused:
        raise _told(refused, subject, judge.node) from None
    except RecursionError:
        raise _told(Refused("values that are nested too deep", _EXPECTED), subject, None) from None
    values["guards_code"] = []
    return values, Findings(sorted(judge.operators), sorted(judge.containers))


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(f"no JSON ({first_line(error)})", _EXPECTED) from error


def _check_version(values: Any, subject: str) -> None:
    found = values.get("schema_version") if isinstance(values, dict) else None
    major, minor = graph_schema().version
    if not isinstance(found, dict) or type(found.get("major")) is not int:
        raise Refused(f"the schema version {quoted(found)}", f"two numbers, like {major}.{minor}")
    if found["major"] == major:
        return
    version = f"{found['major']}.{quoted(found.get('minor'))}"
    raise UnsupportedVersion(
        subject,
        found=f"a graph in version {version} of torch's schema, written by torch {quoted(values.get('torch_version'))}",
        expected=f"version {major}.x, which this torch reads ({major}.{minor} is its own)",
        fix="Load it with the torch that wrote it, or save the program with this one.",
    )


def _told(refused: Refused, subject: str, node: str | None) -> FormatError:
    return FormatError(
        subject if node is None else f"{subject}, node {quoted(node)}",
        found=refused.found,
        expected=refused.expected,
        fix=_FIX,
    )


class _Judge:
    """One pass over the values of a graph.

    Attributes:
        check: Checks a whole program.
        node: Name of the node that is being checked.
        operators: Operators that are not registered.
        containers: Classes that are not registered.
    """

    def __init__(self, allow: frozenset[str]) -> None:
        self._allow = allow
        self.node: str | None = None
        self.operators: set[str] = set()
        self.containers: set[str] = set()
        self._names: set[str] = set()
        self._known_targets: set[str] = set()
        self._expressions: dict[str, int] = {}
        self._work = 0
        self._symbols: set[str] = set()
        self._structures: set[str] = set()
        self._nodes = self._depth = 0
        self._texts, self._keys = self._text_checks(), self._key_checks()
        self._checks: dict[type, Check] = {}
        self.check = self._check_of(graph_schema().program, "")

    def _text_checks(self) -> dict[str, Check]:
        """What may stand in each field that holds a text, by `Class.field`."""
        name, state, free = self._name, self._state_name, self._free
        return {
            "Device.type": matching(_DEVICE, "the name of a device type"),
            "SymExpr.expr_str": self._expression,
            "SymIntArgument.as_name": name,
            "SymFloatArgument.as_name": name,
            "SymBoolArgument.as_name": name,
            "TensorArgument.name": name,
            "TokenArgument.name": name,
            "GraphArgument.name": name,
            "CustomObjArgument.name": self._object,
            "CustomObjArgument.class_fqn": self._object,
            "Argument.as_string": free,
            "Argument.as_strings": free,
            "Argument.as_operator": self._target,
            "NamedArgument.name": self._argument_name,
            "Node.target": self._target,
            "Node.metadata": free,
            "Node.name": name,
            "ConstantValue.as_string": free,
            "InputToConstantInputSpec.name": self._argument_name,
            "InputToParameterSpec.parameter_name": state,
            "InputToBufferSpec.buffer_name": state,
            "InputToTensorConstantSpec.tensor_constant_name": state,
            "InputToCustomObjSpec.custom_obj_name": self._object,
            "BufferMutationSpec.buffer_name": state,
            "ParameterMutationSpec.parameter_name": state,
            "GradientToParameterSpec.parameter_name": state,
            "GradientToUserInputSpec.user_input_name": name,
            "UserInputMutationSpec.user_input_name": name,
            "ModuleCallSignature.in_spec": self._arguments_structure,
            "ModuleCallSignature.out_spec": self._structure,
            "ModuleCallSignature.forward_arg_names": name,
            "ModuleCallEntry.fqn": state,
            "NamedTupleDef.field_names": name,
            "GraphModule.metadata": free,
            "ExportedProgram.verifiers": matching(_DIALECT, "the name of a dialect"),
            "ExportedProgram.torch_version": free,
            "ExportedProgram.guards_code": free,
        }

    def _key_checks(self) -> dict[str, Check]:
        """What may stand as a key in each field that holds a mapping, by `Class.field`."""
        return {
            "Argument.as_string_to_argument": self._free,
            "Node.metadata": self._free,
            "Graph.tensor_values": self._name,
            "Graph.sym_int_values": self._name,
            "Graph.sym_bool_values": self._name,
            "Graph.sym_float_values": self._name,
            "Graph.custom_obj_values": self._name,
            "GraphModule.metadata": self._free,
            "GraphModule.treespec_namedtuple_fields": self._free,
            "ExportedProgram.opset_version": self._free,
            "ExportedProgram.range_constraints": self._ranged,
        }

    def check_work(self) -> None:
        """Refuse expressions that would keep sympy longer than the rest of the graph may."""
        limit = EXPRESSION_WORK + NODE_WORK * self._nodes
        if self._work > limit:
            raise Refused(f"sizes that take {self._work} comparisons to read", f"at most {limit}")

    # The checks of each type

    def _check_of(self, hint: Any, field: str) -> Check:
        """The check of a type in torch's schema; `field` is where it stands, as `Class.field`."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            (inner,) = (argument for argument in arguments if argument is not type(None))
            return optional(self._check_of(inner, field))
        if origin is list:
            return list_of(self._check_of(arguments[0], field))
        if origin is dict:
            return mapping_of(self._keys.get(field) or _unlisted(field), self._check_of(arguments[1], field))
        if hint is str:
            return text_of(self._texts.get(field) or _unlisted(field))
        if hint in PLAIN:
            return PLAIN[hint]
        if issubclass(hint, Enum):
            return number_of(hint)
        return self._later(hint)

    def _later(self, kind: type) -> Check:
        """The check of a class, made when it is first needed: classes contain each other."""
        made: Check | None = None

        def check_class(value: Any) -> None:
            nonlocal made
            made = made or self._class_check(kind)
            made(value)

        return check_class

    def _class_check(self, kind: type) -> Check:
        if kind not in self._checks:
            fields = {
                name: self._check_of(hint, f"{kind.__name__}.{name}") for name, hint in schema_hints(kind).items()
            }
            check = one_of(kind, fields) if issubclass(kind, graph_schema().union) else fields_of(kind, fields)
            self._checks[kind] = {"Graph": self._graph, "Node": self._call}.get(kind.__name__, _as_it_is)(check)
        return self._checks[kind]

    def _graph(self, check: Check) -> Check:
        def check_graph(value: Any) -> None:
            self._depth += 1
            if self._depth > DEPTH:
                raise Refused("graphs in graphs", f"at most {DEPTH} levels")
            check(value)
            self._depth -= 1

        return check_graph

    def _call(self, check: Check) -> Check:
        def check_node(value: Any) -> None:
            self._nodes += 1
            if self._nodes > NODES:
                raise Refused(f"more than {NODES} nodes", "fewer")
            self.node = str(value.get("name") or value.get("target")) if type(value) is dict else None
            check(value)
            value["metadata"].pop("source_fn_stack", None)
            self.node = None

        return check_node

    # The checks of each text

    def _free(self, text: str) -> None:
        """A text that stays one: torch keeps it, or prints it by `repr`."""

    def _name(self, text: str) -> None:
        if text in self._names:
            return
        if not _is_name(text) or keyword.iskeyword(text) or text in _TAKEN:
            raise Refused(f"the name {quoted(text)}", "one that Python takes for a variable")
        self._names.add(text)

    def _argument_name(self, text: str) -> None:
        if text and not _is_name(text):
            raise Refused(f"the argument name {quoted(text)}", "one that Python takes for an argument")

    def _state_name(self, text: str) -> None:
        parts = text.split(".")
        if len(text) > NAME_CHARACTERS or not text.isprintable() or not all(map(_STATE_PART.fullmatch, parts)):
            raise Refused(f"the name {quoted(text)}", "one of a state entry or module, without quotes")

    def _expression(self, text: str) -> None:
        if text in self._expressions:
            self._work += self._expressions[text]
            return
        symbols, work = read_expression(text)
        self._symbols |= symbols
        self._expressions[text] = work
        self._work += work
        if len(self._symbols) > SYMBOLS or len(self._expressions) > EXPRESSIONS:
            raise Refused(
                f"{len(self._symbols)} symbols and {len(self._expressions)} expressions",
                f"at most {SYMBOLS} and {EXPRESSIONS}",
            )

    def _ranged(self, text: str) -> None:
        """What a range is of: torch compares it with the sizes that it has read, and evaluates nothing."""
        match = _UNBACKED.fullmatch(text)
        # torch counts up to this number.
        counted = match is not None and len(match[1]) <= 7 and int(match[1]) <= NODES
        if not counted and not (_DERIVED.fullmatch(text) and len(text) <= EXPRESSION_CHARACTERS):
            raise Refused(f"a range of {quoted(text)}", "a symbol, or a size that is computed of symbols")

    def _target(self, text: str) -> None:
        if text in self._known_targets:
            return
        unknown = find_operator(text)
        self._known_targets.add(text)
        if unknown is not None:
            self.operators.add(unknown)

    def _structure(self, text: str) -> None:
        if text not in self._structures:
            self.containers |= read_structure(text)
            self._structures.add(text)

    def _arguments_structure(self, text: str) -> None:
        self._structure(text)
        check_keywords(text)

    def _object(self, text: str) -> None:
        if "pickle" not in self._allow:
            raise Refused(f"the script object {quoted(text)}, which is pickled", 'none, or allow={"pickle"}')
        self._state_name(text)


def _is_name(text: str) -> bool:
    return text.isidentifier() and len(text) <= NAME_CHARACTERS and unicodedata.normalize("NFKC", text) == text


def _unlisted(field: str) -> Check:
    def check(text: str) -> None:
        raise Refused(f"{quoted(text)} in {field}", "a field of torch's schema that this intarsia knows")

    return check


def _as_it_is(check: Check) -> Check:
    return check
