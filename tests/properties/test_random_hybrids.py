"""The law of export on random hybrids: the program equals eager, to the bit, state included, over three calls.

`python -m pytest tests/properties --hypothesis-profile=long` tries many thousands.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, reject, settings

from builders.laws import FORMS, Call, Expected, assert_follows, expect, operators, printed, state_names
from builders.random_hybrids import Plan, State, Step, build, inputs, plans
from intarsia.surgery import export


def eager(plan: Plan, calls: list[Call]) -> Expected:
    """What the hybrid does; a plan that torch itself refuses to run (a write that reads what it overwrites) is none."""
    try:
        return expect(build(plan), calls)
    except RuntimeError:
        reject()


def exported(plan: Plan) -> tuple[torch.fx.GraphModule, torch.export.ExportedProgram]:
    subject = build(plan)
    before = printed(subject)
    args, kwargs = inputs(plan, 0)
    options = {"dynamic_shapes": plan.dynamic_shapes} if plan.dynamic_shapes else {}
    program = export(subject) if plan.described else export(subject, args, kwargs, **options)
    assert printed(subject) == before, "the export changed the hybrid"
    return subject, program


@given(plans())
def test_exported_equals_eager(plan: Plan) -> None:
    calls = [inputs(plan, index) for index in range(3)]
    wanted = eager(plan, calls)
    subject, program = exported(plan)
    assert_follows(program, state_names(program, subject), calls, wanted)


BUFFER = State(kind="buffer", base=None, tied=False)
UNREAD_ALIAS = Plan(
    count=3,
    state=(BUFFER, BUFFER, BUFFER, State(kind="parameter", base=0, tied=False)),
    steps=(Step(torch.ops.aten.relu.default, (3,), ()), Step(torch.ops.aten.copy_.default, (6, 4), ())),
    cuts=(),
    results=(0,),
    seed=0,
    described=False,
    dynamic=False,
)
"""A buffer is written that shares memory with a parameter, which only a node without users reads."""


@settings(max_examples=settings().max_examples // 5)
@example(UNREAD_ALIAS)
@given(plans())
def test_exporting_the_exported_module_gives_the_same_program(plan: Plan) -> None:
    _, program = exported(plan)
    again = export(program.module())
    assert sorted(map(str, operators(again))) == sorted(map(str, operators(program)))
    assert again.call_spec == program.call_spec
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    assert [spec.kind for spec in again.graph_signature.output_specs] == kinds


@pytest.mark.parametrize("form", ["file", "decomposed"])
@settings(max_examples=settings().max_examples // 25)
@given(plans(aliases=False))
def test_other_forms_equal_eager(form: str, plan: Plan) -> None:
    calls = [inputs(plan, index) for index in range(3)]
    wanted = eager(plan, calls)
    subject, program = exported(plan)
    names = state_names(program, subject)
    if form == "decomposed" and names.keys() & set(program.module_call_graph[0].signature.forward_arg_names):
        reject()  # decomposed, torch takes the write of an input for one of the state of its name
    assert_follows(FORMS[form](program), names, calls, wanted)
