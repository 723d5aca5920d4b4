"""A plan that is given back cuts in the same way; one that does not fit says where."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from tests.partition.test_partition import Mlp, Relaid, Stateful, check_hybrid
from torch import nn

from intarsia.capture import capture
from intarsia.core.plan import PartitionPlan, plan
from intarsia.errors import ArgumentError, HybridError, PartitionError
from intarsia.partition import Wishes, partition, partition_methods


class Views(nn.Module):
    """A view inside and outside, several results, and an operator that nobody takes."""

    def forward(self, x):
        a, b = (x + 1).transpose(0, 1).split(2)
        values, indices = (a * 2).max(0)
        return a.sort(0)[0], a.relu() + b, b.exp().reshape(-1), values, indices


TAKEN_BY_ONE = ("add", "mul", "aten.max", "linear", "view", "transpose")


def take_one(node):
    return None if any(name in str(node.target) for name in TAKEN_BY_ONE) else "no"


def take_two(node):
    return "no" if "sort" in str(node.target) else None


SUPPORTS = {"one": take_one, "two": take_two}
MODELS = {
    "mlp": (Mlp, torch.randn(3, 4)),
    "views": (Views, torch.randn(3, 4)),
    "state": (Stateful, torch.randn(2, 4)),
    "layouts": (Relaid, torch.randn(2, 3, 4)),
}


def replayed(program, given):
    result = partition(program, Wishes(SUPPORTS, plan=PartitionPlan.of(given)))
    check_hybrid(result.hybrid)
    return result


def places_of(hybrid):
    return {one.node: one.place for one in plan(hybrid).methods["forward"]}


def moved(hybrid, **places):
    """The plan of a hybrid with operators in other places."""
    operators = plan(hybrid).methods["forward"]
    return PartitionPlan({"forward": tuple(replace(one, place=places.get(one.node, one.place)) for one in operators)})


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_replayed_exactly(name):
    make, x = MODELS[name]
    program = capture(make(), (x,))
    first = partition(program, Wishes(SUPPORTS))
    text = str(plan(first.hybrid))
    second = replayed(program, text)
    assert str(plan(second.hybrid)) == text
    assert second.coverage.backends == first.coverage.backends
    assert second.hybrid.code == first.hybrid.code
    for partition_name, _ in first.coverage.backends:
        one, other = (hybrid.get_submodule(partition_name) for hybrid in (first.hybrid, second.hybrid))
        assert one.code == other.code


def test_a_plan_is_text_with_a_line_for_each_operator():
    text = str(plan(partition(capture(Mlp(), (torch.ones(3, 4),)), Wishes({"one": take_one})).hybrid))
    lines = [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if '"node"' in line]
    assert lines == json.loads(text)["methods"]["forward"]
    assert lines[0] == {
        "place": "one_0",
        "node": "linear",
        "operator": "aten.linear.default",
        "module": "first",
        "inputs": ["x", "first_weight", "first_bias"],
    }


def test_an_operator_moved_by_hand_runs_where_it_is_put():
    model, x = Mlp(), torch.randn(3, 4)
    program = capture(model, (x,))
    first = partition(program, Wishes({"two": take_two})).hybrid
    assert set(places_of(first).values()) == {"two_0"}
    for places in (
        {"softmax": "torch", "linear_1": "two_1"},
        {"linear": "one_7"},
        {"softmax": "two_1", "linear_1": "one_0"},
    ):
        hybrid = replayed(program, moved(first, **places)).hybrid
        assert places_of(hybrid).items() >= places.items()
        torch.testing.assert_close(hybrid(x), model(x), rtol=0, atol=0)
        names = {node.target for node in hybrid.graph.find_nodes(op="call_module")}
        assert names == set(places_of(hybrid).values()) - {"torch"}


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"softmax": "torch"}, r"its engine would wait for itself \(two_0 for %softmax, %softmax for two_0\)"),
        ({"softmax": "one_0"}, r"found the place 'one_0' for aten\.softmax\.int: no, expected"),
        ({"softmax": "two_1"}, r"would wait for itself \(two_0 for two_1, two_1 for two_0\)"),
    ],
)
def test_an_edit_that_cannot_be_is_an_error(places, message):
    program = capture(Mlp(), (torch.ones(3, 4),))
    first = partition(program, Wishes({"two": take_two})).hybrid
    with pytest.raises(PartitionError, match=r"plan, operator '\w+'.*" + message):
        replayed(program, moved(first, **places))


def test_two_engines_that_wait_for_each_other_are_an_error():
    class Crossed(nn.Module):
        def forward(self, x):
            return x.sin().exp(), x.exp().sin()

    program = capture(Crossed(), (torch.ones(3),))
    first = partition(program, Wishes({"two": take_two})).hybrid
    with pytest.raises(PartitionError, match=r"would wait for itself \(two_0 for two_1, two_1 for two_0\)"):
        replayed(program, moved(first, sin="two_0", exp="two_1", exp_1="two_1", sin_1="two_0"))


def test_a_view_at_an_engine_s_end_is_an_error():
    class Model(nn.Module):
        def forward(self, x):
            return x.exp().view(-1)

    program = capture(Model(), (torch.ones(3, 2),))
    first = partition(program, Wishes({"two": take_two})).hybrid
    with pytest.raises(PartitionError, match=r"operator 'view'.*changes only the layout of an engine's output"):
        replayed(program, moved(first, view="two_0"))


def test_an_operator_whose_layout_is_read_is_an_error():
    class Model(nn.Module):
        def forward(self, x):
            return torch.as_strided(x.transpose(0, 1) * 2, (12,), (1,))

    program = capture(Model(), (torch.randn(3, 4),))
    first = partition(program, Wishes({"one": take_one})).hybrid
    with pytest.raises(PartitionError, match=r"operator 'mul'.*reads the memory layout"):
        replayed(program, moved(first, mul="one_0"))


def test_an_engine_without_inputs_is_an_error():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x.sort(0)[0], self.weight.exp()

    program = capture(Model(), (torch.randn(4),))
    first = partition(program, Wishes(SUPPORTS)).hybrid
    with pytest.raises(PartitionError, match=r"operator 'exp'.*no tensor that changes between calls"):
        replayed(program, moved(first, exp="two_0"))


def test_an_operator_that_an_engine_computes_wrongly_at_a_small_size_is_an_error():
    class Model(nn.Module):
        def forward(self, x):
            return x[:1].exp()

    program = capture(Model(), (torch.randn(3, 2),), dynamic_shapes={"x": {0: torch.export.Dim("rows", max=9)}})
    first = partition(program, Wishes(SUPPORTS)).hybrid
    assert set(places_of(first).values()) == {"torch"}
    with pytest.raises(PartitionError, match=r"operator 'exp'.*where x\.shape\[0\] = 0, it meets f32\[0, 2\]"):
        replayed(program, moved(first, exp="two_0"))


def test_an_engine_named_like_an_attribute_of_the_model_is_an_error():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.two_0 = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + self.two_0

    program = capture(Model(), (torch.randn(3),))
    first = partition(program, Wishes({"two": take_two})).hybrid
    assert places_of(first) == {"add": "two_1"}
    with pytest.raises(PartitionError, match=r"operator 'add'.*the model has an attribute of this name"):
        replayed(program, moved(first, add="two_0"))


class Longer(Mlp):
    def forward(self, x):
        return super().forward(x).relu()


class Other(Mlp):
    def forward(self, x):
        return self.last(self.first(x).log_softmax(-1))


class Rewired(nn.Module):
    def forward(self, x):
        return x.exp() + x.sin()


class Wired(nn.Module):
    def forward(self, x):
        y = x.exp()
        return y + y.sin()


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.start(x).softmax(-1))


@pytest.mark.parametrize(
    ("planned", "compiled", "message"),
    [
        (
            Mlp,
            Longer,
            r"plan: found 3 operators; it lacks the line of 'relu' \(aten\.relu\.default, .*1\), expected 4",
        ),
        (Longer, Mlp, r"plan: found 4 operators; it has too many of, from 'relu' .*, expected 3"),
        (
            Other,
            Mlp,
            r"plan: found 'log_softmax' .* as its operator 2, expected 'softmax' \(aten\.softmax\.int, reading",
        ),
        (
            Rewired,
            Wired,
            r"plan: found 'sin' \(.*reading x\) as its operator 2, expected 'sin' \(.*reading exp\), as the",
        ),
        (
            Renamed,
            Mlp,
            r"plan: found 'linear' \(aten\.linear\.default of module 'start', .*, expected .* of module 'first'",
        ),
    ],
)
def test_the_plan_of_another_model_tells_where_they_part(planned, compiled, message):
    x = torch.randn(3, 4)
    given = plan(partition(capture(planned(), (x,)), Wishes(SUPPORTS)).hybrid)
    with pytest.raises(PartitionError, match=message):
        replayed(capture(compiled(), (x,)), given)


def test_a_line_that_was_left_out_or_doubled_is_told():
    program = capture(Longer(), (torch.randn(3, 4),))
    lines = plan(partition(program, Wishes(SUPPORTS)).hybrid).methods["forward"]
    for i, line in enumerate(lines):
        left = PartitionPlan({"forward": lines[:i] + lines[i + 1 :]})
        with pytest.raises(
            PartitionError, match=rf"plan: found 3 operators; it lacks the line of '{line.node}'"
        ) as lost:
            replayed(program, left)
        doubled = PartitionPlan({"forward": (*lines[: i + 1], *lines[i:])})
        with pytest.raises(PartitionError, match=rf"plan, operator '{line.node}': found two lines for") as double:
            replayed(program, doubled)
        assert "another model" not in f"{lost.value} {double.value}"


def test_a_plan_of_other_sizes_is_one_of_the_same_model():
    given = plan(partition(capture(Mlp(), (torch.randn(3, 4),)), Wishes(SUPPORTS)).hybrid)
    model, x = Mlp(), torch.randn(9, 4)
    torch.testing.assert_close(replayed(capture(model, (x,)), given).hybrid(x), model(x), rtol=0, atol=0)


def test_a_plan_holds_every_method():
    model, x = Stateful(), torch.randn(2, 4)
    programs = {"whole": capture(model, (x,)), "linear": capture(model.linear, (x,), root=model)}
    parts = partition_methods(programs, Wishes(SUPPORTS))
    given = plan({name: part.hybrid for name, part in parts.items()})
    again = partition_methods(programs, Wishes(SUPPORTS, plan=PartitionPlan.of(str(given))))
    assert plan({name: part.hybrid for name, part in again.items()}) == given
    with pytest.raises(
        PartitionError, match=r"found the methods 'whole', 'linear', expected the methods 'whole', 'linaer'\. Did"
    ):
        partition_methods({"whole": programs["whole"], "linaer": programs["linear"]}, Wishes(SUPPORTS, plan=given))
    with pytest.raises(PartitionError, match=r"found the methods 'whole', 'linear', expected the methods 'forward'"):
        partition(programs["whole"], Wishes(SUPPORTS, plan=given))
    changed = PartitionPlan({**given.methods, "linear": given.methods["whole"]})
    with pytest.raises(PartitionError, match="method 'linear', plan: found"):
        partition_methods(programs, Wishes(SUPPORTS, plan=changed))


GOOD = {"place": "torch", "node": "n", "operator": "aten.relu.default", "module": "", "inputs": ["x"]}


def values(entry):
    return {"format": "intarsia plan", "version": 1, "methods": {"forward": [entry]}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "plan: found an int"),
        (b"{}", "plan: found a bytes"),
        ("{", r"plan: found what cannot be read \(Expecting property name"),
        ("no/such/plan.json", r"plan 'no/such/plan\.json': found no file of that name, expected"),
        ({}, 'found no "format": "intarsia plan"'),
        ("[]", r"plan '\[\]': found no file of that name"),
        ({"format": "intarsia plan", "version": 2, "methods": {}}, "found version 2, expected version 1"),
        ({"format": "intarsia plan", "version": 1, "methods": []}, "no lists of operators"),
        ({"format": "intarsia plan", "version": 1, "methods": {"forward": {}}}, "no lists of operators"),
        (values([]), r"method 'forward', entry 0: found \[\], where place, node"),
        (values({**GOOD, "more": 1}), "where place, node"),
        (values({**GOOD, "inputs": [3]}), "with values that are no text"),
        (values({**GOOD, "node": 3}), "with values that are no text"),
        (values({**GOOD, "place": "openvino"}), "the place 'openvino', which is neither"),
        (values({**GOOD, "place": "_0"}), "the place '_0', which is neither"),
        (values({**GOOD, "place": "torch_0"}), "the place 'torch_0', which is neither"),
        (values({**GOOD, "place": "one_01"}), "the place 'one_01', which is neither"),
        (values({**GOOD, "place": "one_" + "9" * 5000}), "which is neither"),
        (
            '{"format": "intarsia plan", "version": 1, "version": 1}',
            "'version' twice in one object",
        ),
        ("[" * 1000, r"^plan '\[{196} \.\.\.': found what cannot be read"),
    ],
)
def test_what_is_no_plan_is_an_error(given, message):
    with pytest.raises(ArgumentError, match=message):
        PartitionPlan.of(given)


@pytest.mark.parametrize(
    "make", [str, lambda one: json.loads(str(one)), lambda one: one], ids=["text", "values", "plan"]
)
def test_a_plan_is_read_from_whatever_holds_it(make, tmp_path):
    given = PartitionPlan.of(values(GOOD))
    assert PartitionPlan.of(make(given)) == given
    path = tmp_path / "plan.json"
    path.write_text(f"{given}\n")
    assert PartitionPlan.of(path) == PartitionPlan.of(str(path)) == given
    path.write_text(f"{given}", encoding="utf-8-sig")
    assert PartitionPlan.of(path) == PartitionPlan.of(path.read_text(encoding="utf-8")) == given
    assert re.fullmatch(r"[\x20-\x7e\n]+", str(given))


def test_what_has_no_plan_is_an_error():
    with pytest.raises(HybridError, match="hybrid: found an object of type 'GraphModule' without a plan"):
        plan(capture(nn.ReLU(), (torch.ones(2),)).graph_module)
    with pytest.raises(HybridError, match="hybrid 'decode': found an object of type 'ReLU'"):
        plan({"decode": nn.ReLU()})
