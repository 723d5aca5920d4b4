"""The structures of arguments and results in a file, before torch makes anything of their text.

torch imports what a text names where a context holds an enum or the factory of a `defaultdict`, and prints the names
of keyword arguments into the code of a graph. Classes are looked up among those that are registered already.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from typing import Any

from intarsia._torch import RegisteredContainer, registered_containers
from intarsia.formats.archive.limits import DEPTH
from intarsia.formats.archive.refusal import Refused, quoted

_EXPECTED = "a structure that torch writes"
_NAMED_TUPLE = "collections.namedtuple"
_DEFAULT_DICT = "collections.defaultdict"
_FACTORIES = {"bool", "dict", "float", "int", "list", "set", "str", "tuple"}


def read_structure(text: str) -> set[str]:
    """The names of the classes in a structure that are not registered in this process.

    Raises:
        Refused: The text is no structure, or names something that would have to be imported or called.

    Example:
        >>> leaf = '{"type": null, "context": null, "children_spec": []}'
        >>> read_structure('[1, {"type": "my.Point", "context": "null", "children_spec": [' + leaf + "]}]")
        {'my.Point'}
    """
    match _parsed(text):
        case [1, dict(root)]:
            reader = _Reader()
            reader.node(root, 0)
            return reader.unknown
        case _:
            raise Refused(f"the structure {quoted(text)}", _EXPECTED)


def check_keywords(text: str) -> None:
    """Refuse a structure of arguments that has a keyword which is no name: `(args, kwargs)` at the top.

    Args:
        text: One that `read_structure` read.
    """
    match _parsed(text):
        case [1, {"type": "builtins.tuple", "children_spec": [_, {"type": "builtins.dict", "context": str(context)}]}]:
            names = _parsed(context)
            if not isinstance(names, list) or not all(isinstance(name, str) and name.isidentifier() for name in names):
                raise Refused(f"the keyword arguments {quoted(context)}", "a list of names")
        case _:
            return


class _Reader:
    def __init__(self) -> None:
        self._known = registered_containers()
        self.unknown: set[str] = set()

    def node(self, node: Any, depth: int) -> None:
        match node:
            case {"type": None, "context": None, "children_spec": []}:
                return
            case {"type": str(name), "context": context, "children_spec": list(children)} if depth < DEPTH:
                self._container(name, context)
                for child in children:
                    self.node(child, depth + 1)
            case _:
                raise Refused(f"{quoted(node)} in a structure", f"{_EXPECTED}, of at most {DEPTH} levels")

    def _container(self, name: str, context: Any) -> None:
        container = self._known.get(name)
        if container is None:
            self.unknown.add(name)
        elif name == _NAMED_TUPLE:
            if not isinstance(context, str):
                raise Refused(f"the named tuple {quoted(context)}", "its name")
            if context not in self._known:
                self.unknown.add(context)
        elif name == _DEFAULT_DICT:
            _check_default(context)
        else:
            _check_context(container, context)


def _check_default(context: Any) -> None:
    match context:
        case {"default_factory_module": "builtins", "default_factory_name": str(name), "dict_context": list(keys)} if (
            name in _FACTORIES
        ):
            _check_values(keys, 0)
        case _:
            raise Refused(f"the defaultdict {quoted(context)}", f"one of {', '.join(sorted(_FACTORIES))}")


def _check_context(container: RegisteredContainer, context: Any) -> None:
    if container.reads_json:
        if not isinstance(context, str):
            raise Refused(f"the context {quoted(context)} of a {quoted(container.name)}", "a JSON text")
        context = _parsed(context)
    _check_values(context, 0)


def _check_values(value: Any, depth: int) -> None:
    """Refuse what torch would import something for, and what is nested too deep."""
    if depth > DEPTH:
        raise Refused("a nested context in a structure", f"at most {DEPTH} levels")
    if isinstance(value, dict):
        if "__enum__" in value and not _is_enum(value.get("fqn")):
            raise Refused(f"the enum {quoted(value.get('fqn'))}", "one whose module is imported already")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_values(item, depth + 1)


def _is_enum(name: object) -> bool:
    """Whether `module:Class` is an enum that this process has imported."""
    module, _, path = str(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return isinstance(found, type) and issubclass(found, Enum)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the text {quoted(text)} in a structure", "JSON") from error
