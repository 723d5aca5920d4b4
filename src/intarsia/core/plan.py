"""Which operator of a model runs where, as a text that is kept, edited and given back."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from intarsia.core.choice import TORCH
from intarsia.errors import ArgumentError, HybridError, first_line, shorten, with_article

_VERSION = 1
_KEY = "intarsia_plan"
_FORMAT = "intarsia plan"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class PlannedOperator:
    """One operator node of a captured program.

    Attributes:
        place: "torch", or the name of the engine that holds it: its backend, "_" and a number.
        node: Name of the node in the captured graph.
        operator: Operator, for instance "aten.linear.default".
        module: Path of the module that calls it; empty for the model itself.
        inputs: Names of the nodes that it reads.

    Example:
        >>> PlannedOperator("openvino_2", "relu", "aten.relu.default", "act", ("x",)).backend
        'openvino'
    """

    place: str
    node: str
    operator: str
    module: str
    inputs: tuple[str, ...]

    @property
    def backend(self) -> str:
        """Name of the engine's backend; empty where it is in torch, or where the place is no name of an engine."""
        name, _, number = self.place.rpartition("_")
        return name if name != TORCH and _NUMBER.fullmatch(number) else ""

    @property
    def subject(self) -> str:
        """How messages name it."""
        return f"plan, operator {self.node!r}"

    @property
    def description(self) -> str:
        """What it is, wherever it runs."""
        module = f" of module {self.module!r}" if self.module else ""
        return f"{self.node!r} ({self.operator}{module}, reading {', '.join(self.inputs) or 'nothing'})"


@dataclass(frozen=True)
class PartitionPlan:
    """Where each operator of each method runs; its text is JSON with a line for each operator, in the graph's order.

    Attributes:
        methods: Operators by method; a program alone is the method "forward".

    Example:
        >>> relu = PlannedOperator("openvino_0", "relu", "aten.relu.default", "", ("x",))
        >>> print(PartitionPlan({"forward": (relu,)}))
        {
          "format": "intarsia plan",
          "version": 1,
          "methods": {
            "forward": [
              {"place": "openvino_0", "node": "relu", "operator": "aten.relu.default", "module": "", "inputs": ["x"]}
            ]
          }
        }
    """

    methods: Mapping[str, tuple[PlannedOperator, ...]]

    @classmethod
    def of(cls, given: Any) -> PartitionPlan:
        """The plan that the argument `plan` of `compile` tells.

        Args:
            given: A plan, its text, the path of a file with that text, or the values of the text.

        Raises:
            ArgumentError: It is none of these.

        Example:
            >>> relu = PlannedOperator("torch", "relu", "aten.relu.default", "", ("x",))
            >>> plan = PartitionPlan({"forward": (relu,)})
            >>> PartitionPlan.of(str(plan)) == plan
            True
        """
        if isinstance(given, PartitionPlan):
            return given
        if isinstance(given, Mapping):
            return cls._from_values("plan", given)
        if not isinstance(given, (str, os.PathLike)):
            raise _unreadable("plan", with_article(type(given).__name__))
        is_text = isinstance(given, str) and given.lstrip("\ufeff \t\r\n").startswith("{")
        subject = "plan" if is_text else f"plan {shorten(os.fspath(given), 200)!r}"
        try:
            # What Windows writes may begin with a mark of its encoding.
            text = str(given) if is_text else Path(given).read_text(encoding="utf-8-sig")
            values = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_as_mapping)
        except FileNotFoundError as error:
            raise _unreadable(subject, "no file of that name") from error
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(subject, f"what cannot be read ({first_line(error)})") from error
        return cls._from_values(subject, values)

    @classmethod
    def _from_values(cls, subject: str, values: Any) -> PartitionPlan:
        if not isinstance(values, Mapping) or values.get("format") != _FORMAT:
            raise _unreadable(subject, f'no "format": "{_FORMAT}"')
        if values.get("version") != _VERSION:
            raise ArgumentError(
                subject,
                found=f"version {values.get('version')!r}",
                expected=f"version {_VERSION}, which this intarsia reads",
                fix="Compile without the plan, and take that of the new hybrid.",
            )
        methods = values.get("methods")
        if not isinstance(methods, Mapping) or not all(isinstance(entries, list) for entries in methods.values()):
            raise _unreadable(subject, "no lists of operators by method")
        return cls(
            {
                str(name): tuple(
                    _read_operator(f"{subject}, method {name!r}, entry {i}", entry) for i, entry in enumerate(entries)
                )
                for name, entries in methods.items()
            }
        )

    @property
    def backends(self) -> dict[str, str]:
        """The backends of the engines, each once; and for each how messages name the first entry of one."""
        found: dict[str, str] = {}
        for name, entries in self.methods.items():
            for i, one in enumerate(entries):
                if one.backend:
                    found.setdefault(one.backend, f"plan, method {name!r}, entry {i} ({one.node}), place {one.place!r}")
        return found

    def __str__(self) -> str:
        methods = ",\n".join(f"    {json.dumps(name)}: {_lines(entries)}" for name, entries in self.methods.items())
        return f'{{\n  "format": "{_FORMAT}",\n  "version": {_VERSION},\n  "methods": {{\n{methods}\n  }}\n}}'


def _as_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        message = f"{repeated!r} twice in one object"
        raise ValueError(message)
    return values


def _lines(entries: tuple[PlannedOperator, ...]) -> str:
    lines = ",\n".join(f"      {json.dumps(asdict(entry))}" for entry in entries)
    return f"[\n{lines}\n    ]" if lines else "[]"


def _read_operator(subject: str, entry: Any) -> PlannedOperator:
    names = [field.name for field in fields(PlannedOperator)]
    if not isinstance(entry, Mapping) or sorted(entry) != sorted(names):
        raise _unreadable(subject, f"{entry!r}, where {', '.join(names)} should be told")
    inputs = entry["inputs"]
    if not isinstance(inputs, list) or not all(
        isinstance(text, str) for text in (*inputs, *map(entry.get, names[:-1]))
    ):
        raise _unreadable(subject, f"{entry!r}, with values that are no text")
    found = PlannedOperator(**{**entry, "inputs": tuple(inputs)})
    if not found.backend and found.place != TORCH:
        raise _unreadable(
            subject,
            f"the place {shorten(found.place, 100)!r}, which is neither 'torch' nor a backend's name, '_' and a number",
        )
    return found


def _unreadable(subject: str, found: str) -> ArgumentError:
    return ArgumentError(
        subject,
        found=found,
        expected="a plan as intarsia.plan prints it, its text, or the path of a file that holds it",
        fix="Write str(intarsia.plan(hybrid)) to a file, and edit places only: 'torch', or names like 'openvino_0'.",
    )


def plan(hybrid: torch.fx.GraphModule | Mapping[str, torch.fx.GraphModule]) -> PartitionPlan:
    """Where each operator of a hybrid that `intarsia.compile` made runs, for `intarsia.compile(..., plan=...)`.

    Args:
        hybrid: What `compile` returned; of several methods all of them, by their names.

    Returns:
        A plan, whose text (`str`) can be kept in a file.

    Raises:
        HybridError: `intarsia.compile` did not make it.

    Example:
        >>> import intarsia
        >>> model, args = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.ones(2, 4),)
        >>> kept = str(plan(intarsia.compile(model, args)))
        >>> edited = kept.replace('{"place": "openvino_0", "node": "relu"', '{"place": "torch", "node": "relu"')
        >>> [p.place for p in intarsia.coverage(intarsia.compile(model, args, plan=edited)).placements]
        ['openvino_0', 'torch']
    """
    hybrids = hybrid if isinstance(hybrid, Mapping) else {"forward": hybrid}
    return PartitionPlan({name: _find_plan(name, one) for name, one in hybrids.items()})


def _find_plan(method: str, hybrid: torch.fx.GraphModule) -> tuple[PlannedOperator, ...]:
    found = getattr(hybrid, "meta", {}).get(_KEY)
    if isinstance(found, tuple):
        return found
    raise HybridError(
        "hybrid" if method == "forward" else f"hybrid {method!r}",
        found=f"an object of type {type(hybrid).__name__!r} without a plan",
        expected="what intarsia.compile returned",
        fix="Pass the hybrid itself, or the mapping of hybrids.",
    )


def record_plan(hybrid: torch.fx.GraphModule, operators: tuple[PlannedOperator, ...]) -> None:
    """Let `plan(hybrid)` find where the operators of a hybrid run."""
    hybrid.meta[_KEY] = operators
