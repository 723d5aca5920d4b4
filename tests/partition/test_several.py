"""Several backends cut one graph: by an order, by operators and modules, without circles, and all reasons are told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intarsia.capture import capture
from intarsia.core.build_failure import BuildFailure
from intarsia.core.choice import BackendChoice
from intarsia.errors import ArgumentError, PartitionError
from intarsia.partition import Wishes, partition, partition_methods


def take(*names):
    """A backend that takes some operators alone."""
    return lambda node: None if any(name in str(node.target) for name in names) else "not in the table"


def take_all(node):
    return None


def cut(model, args, supports, backend=None, failures=(), **settings):
    program = capture(model, args)
    choice = None if backend is None else BackendChoice.of(backend)
    result = partition(program, Wishes(supports, choice, **settings), failures)
    result.hybrid.graph.lint()
    with torch.no_grad():
        torch.testing.assert_close(result.hybrid(*args), model(*args), rtol=0, atol=0, check_stride=False)
    return result


def places(result):
    return {item.node: item.place for item in result.coverage.placements}


def reasons(result):
    return {item.node: item.reason for item in result.coverage.placements}


class Chain(nn.Module):
    def forward(self, x):
        return x.exp().sin().cos().sort(0)[0].tanh()


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.decoder = nn.Linear(4, 4)

    def forward(self, x):
        return self.decoder(self.encoder(x)).softmax(-1)


X = torch.randn(5)
ROWS = torch.randn(3, 4)


def test_operators_go_to_the_first_backend_that_takes_them():
    result = cut(Chain(), (X,), {"one": take("sin", "cos"), "two": take("exp", "sin", "cos", "tanh")})
    assert places(result) == {"exp": "two_0", "sin": "one_0", "cos": "one_0", "sort": "torch", "tanh": "two_1"}
    assert reasons(result) == {
        "exp": "supported; one: not in the table",
        "sin": "supported",
        "cos": "supported",
        "sort": "not in the table",
        "tanh": "supported; one: not in the table",
    }
    assert result.coverage.backends == (("two_0", "two"), ("one_0", "one"), ("two_1", "two"))
    assert result.coverage.headline() == "4 of 5 operators in 3 engines (2 two, 1 one)"


def test_the_table_names_the_backends_of_several():
    result = cut(
        Chain(), (X,), {"one": take("sin", "cos"), "two": lambda node: "too new" if "sort" in node.name else None}
    )
    assert str(result.coverage).splitlines() == [
        "4 of 5 operators in 3 engines (2 two, 1 one)",
        "two      1  aten.exp.default   supported; one: not in the table",
        "two      1  aten.tanh.default  supported; one: not in the table",
        "one      1  aten.cos.default   supported",
        "one      1  aten.sin.default   supported",
        "torch    1  aten.sort.default  one: not in the table; two: too new",
    ]


def test_two_cuts_that_are_right_alone_make_no_circle():
    """Each backend could have one engine of its two operators, but not both: each would wait for the other."""

    class Crossed(nn.Module):
        def forward(self, x, y):
            return x.sin().exp(), y.exp().sin()

    result = cut(Crossed(), (X, X + 1), {"one": take("sin"), "two": take("exp")})
    assert result.coverage.share == 1
    assert len(result.coverage.engines) == 3


def test_an_operator_between_two_engines_of_another_backend_waits_for_both_ways():
    class Model(nn.Module):
        def forward(self, x):
            a = x.sin()
            b = a.exp() + a
            return b.sin() + a.sin(), b.exp()

    result = cut(Model(), (X,), {"one": take("sin", "add"), "two": take("exp")})
    assert result.coverage.share == 1
    assert dict(result.coverage.backends).keys() == set(result.coverage.engines)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ({"": "one", "encoder": "two"}, ["two_0", "two_0", "two_0", "one_0", "one_0"]),
        ({"": "one", "encoder.1": "two"}, ["one_0", "two_0", "one_1", "one_1", "one_1"]),
        ({"": "one", "encoder": "two", "encoder.1": "torch"}, ["two_0", "torch", "two_1", "one_0", "one_0"]),
        ({"": "one", "aten.linear": "two"}, ["two_0", "one_0", "two_1", "two_1", "one_1"]),
        ({"": "one", "aten::linear.default": "two"}, ["two_0", "one_0", "two_1", "two_1", "one_1"]),
        ({"": "one", torch.ops.aten.linear: "two"}, ["two_0", "one_0", "two_1", "two_1", "one_1"]),
        ({"aten.linear": "two", "encoder": "one"}, ["two_0", "one_0", "two_1", "two_1", "torch"]),
        ({"aten.linear": "two", "aten.linear.default": "torch"}, ["torch"] * 5),
        (
            {"": "one", " encoder ": "two", torch.ops.aten.relu: "one", "aten.relu": "one"},
            ["two_0", "one_0", "two_1", "one_1", "one_1"],
        ),
        ({"decoder": ["one", "two"]}, ["torch", "torch", "torch", "two_0", "torch"]),
        (["torch"], ["torch"] * 5),
        (["one", "torch"], ["one_0"] * 5),
    ],
)
def test_operators_and_modules_overrule_the_order(backend, expected):
    refuse_decoder = lambda node: "it is new" if node.name == "linear_2" and "decoder" in str(backend) else None  # noqa: E731
    result = cut(Layers(), (ROWS,), {"one": refuse_decoder, "two": take_all}, backend)
    assert list(places(result).values()) == expected


def test_what_has_no_backend_says_so():
    result = cut(Layers(), (ROWS,), {"one": take_all}, {"encoder": "one", "aten.relu": "torch"})
    assert reasons(result)["relu"] == "named for torch in backend"
    assert reasons(result)["softmax"] == "no backend is named for it"


def test_operators_without_an_overload_leave_the_model_its_backend():
    class Branching(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).exp()

    found = places(cut(Branching(), (X,), {"a": take("exp")}))
    assert found["exp"] == "a_0"
    assert found["cond"] == "torch"


def test_torch_executed_ops_overrule_everything():
    result = cut(
        Layers(), (ROWS,), {"one": take_all}, {"": "one", "aten.relu": "one"}, torch_executed_ops={"aten.relu"}
    )
    assert (places(result)["relu"], reasons(result)["relu"]) == ("torch", "named in torch_executed_ops")


def test_a_module_that_is_called_twice_is_one_module():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(self.inner(x).relu())

    result = cut(Twice(), (ROWS,), {"one": take_all, "two": take_all}, {"": "one", "inner": "two"})
    assert list(places(result).values()) == ["two_0", "one_0", "two_1"]


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ({"": "one", "encodr": "one"}, r"backend: found 'encodr', .* Did you mean 'encoder'\?"),
        ({"encoder.9": "one"}, r"found 'encoder\.9', .* Did you mean 'encoder\.[02]'\?"),
        ({"aten.lineer": "one"}, r"found 'aten\.lineer', .* Did you mean 'aten\.linear"),
        ({"linear": "one"}, r"Did you mean 'aten\.linear'\?"),
        ({"qqqqqqq": "one"}, r"It has aten\.linear\.default, aten\.relu\.default, .*encoder\.2\."),
        ({torch.ops.aten.add: "one"}, r"found 'aten\.add'"),
        ({3: "one"}, r"backend: found an entry of type 'int'"),
        (
            {"aten.relu": "one", torch.ops.aten.relu: "torch"},
            r"two orders for 'aten\.relu': one, and torch",
        ),
    ],
)
def test_a_key_that_matches_nothing_is_an_error(backend, message):
    with pytest.raises(PartitionError, match=message):
        cut(Layers(), (ROWS,), {"one": take_all}, backend)


def test_a_key_may_match_in_one_method_of_several():
    model = Layers()
    programs = {"whole": capture(model, (ROWS,)), "first": capture(model.encoder[0], (ROWS,), root=model)}
    wishes = Wishes({"one": take_all}, BackendChoice.of({"": "one", "decoder": "torch"}))
    parts = partition_methods(programs, wishes)
    assert places(parts["whole"])["linear_2"] == "torch"
    assert places(parts["first"]) == {"linear": "one_0"}


@pytest.mark.parametrize(
    "backend", [[], {}, "", 3, None, [3], {"": []}, {"": {"encoder": "one"}}, {"encoder": 3}, ["one", ""]]
)
def test_what_is_no_choice_is_an_error(backend):
    with pytest.raises(ArgumentError, match="expected the name of a backend, or names in the order"):
        BackendChoice.of(backend)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (["torch", "one"], "backend: found 'one' after 'torch', which takes all, expected each name once"),
        (["one", "torch", "two"], "Leave out 'torch', or put it last"),
        ({"encoder": ["one", "one"]}, "backend, 'encoder': found 'one' twice"),
        (["one", "torch", "torch"], "found 'torch' twice"),
    ],
)
def test_an_order_with_a_name_that_it_never_comes_to_is_an_error(backend, message):
    with pytest.raises(ArgumentError, match=message):
        BackendChoice.of(backend)


def test_a_module_that_calls_no_operator_is_told_as_one():
    program = capture(Layers(), (ROWS,))
    wishes = Wishes({"one": take_all}, BackendChoice.of({"": "one", "idle": "one"}), modules={"idle"})
    with pytest.raises(PartitionError, match="found 'idle', a module that calls no operator of the captured graph"):
        partition(program, wishes)


def test_small_blocks_go_to_the_next_backend():
    result = cut(Chain(), (X,), {"one": take("sin"), "two": take("exp", "sin", "cos")}, min_block_size=2)
    assert list(places(result).values()) == ["two_0", "two_0", "two_0", "torch", "torch"]
    small = "in a block of 1 operator, below min_block_size"
    assert reasons(result)["sin"] == f"supported; one: {small}"


def test_a_view_at_an_engine_s_end_may_begin_that_of_another_backend():
    class Model(nn.Module):
        def forward(self, x):
            return x.exp().view(2, 2, 3).sin().view(-1)

    x = torch.randn(4, 3)
    result = cut(Model(), (x,), {"one": take("exp", "view"), "two": take("sin", "view")})
    trailing = "changes only the layout of an engine's output"
    assert places(result) == {"exp": "one_0", "view": "two_0", "sin": "two_0", "view_1": "torch"}
    assert reasons(result)["view"] == f"supported; one: {trailing}"
    assert reasons(result)["view_1"] == trailing


def test_sizes_that_one_backend_cannot_work_out_are_asked_of_the_next():
    class Model(nn.Module):
        def forward(self, x):
            return x.relu() * (x.shape[0] ** 0.5)

    program = capture(Model(), (torch.randn(4),), dynamic_shapes={"x": {0: torch.export.Dim("b", max=9)}})
    result = partition(program, Wishes({"one": take("relu", "mul"), "two": take_all}))
    assert list(places(result).values()) == ["one_0", "two_0"]
    x = torch.randn(7)
    torch.testing.assert_close(result.hybrid(x), Model()(x), rtol=0, atol=0)


def test_a_partition_that_was_not_built_goes_to_the_next_backend_and_leaves_its_name():
    supports = {"one": take("exp", "sin", "cos", "tanh"), "two": take("sin", "cos", "tanh")}
    first = cut(Chain(), (X,), supports)
    assert list(places(first).values()) == ["one_0", "one_0", "one_0", "torch", "one_1"]
    failure = BuildFailure("", "one_0", "one", ("exp", "sin", "cos"), (), "no memory")
    result = cut(Chain(), (X,), supports, failures=[failure])
    assert places(result) == {"exp": "torch", "sin": "two_0", "cos": "two_0", "sort": "torch", "tanh": "one_1"}
    assert reasons(result)["sin"] == "supported; one: one_0 could not be built"
    assert reasons(result)["exp"] == "one: one_0 could not be built; two: not in the table"
    advice = "; leave the one to blame of its 3 operators in torch with torch_executed_ops"
    assert result.coverage.failed == (("one_0", f"a refusal by one: no memory{advice}"),)


def test_an_operator_that_was_not_built_goes_to_the_next_backend_alone():
    supports = {"one": take_all, "two": take_all}
    failure = BuildFailure("", "one_0", "one", ("exp", "sin", "cos"), ("aten.sin.default",), "no sine")
    result = cut(Chain(), (X,), supports, failures=[failure])
    assert list(places(result).values()) == ["one_0", "two_0", "one_1", "one_1", "one_1"]
    assert reasons(result)["sin"] == "supported; one: could not be built: no sine"
    assert result.coverage.failed == (("aten.sin.default", "a refusal by one: no sine"),)


def test_a_failure_of_one_method_is_not_that_of_another_unless_it_names_operators():
    programs = {name: capture(Chain(), (X,)) for name in ("here", "there")}
    wishes = Wishes({"one": take_all, "two": take_all})
    nodes = ("exp", "sin", "cos", "sort", "tanh")
    parts = partition_methods(programs, wishes, [BuildFailure("here", "one_0", "one", nodes, (), "no")])
    assert [part.coverage.engines for part in parts.values()] == [("two_0",), ("one_0",)]
    parts = partition_methods(
        programs, wishes, [BuildFailure("here", "one_0", "one", nodes, ("aten.exp.default",), "no")]
    )
    assert [places(part)["exp"] for part in parts.values()] == ["two_0", "two_0"]


def test_effects_keep_their_order_with_several_backends():
    class Model(nn.Module):
        def forward(self, x):
            y = x.sort(0)[0]
            b = torch.rand_like(y.sin())
            c = torch.rand_like(x)
            return b, c.cos() + y.sin().exp(), b.exp()

    program = capture(Model(), (X,))
    result = partition(program, Wishes({"one": take("sin", "cos", "add"), "two": take("exp")}))
    torch.manual_seed(0)
    found = result.hybrid(X)
    torch.manual_seed(0)
    torch.testing.assert_close(found, Model()(X), rtol=0, atol=0)
