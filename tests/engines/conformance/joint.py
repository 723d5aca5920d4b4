"""One engine of many cases: each costs little, however long a build takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from tests.engines.conformance.case import Arguments, Case
from tests.engines.conformance.cases import CASES
from tests.engines.conformance.programs import (
    RUN,
    assert_same,
    constant_of,
    export,
    operators_of,
    reasons_against,
    signature_of,
)

from intarsia.core.backend import Backend, BuiltEngine


class _Together(torch.nn.Module):
    """All functions after each other; of what they return, the outputs of some numbers, or all."""

    def __init__(self, cases: Mapping[str, Case], chosen: Mapping[str, list[int]] | None) -> None:
        super().__init__()
        self.cases, self.chosen = cases, chosen
        functions = [case.function for case in cases.values()]
        self.stateful = torch.nn.ModuleList([one for one in functions if isinstance(one, torch.nn.Module)])

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given, results = iter(args), list[torch.Tensor]()
        for name, case in self.cases.items():
            answer = case.answer(tuple(next(given) for _ in case.calls[0]))
            results += answer if self.chosen is None else [answer[i] for i in self.chosen[name]]
        return tuple(results)


def _export(cases: Mapping[str, Case], chosen: Mapping[str, list[int]] | None) -> torch.export.ExportedProgram:
    dims = [dims for case in cases.values() for dims in case.dims or [None] * len(case.calls[0])]
    args = [value for case in cases.values() for value in case.calls[0]]
    return export(_Together(cases, chosen), args, (tuple(dims),))


@cache
def _export_all(names: tuple[str, ...]) -> torch.export.ExportedProgram:
    """All of the suite's cases: the same for each backend."""
    return _export({name: CASES[name] for name in names}, None)


def _choose(backend: Backend, cases: Mapping[str, Case]) -> tuple[dict[str, list[str]], dict[str, list[int]]]:
    """Reasons against outputs of each case, and the numbers of the outputs that are left."""
    program = _export_all(tuple(cases))
    against = {node: backend.supports(node) for node in operators_of(program)}
    results: Any = iter(program.graph.output_node().args[0])
    reasons, chosen = dict[str, list[str]](), dict[str, list[int]]()
    for name, case in cases.items():
        behind = [_reasons_behind(next(results), against) for _ in case.answer(case.calls[0])]
        reasons[name] = [reason for some in behind for reason in some]
        chosen[name] = [i for i, some in enumerate(behind) if not some]
    return reasons, {name: numbers for name, numbers in chosen.items() if numbers}


class JointEngine:
    """One engine of all cases, without the outputs that need an operator which the backend leaves to torch.

    Args:
        backend: Builds it.
        cases: By name.

    Attributes:
        reasons: Of each case, why outputs of it are left out.
        chosen: Of each case of which something is left, the numbers of the outputs that are.
    """

    def __init__(self, backend: Backend, cases: Mapping[str, Case]) -> None:
        self.reasons, self.chosen = _choose(backend, cases)
        self._cases = {name: cases[name] for name in self.chosen}
        program = _export(self._cases, self.chosen)
        assert reasons_against(backend, program) == []
        self._signature = signature_of(program)
        self._engine = constant_of(self._build(backend, program), backend.name, self._signature)

    def _build(self, backend: Backend, program: torch.export.ExportedProgram) -> BuiltEngine:
        try:
            return backend.build(program, {})
        except Exception as error:
            pytest.fail(f"case {_find_culprit(backend, list(self._cases))!r} cannot be built with others: {error}")

    def _arguments(self, number: int, changed: Mapping[str, Arguments] | None) -> list[torch.Tensor]:
        """The arguments of a call of each case: one of its own, begun again where it has fewer."""
        calls = {name: case.calls[number % len(case.calls)] for name, case in self._cases.items()}
        return [value for call in (calls | dict(changed or {})).values() for value in call]

    def run(self, number: int, changed: Mapping[str, Arguments] | None = None) -> dict[str, list[torch.Tensor]]:
        """What the engine answers to a call of each case, by the names of the cases.

        Args:
            number: Number of the call.
            changed: Other arguments of some cases.
        """
        with torch.no_grad():
            results = iter(RUN(self._arguments(number, changed), self._engine, self._signature))
        return {name: [next(results) for _ in chosen] for name, chosen in self.chosen.items()}

    @cached_property
    def answers(self) -> list[dict[str, list[torch.Tensor]]]:
        """The answers to all calls."""
        return [self.run(i) for i in range(max(len(case.calls) for case in self._cases.values()))]

    def check(self, name: str) -> None:
        """Compare the answers of a case with those of torch."""
        case, chosen = self._cases[name], self.chosen[name]
        for args, answers in zip(case.calls, self.answers, strict=False):
            with torch.no_grad():
                expected = case.answer(args)
            wanted = [expected[i] for i in chosen]
            assert_same(answers[name], wanted, case.tolerance, signs=case.signs, numbers=chosen)


def _reasons_behind(result: torch.fx.Node, against: Mapping[torch.fx.Node, str | None]) -> list[str]:
    """Why the backend leaves operators to torch that a result needs."""
    pending, seen = [result], {result}
    while pending:
        fresh = [source for source in pending.pop().all_input_nodes if source not in seen]
        pending += fresh
        seen.update(fresh)
    return [f"{node.target}: {reason}" for node, reason in against.items() if node in seen and reason is not None]


def _find_culprit(backend: Backend, names: list[str]) -> str:
    """The case of which a build fails, found by halves."""
    while len(names) > 1:
        half = names[: len(names) // 2]
        cases = {name: CASES[name] for name in half}
        _, chosen = _choose(backend, cases)
        try:
            backend.build(_export(cases, chosen), {})
            names = names[len(half) :]
        except Exception:
            names = half
    return names[0]
