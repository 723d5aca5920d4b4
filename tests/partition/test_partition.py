"""Hybrids of torch partitions compute what the model computes, and only tensors cross."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true

from intarsia.capture import capture
from intarsia.core.signature import EngineSignature
from intarsia.errors import EngineBuildFailed, EngineUnavailable, PartitionError
from intarsia.partition import Wishes, partition

Dim = torch.export.Dim


def refuse(*names):
    """A backend that takes all operators but some."""
    return lambda node: "not in the table" if any(name in str(node.target) for name in names) else None


def take(*names):
    """A backend that takes nothing but some operators, and arithmetic on sizes."""
    return lambda node: None if any(name in str(node.target) for name in (*names, "built-in")) else "not in the table"


def cut(model, args, *, dynamic_shapes=None, supports=None, **settings):
    program = capture(model, args, dynamic_shapes=dynamic_shapes)
    result = partition(program, Wishes({"demo": supports or refuse()}, **settings))
    check_hybrid(result.hybrid)
    return result


def check_hybrid(hybrid):
    """Every node has its `val`; partitions are plain graphs between tensors, and return contiguous ones."""
    hybrid.graph.lint()
    for call in hybrid.graph.find_nodes(op="call_module"):
        body = hybrid.get_submodule(call.target).graph
        body.lint()
        assert type(body._codegen).__name__ == "CodeGen"
        assert call.args
        assert all(isinstance(part.meta["val"], torch.Tensor) for part in call.args)
        assert len(call.args) == len(body.find_nodes(op="placeholder"))
        assert all("val" in node.meta for node in body.nodes)
        for value in body.output_node().meta["val"]:
            expected = 1
            for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
                assert statically_known_true(stride == expected) or statically_known_true(size == 1)
                expected *= size
    assert all("val" in node.meta for node in hybrid.graph.nodes if node.op in ("placeholder", "call_function"))


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=False)


def reasons(result):
    return {item.node: item.reason for item in result.coverage.placements if item.place == "torch"}


def places(result):
    return {item.node: item.place for item in result.coverage.placements}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.first(x).softmax(-1))


def test_whole_model_in_one_partition():
    model, x = Mlp(), torch.randn(3, 4)
    result = cut(model, (x,))
    same(result.hybrid(x), model(x))
    assert result.coverage.engines == ("demo_0",)
    assert result.hybrid.demo_0.get_parameter("first.weight") is model.first.weight
    assert not list(result.hybrid.graph.find_nodes(op="get_attr"))


@pytest.mark.parametrize(
    "kept",
    [
        "aten.softmax",
        "aten.softmax.int",
        "torch.ops.aten.softmax",
        "aten::softmax",
        torch.ops.aten.softmax,
        torch.ops.aten.softmax.int,
    ],
)
def test_named_operators_stay_in_torch(kept):
    model, x = Mlp(), torch.randn(3, 4)
    result = cut(model, (x,), torch_executed_ops={kept})
    same(result.hybrid(x), model(x))
    assert result.coverage.engines == ("demo_0", "demo_1")
    assert reasons(result) == {"softmax": "named in torch_executed_ops"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"torch_executed_ops": {"aten.linaer"}}, "Did you mean 'aten.linear.default'"),
        ({"torch_executed_ops": ["aten.lin"]}, "It has aten.linear.default, aten.softmax.int"),
        ({"torch_executed_ops": "aten.linear"}, "found the text 'aten.linear'"),
        ({"torch_executed_ops": [3]}, "an entry of type 'int'"),
        ({"min_block_size": 0}, "min_block_size: found 0"),
        ({"min_block_size": "2"}, "min_block_size: found '2'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(PartitionError, match=message):
        cut(Mlp(), (torch.randn(3, 4),), **settings)


def test_small_blocks_stay_in_torch():
    class Model(nn.Module):
        def forward(self, x):
            return tuple((x.sin().cos().sort(0)[0] + 1).max(0))

    x = torch.randn(5)
    result = cut(Model(), (x,), supports=refuse("sort"), min_block_size=3)
    assert result.coverage.engines == ()
    result = cut(Model(), (x,), supports=refuse("sort"), min_block_size=2)
    assert result.coverage.engines == ("demo_0", "demo_1")
    same(result.hybrid(x), Model()(x))
    result = cut(Model(), (x,), supports=refuse("sort", "max"), min_block_size=2)
    assert reasons(result)["add"] == "in a block of 1 operator, below min_block_size"


def test_diamond_is_cut_without_a_cycle():
    class Model(nn.Module):
        def forward(self, x):
            a = x + 1
            return a.sort(0)[0] * a, a.relu()

    x = torch.randn(4)
    result = cut(Model(), (x,), supports=refuse("sort"))
    same(result.hybrid(x), Model()(x))
    assert len(result.coverage.engines) == 2


def test_sizes_are_worked_out_inside():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            b, s, _ = x.shape
            y = self.linear(x.reshape(b * s, 4)).sort(0)[0]
            return y.view(b, 4 * s) * (b + s), y

    model = Model()
    shapes = {"x": {0: Dim("b", min=1, max=9), 1: Dim("s", min=1, max=9)}}
    result = cut(model, (torch.randn(3, 5, 4),), dynamic_shapes=shapes, supports=refuse("sort"))
    for b, s in ((1, 1), (3, 5), (9, 2)):
        x = torch.randn(b, s, 4)
        same(result.hybrid(x), model(x))
    # The second block is fed by y alone, whose size is b*s: what needs b and s apart stays in torch.
    assert places(result)["linear"] == "demo_0"
    assert "a number that no tensor input of an engine carries" in reasons(result)["view_1"]
    assert {str(bounds) for bounds in result.hybrid.meta["range_constraints"].values()} == {"VR[1, 9]"}


def test_size_arithmetic_that_the_backend_refuses_stays_in_torch():
    class Model(nn.Module):
        def forward(self, x):
            return x.relu() * (x.shape[0] ** 0.5)

    shapes = {"x": {0: Dim("b", max=9)}}
    result = cut(Model(), (torch.randn(4),), dynamic_shapes=shapes, supports=refuse("built-in", "sym_float"))
    product = next(node for node in result.hybrid.graph.nodes if node.target is torch.ops.aten.mul.Tensor)
    assert reasons(result)[product.name].endswith("not in the table")
    result = cut(Model(), (torch.randn(4),), dynamic_shapes=shapes)
    assert result.coverage.engines == ("demo_0",)
    x = torch.randn(7)
    same(result.hybrid(x), Model()(x))


def test_size_without_carrier_stays_in_torch():
    class Model(nn.Module):
        def forward(self, x):
            total = x.sort(0)[0].sum()
            return torch.arange(x.shape[0]) * total, total.exp()

    shapes = {"x": {0: Dim("b", max=9)}}
    result = cut(Model(), (torch.randn(4),), dynamic_shapes=shapes, supports=refuse("sort", "sum"))
    assert "reads %sym_size" in reasons(result)["arange"]
    assert places(result)["exp"] == "demo_0"
    x = torch.randn(6)
    same(result.hybrid(x), Model()(x))


def test_integer_input_does_not_cross():
    class Model(nn.Module):
        def forward(self, x, n):
            return x * n, x.relu()

    program_inputs = (torch.randn(4), 3)
    result = cut(Model(), program_inputs, dynamic_shapes={"x": None, "n": Dim.DYNAMIC})
    assert "reads %n" in reasons(result)["mul"]
    x = torch.randn(4)
    same(result.hybrid(x, 7), Model()(x, 7))


def test_several_results_and_nested_outputs():
    class Model(nn.Module):
        def forward(self, x, scale=2):
            _, indices = x.max(1)
            a, b = (x * scale).split(2, 1)
            return {"index": indices, "pair": (a, [b, None]), "x": x, "three": 3, "again": indices}

    x = torch.randn(3, 4)
    result = cut(Model(), (x,))
    found, expected = result.hybrid(x), Model()(x)
    assert list(found) == list(expected)
    same(found["pair"][0], expected["pair"][0])
    same(found["pair"][1][0], expected["pair"][1][0])
    same(found["index"], expected["index"])
    assert found["x"] is x
    assert (found["pair"][1][1], found["three"]) == (None, 3)
    # The parts of a split are views: the engine returns what was split.
    assert reasons(result) == {"split": "changes only the layout of an engine's output"}


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.scale = torch.full((4,), 2.0)

    def forward(self, x):
        y = self.linear(x) * self.scale + self.shift
        self.total.add_(y.sum(0))
        return y + self.total


def test_written_state_stays_at_the_root():
    model = Stateful()
    program = capture(copy.deepcopy(model), (torch.randn(2, 4),))
    result = partition(program, Wishes({"demo": refuse()}))
    check_hybrid(result.hybrid)
    body = result.hybrid.demo_0
    assert "total" in dict(result.hybrid.named_buffers())
    assert "total" not in dict(body.named_buffers())
    assert dict(body.named_buffers()).keys() == {"shift"}
    assert "shift" not in body.state_dict()
    assert body.scale is program.constants["scale"]
    assert not isinstance(body.scale, nn.Parameter)
    for _ in range(3):
        x = torch.randn(2, 4)
        same(result.hybrid(x), model(x))
    same(result.hybrid.total, model.total)


def test_tied_weights_stay_one_tensor():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.outer = nn.Linear(4, 4)
            self.outer.weight = self.inner.weight

        def forward(self, x):
            return self.outer(self.inner(x).sort(1)[0])

    model, x = Model(), torch.randn(2, 4)
    result = cut(model, (x,), supports=refuse("sort"))
    same(result.hybrid(x), model(x))
    held = [value for name in result.coverage.engines for value in result.hybrid.get_submodule(name).parameters()]
    assert sum(value is model.inner.weight for value in held) == 2


def test_trailing_views_stay_in_torch_and_views_of_inputs_stay_views():
    class Model(nn.Module):
        def forward(self, x):
            return (x + 1).view(2, 6).transpose(0, 1), x.view(12), x.view(12) * 2

    x = torch.randn(3, 4)
    result = cut(Model(), (x,))
    found, expected = result.hybrid(x), Model()(x)
    same(found, expected)
    assert found[0].stride() == expected[0].stride()
    assert found[1].data_ptr() == x.data_ptr()
    assert {"view", "transpose"} <= reasons(result).keys()


def test_view_used_inside_and_outside():
    class Model(nn.Module):
        def forward(self, x):
            a, b = (x + 1).transpose(0, 1).split(2)
            return a.sort(0)[0], a.relu() + b, b

    x = torch.randn(3, 4)
    result = cut(Model(), (x,), supports=refuse("sort"))
    same(result.hybrid(x), Model()(x))
    (call,) = result.hybrid.graph.find_nodes(op="call_module")
    values = [value.stride() for value in call.meta["val"]]
    assert values == [(4, 1), (3, 1)]


class Relaid(nn.Module):
    """The sum has the layout of its transposed input, so that the last view is legal; an engine's is contiguous."""

    def forward(self, x):
        y = x.transpose(1, 2) + 1
        return torch.sin(y).transpose(1, 2).view(x.shape[0], -1), y


def test_layout_that_engines_change_is_followed_and_repaired():
    shapes = {"x": {0: Dim("b", min=1, max=9), 2: Dim("s", min=1, max=9)}}
    result = cut(Relaid(), (torch.randn(2, 3, 4),), dynamic_shapes=shapes, supports=take("add", "transpose"))
    for b, s in ((1, 1), (2, 4), (9, 5)):
        x = torch.randn(b, 3, s)
        same(result.hybrid(x), Relaid()(x))
        assert result.hybrid(x)[1].is_contiguous()
    sine = next(node for node in result.hybrid.graph.nodes if node.name == "sin")
    assert statically_known_true(sine.meta["val"].stride()[-1] == 1)


def test_layout_is_followed_into_the_next_engine():
    result = cut(Relaid(), (torch.randn(2, 3, 4),), supports=refuse("sin"))
    x = torch.randn(2, 3, 4)
    same(result.hybrid(x), Relaid()(x))


def test_producer_whose_strides_are_read_stays_in_torch():
    class Model(nn.Module):
        def forward(self, x):
            y = x.transpose(0, 1) * 2
            return torch.as_strided(y, (12,), (1,)), x.relu()

    x = torch.randn(3, 4)
    result = cut(Model(), (x,), supports=refuse("as_strided"))
    same(result.hybrid(x), Model()(x))
    assert "reads the memory layout" in reasons(result)["mul"]
    assert result.coverage.engines == ("demo_0",)


def test_operator_with_several_results_whose_strides_are_read_stays_in_torch():
    class Model(nn.Module):
        def forward(self, x):
            values, _ = x.transpose(0, 1).sort(0)
            return torch.as_strided(values, (12,), (1,))

    x = torch.randn(3, 4)
    result = cut(Model(), (x,), supports=refuse("as_strided"))
    same(result.hybrid(x), Model()(x))
    assert "reads the memory layout" in reasons(result)["sort"]


def test_asserts_about_dtypes_go_and_those_about_data_stay():
    class Model(nn.Module):
        def forward(self, x):
            y = x.to(torch.float64).to(torch.float32)
            picked = torch.nonzero(y[:, 0] > 0)
            return picked * 2, y.relu()

    shapes = {"x": {0: Dim("b", min=2, max=9)}}
    result = cut(Model(), (torch.randn(4, 2),), dynamic_shapes=shapes)
    names = [name for name, _ in result.coverage.removed]
    assert names
    assert all("_assert_tensor_metadata" in name for name in names)
    targets = [str(node.target) for node in result.hybrid.graph.nodes]
    assert "aten._assert_scalar.default" in targets
    assert "aten._assert_tensor_metadata.default" not in targets
    assert reasons(result)["nonzero"] == "the sizes of its result depend on data"
    for rows in (torch.randn(5, 2), -torch.ones(3, 2)):
        same(result.hybrid(rows), Model()(rows))


def test_asserts_about_inputs_that_no_range_states_stay():
    class Model(nn.Module):
        def forward(self, x, y):
            if x.shape[0] > 2 * y.shape[0]:
                return x.relu()
            return y.relu()

    shapes = {"x": {0: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}}
    inputs = torch.randn(9), torch.randn(3)
    program = torch.export.export(
        Model(), inputs, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
    )
    hybrid = partition(capture(program), Wishes({"demo": refuse()})).hybrid
    same(hybrid(*inputs), Model()(*inputs))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        hybrid(torch.randn(3), torch.randn(4))


def test_asserts_about_item_stay():
    class Model(nn.Module):
        def forward(self, x):
            n = x.max().item()
            torch._check(n >= 1)
            torch._check(n <= 5)
            return torch.ones(n) * 2

    result = cut(Model(), (torch.tensor([1, 3]),))
    assert result.coverage.removed == ()
    assert result.hybrid(torch.tensor([2, 4])).shape == (4,)
    with pytest.raises(RuntimeError, match=r"<= 5"):
        result.hybrid(torch.tensor([9]))


def test_constants_alone_stay_in_torch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x.sort(0)[0], self.weight.exp()

    x = torch.randn(4)
    result = cut(Model(), (x,), supports=refuse("sort"))
    assert result.coverage.engines == ()
    assert reasons(result)["exp"] == "no tensor that changes between calls goes into it"


def test_graphs_of_operators_stay_in_torch():
    class Model(nn.Module):
        def forward(self, x):
            y = x + 1
            return torch.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,)) * 2

    result = cut(Model(), (torch.randn(4),))
    for x in (torch.ones(4), -4 * torch.ones(4)):
        same(result.hybrid(x), Model()(x))
    assert reasons(result)["cond"] == "holds graphs of its own"


def test_random_operators_keep_their_order():
    class Model(nn.Module):
        def forward(self, x):
            a = torch.rand_like(x.sin().sin().sin())
            b = torch.rand_like(x)
            return a, (b + 1).cos() + x.sin()

    x = torch.randn(4)
    result = cut(Model(), (x,), supports=refuse("rand"))
    torch.manual_seed(0)
    found = result.hybrid(x)
    torch.manual_seed(0)
    same(found, Model()(x))


def test_order_of_effects_wins_over_larger_engines():
    class Model(nn.Module):
        def forward(self, x):
            y = x.sort(0)[0]
            b = torch.rand_like(y.sin())
            c = torch.rand_like(x)
            return b, c.cos() + y.sin().exp()

    x = torch.randn(4)
    result = cut(Model(), (x,), supports=refuse("rand", "sort"))
    torch.manual_seed(0)
    found = result.hybrid(x)
    torch.manual_seed(0)
    same(found, Model()(x))


def test_attention_that_drops_nothing_has_no_place_among_effects():
    """Torch calls attention random for the dropout that it can have, here in two towers that meet at the end."""

    class Model(nn.Module):
        def forward(self, x, y):
            seen = nn.functional.scaled_dot_product_attention(x, x, x)
            read = nn.functional.scaled_dot_product_attention(y, y, y)
            return seen + read.sort(-1)[0]

    args = (torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    result = cut(Model(), args, supports=refuse("sort"))
    same(result.hybrid(*args), Model()(*args))
    assert [p.operator for p in result.coverage.placements if p.place == "torch"] == ["aten.sort.default"]


def test_mutated_input_is_written_last():
    class Model(nn.Module):
        def forward(self, x, cache):
            y = cache * x
            cache.copy_(y + 1)
            return y

    x = torch.randn(4)
    result = cut(Model(), (x, torch.randn(4)))
    found, expected = torch.ones(4), torch.ones(4)
    same(result.hybrid(x, found), Model()(x, expected))
    same(found, expected)


def test_program_with_in_place_operators_is_refused():
    class Model(nn.Module):
        def forward(self, x):
            return x.clone().add_(1)

    program = torch.export.export(Model(), (torch.ones(2),))
    with pytest.raises(PartitionError, match=r"in-place operator aten\.add_"):
        partition(program, Wishes({"demo": refuse()}))


def test_partition_names_avoid_the_models_own():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.demo_0 = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x + self.demo_0).sort(0)[0] + self.demo_0

    x = torch.randn(3)
    result = cut(Model(), (x,), supports=refuse("sort"))
    same(result.hybrid(x), Model()(x))
    assert result.coverage.engines == ("demo_1", "demo_2")


def test_program_is_left_as_it_was_and_no_guard_is_added():
    shapes = {"x": {0: Dim("b", max=9), 2: Dim("s", max=9)}}
    program = capture(Relaid(), (torch.randn(2, 3, 4),), dynamic_shapes=shapes)
    before = str(program), [str(node.meta.get("val")) for node in program.graph.nodes]
    (x,) = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    guards = len(x.fake_mode.shape_env.guards)
    partition(program, Wishes({"demo": take("add", "transpose")}))
    assert (str(program), [str(node.meta.get("val")) for node in program.graph.nodes]) == before
    assert len(x.fake_mode.shape_env.guards) == guards


def test_coverage_lists_each_operator_once_in_graph_order():
    result = cut(Mlp(), (torch.randn(3, 4),), torch_executed_ops={"aten.softmax.int"})
    assert [(item.operator, item.place) for item in result.coverage.placements] == [
        ("aten.linear.default", "demo_0"),
        ("aten.softmax.int", "torch"),
        ("aten.linear.default", "demo_1"),
    ]


def test_returned_state_is_the_written_state():
    class Model(nn.Module):
        def forward(self, x, cache):
            cache.add_(x.relu())
            return cache, x * 2

    x = torch.randn(4)
    result = cut(Model(), (x, torch.randn(4)))
    found, expected = torch.ones(4), torch.ones(4)
    returned = result.hybrid(x, found)
    same(returned, Model()(x, expected))
    same(found, expected)
    assert returned[0] is found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[::2].exp(),
        lambda x: (x[1:] - x[:-1]).exp(),
        lambda x: x[:5].exp().transpose(0, 1) + 1,
        lambda x: x[-3:].exp().sort(0)[0] * 2,
        lambda x: torch.nn.functional.max_pool1d(x, 2) + torch.tensor([1.0, 2.0]),
        lambda x: x.exp().repeat(x.shape[0], 2).exp(),
        lambda x: x.exp().view(-1, 2, 2).mean((1, 2)) if x.shape[0] > 1 else x,
    ],
    ids=["step", "differences", "minimum", "end", "pooled", "product", "folded"],
)
def test_derived_sizes_are_carried_or_stay_in_torch(function):
    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    result = cut(
        Model(), (torch.randn(6, 4),), dynamic_shapes={"x": {0: Dim("b", min=6, max=12)}}, supports=refuse("sort")
    )
    assert result.coverage.engines
    for b in (6, 7, 12):
        x = torch.randn(b, 4)
        same(result.hybrid(x), Model()(x))


def test_size_that_no_signature_can_write_stays_in_torch(monkeypatch):
    told = EngineSignature.from_values

    def refuse_four_rows(inputs, outputs):
        if outputs[0].shape[0] == 4:
            raise EngineBuildFailed("engine output 0", found="a strange size", expected="another", fix="Do.")
        return told(inputs, outputs)

    class Model(nn.Module):
        def forward(self, x):
            return x.exp(), x.t() + 1, tuple(x.max(0))

    monkeypatch.setattr(EngineSignature, "from_values", refuse_four_rows)
    x = torch.randn(3, 4)
    result = cut(Model(), (x,))
    told_by = "an engine's signature cannot tell its result: a strange size"
    assert (reasons(result)["add"], reasons(result)["max_1"]) == (told_by, told_by)
    assert places(result)["exp"] == "demo_0"
    same(result.hybrid(x), Model()(x))


def test_writes_of_part_of_the_state_stay_in_torch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3))
            self.register_buffer("frozen", torch.zeros(4, 3))

        def forward(self, row, index):
            part = self.cache[1:3].index_copy(0, index, row.exp())
            self.cache.copy_(self.cache.slice_scatter(part, 0, 1, 3))
            return self.frozen.index_copy(0, index, row) + self.cache

    row, index = torch.randn(1, 3), torch.tensor([1])
    result = cut(Model(), (row, index))
    state_write = "writes part of the state, which torch does in place"
    assert [name for name, reason in reasons(result).items() if reason == state_write] == [
        "index_copy",
        "slice_scatter",
    ]
    assert (places(result)["exp"], places(result)["index_copy_1"]) == ("demo_0", "demo_1")
    same(result.hybrid(row, index), Model()(row, index))


def test_a_module_that_a_backend_cannot_import_is_named() -> None:
    def supports(_: torch.fx.Node) -> str | None:
        import no_such_library.kernels

        return no_such_library.kernels.reason

    with pytest.raises(EngineUnavailable) as raised:
        cut(torch.nn.ReLU(), (torch.ones(3),), supports=supports)
    assert "module 'no_such_library', which it needs, cannot be imported" in str(raised.value)
    assert "Install the package that holds it" in raised.value.fix


def test_an_operator_without_its_namespace_is_answered_with_its_name() -> None:
    program = torch.export.export(torch.nn.Tanh(), (torch.ones(2),)).run_decompositions({})
    with pytest.raises(PartitionError, match=r"Did you mean 'aten\.tanh'\?"):
        partition(program, Wishes({"demo": refuse()}, torch_executed_ops={"tanh"}))
