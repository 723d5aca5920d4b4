"""What the tests of `.pte` files do in a child process: third-party runtimes may crash it.

python scenarios.py RESULTS    writes for each scenario what it found, or its traceback, as JSON
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import intarsia
from intarsia.errors import IntarsiaError

SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


def message(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The class and text of the error that a call must raise."""
    try:
        function(*args, **kwargs)
    except IntarsiaError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run_flat(file: str, method: str, inputs: list[Any], calls: int = 1) -> list[Any]:
    """What ExecuTorch's own runtime gives at the last of some calls."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(file)
    loaded = program.load_method(method)
    for _ in range(calls):
        outputs = loaded.execute(inputs)
    return list(outputs)


def delegates_of(file: str) -> list[str]:
    """Names of the runtimes that a file names; their names stand in it as text."""
    data = Path(file).read_bytes()
    return [name for name in ("OpenvinoBackend", "XnnpackBackend") if name.encode() in data]


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


class Nested(torch.nn.Module):
    """Keywords, containers, numbers, None; state that starts with 5."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.register_buffer("count", torch.full((4,), 5.0))

    def forward(self, x: torch.Tensor, *, more: Any, n: int, flag: Any = None) -> Any:
        self.count.add_(1)
        y = torch.nn.functional.gelu(self.layer(x))
        return {"y": y + self.count * n, "more": [more[0] * 2, (more[1], None)]}


class Attention(torch.nn.Module):
    """Sizes that change on several axes, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        hidden = self.one(x)
        weights = torch.softmax(self.two(hidden) @ hidden.transpose(1, 2), -1)
        mixed = torch.nn.functional.gelu(weights @ hidden)
        return torch.cat([mixed, y], 1).mean(-1), weights


class Cache(torch.nn.Module):
    """One method writes the cache, the other reads it and needs more memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("cache", torch.full((4, 8), 5.0))

    def write(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, position, self.layer(x))
        return torch.nn.functional.gelu(self.cache).sum(0)

    def read(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.nn.functional.gelu(self.layer(x) + self.cache.mean(0))
        return x


def batch(largest: int = 64) -> Any:
    return torch.export.Dim("batch", min=1, max=largest)


def compile_layers() -> torch.fx.GraphModule:
    torch.manual_seed(0)
    return intarsia.compile(Layers().eval(), (torch.randn(2, 8),), dynamic_shapes=({0: batch()},))


def compile_nested() -> torch.fx.GraphModule:
    torch.manual_seed(0)
    size = {0: batch(6)}
    return intarsia.compile(
        Nested().eval(),
        (torch.randn(2, 8),),
        {"more": (torch.randn(2), torch.randn(2, 3)), "n": 3, "flag": None},
        dynamic_shapes={"x": size, "more": (size, size), "n": None, "flag": None},
        torch_executed_ops={"aten.gelu", "aten.mul"},
    )


def compile_cache(model: Cache | None = None) -> dict[str, torch.fx.GraphModule]:
    torch.manual_seed(0)
    model = model or Cache().eval()
    examples = {"write": (torch.randn(1, 8), torch.tensor([1])), "read": (torch.randn(30, 8),)}
    methods = {"write": model.write, "read": model.read}
    return intarsia.compile(methods, examples, torch_executed_ops={"aten.gelu", "aten.index_copy"})


@scenario
def engines_alone() -> Any:
    """A hybrid that is one engine: equal to the bit to the `.pt2` for every size, and its bytes are untouched."""
    from intarsia.core.container import EngineContainer

    program = intarsia.export(compile_layers())
    intarsia.save(program, "layers.pt2")
    intarsia.save(program, "layers.pte")
    before, after = intarsia.load("layers.pt2"), intarsia.load("layers.pte")
    xs = [torch.randn(size, 8) for size in (64, 1, 5)]
    (engine,) = (value for value in program.constants.values() if value.dtype is torch.uint8)
    payload = EngineContainer.unpack(engine.numpy().data).payload
    return {
        "equal": [torch.equal(before(x), after(x)) for x in xs],
        "shapes": [list(after(x).shape) for x in xs],
        "flat": torch.equal(run_flat("layers.pte", "forward", [xs[2]])[0], before(xs[2])),
        "untouched": bytes(payload or b"none") in Path("layers.pte").read_bytes(),
        "delegates": delegates_of("layers.pte"),
    }


@scenario
def convention() -> Any:
    """Keywords and nested values, state from its initial values on, and the errors of a `.pt2`'s program."""
    program = intarsia.export(compile_nested())
    intarsia.save(program, "nested.pt2")
    intarsia.save(program, "nested.pte")
    before, after = intarsia.load("nested.pt2"), intarsia.load("nested.pte")
    x, more = torch.randn(5, 8), (torch.randn(5), torch.randn(5, 3))
    errors, structures = [], []
    for _ in range(3):
        expected, found = before(x, more=more, n=3, flag=None), after(x, flag=None, n=3, more=more)
        errors.append((expected["y"] - found["y"]).abs().max().item())
        structures.append([list(found), type(found["more"]).__name__, found["more"][1][1]])
    other = after.session()(x, more=more, n=3, flag=None)["y"]
    after.reset()
    again = after(x, more=more, n=3, flag=None)["y"]
    before.reset()
    first = before(x, more=more, n=3, flag=None)["y"]
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {"more": more, "n": 3}),
        ((x,), {"more": more, "n": 4, "flag": None}),
        ((x,), {"more": [*more], "n": 3, "flag": None}),
        ((torch.randn(7, 8),), {"more": more, "n": 3, "flag": None}),
        ((x.double(),), {"more": more, "n": 3, "flag": None}),
        ((x, 1), {"more": more, "n": 3, "flag": None}),
    ]
    return {
        "errors": errors,
        "structures": structures,
        "reset": (again - first).abs().max().item(),
        "session": (other - first).abs().max().item(),
        "flat": (run_flat("nested.pte", "forward", [x, *more, 3, None], 3)[0] - expected["y"]).abs().max().item(),
        "told": [[message(program, *args, **kwargs) for program in (before, after)] for args, kwargs in wrong],
        "state": message(lambda: after.state),
        "delegates": delegates_of("nested.pte"),
    }


@scenario
def changing_sizes() -> Any:
    """Outputs of engines whose sizes change on other axes than the first."""
    torch.manual_seed(0)
    model = Attention().eval()
    size = {0: torch.export.Dim("b", min=1, max=7), 1: torch.export.Dim("q", min=2, max=33)}
    shapes = (size, {0: size[0], 1: torch.export.Dim("r", min=1, max=5)})
    example = torch.randn(2, 3, 8), torch.randn(2, 2, 8)
    hybrid = intarsia.compile(model, example, dynamic_shapes=shapes, torch_executed_ops={"aten.gelu", "aten.softmax"})
    intarsia.save(hybrid, "attention.pte")
    program = intarsia.load("attention.pte")
    errors = []
    for b, q, r in [(1, 2, 1), (7, 33, 5), (3, 9, 2), (1, 30, 1)]:
        x, y = torch.randn(b, q, 8), torch.randn(b, r, 8)
        with torch.no_grad():
            pairs = zip(model(x, y), program(x, y), strict=True)
        errors += [(one - other).abs().max().item() for one, other in pairs]
    return errors


@scenario
def ends_of_ranges() -> Any:
    """Batch and length at their ends, and beyond them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1), torch.nn.Linear(8, 3)).eval()
    sizes = {0: batch(4), 1: torch.export.Dim("length", min=2, max=9)}
    hybrid = intarsia.compile(
        model, (torch.randn(2, 3, 8),), dynamic_shapes=(sizes,), torch_executed_ops={"aten.softmax"}
    )
    intarsia.save(hybrid, "ranges.pt2")
    intarsia.save(hybrid, "ranges.pte")
    before, after = intarsia.load("ranges.pt2"), intarsia.load("ranges.pte")
    errors, shapes = [], []
    for b, length in [(1, 2), (4, 9), (1, 9), (4, 2), (3, 5), (1, 2)]:
        x = torch.randn(b, length, 8)
        found = after(x)
        shapes.append([*found.shape] == [b, length, 3])
        errors.append((found - model(x)).abs().max().item())
    told = [
        [message(program, torch.randn(b, length, 8)) for program in (before, after)]
        for b, length in [(5, 2), (1, 10), (1, 1), (0, 2)]
    ]
    return {"errors": errors, "shapes": shapes, "told": told}


class Lists(torch.nn.Module):
    """Operators that return lists, of tensors whose first size changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        one, other = self.layer(x).chunk(2, -1)
        mixed = torch.nn.functional.gelu(one) * other
        a, b, c, d = mixed.unbind(-1)
        first, rest = mixed.split([1, 3], -1)
        return a * b + c * d, torch.cat([rest, first], -1)


@scenario
def operators_that_return_lists() -> Any:
    """ExecuTorch's verifier would fix the first size at that of the example, 16; a partitioner that does is refused."""
    from executorch.exir.backend.partitioner import Partitioner, PartitionResult

    from intarsia.executorch import to_edge

    class Fixing(Partitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            (*_, x) = exported_program.graph.find_nodes(op="placeholder")
            int(x.meta["val"].shape[0])
            return PartitionResult(exported_program, {})

    torch.manual_seed(0)
    model, kept = Lists().eval(), {"aten.gelu", "aten.split", "aten.split_with_sizes", "aten.unbind", "aten.mul"}
    hybrid = intarsia.compile(model, (torch.randn(16, 8),), dynamic_shapes=({0: batch()},), torch_executed_ops=kept)
    program = intarsia.export(hybrid)
    (*_, x) = program.graph.find_nodes(op="placeholder")
    before = str(x.meta["val"].shape)
    intarsia.save(program, "lists.pte")
    loaded = intarsia.load("lists.pte")
    errors = []
    for size in (1, 16, 64, 3):
        values = torch.randn(size, 8)
        pairs = zip(loaded(values), model(values), strict=True)
        errors += [(one - other).abs().max().item() for one, other in pairs]
    after = str(x.meta["val"].shape)
    return {"errors": errors, "unchanged": before == after, "fixed": message(to_edge, program, [Fixing()])}


@scenario
def precision() -> Any:
    """Engines compute in what they were compiled for, whatever OpenVINO would choose."""
    from openvino import Core

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 4)).eval(), torch.randn(4, 256)
    answers = {}
    for name in ("f32", "bf16"):
        hybrid = intarsia.compile(model, (x,), options={"INFERENCE_PRECISION_HINT": name, "ENABLE_CPU_PINNING": False})
        intarsia.save(hybrid, f"{name}.pt2")
        intarsia.save(hybrid, f"{name}.pte")
        answers[name] = intarsia.load(f"{name}.pte")(x)
    return {
        "equal": [torch.equal(answers[name], intarsia.load(f"{name}.pt2")(x)) for name in answers],
        "error": (answers["f32"] - model(x)).abs().max().item(),
        "differ": not torch.equal(answers["f32"], answers["bf16"]),
        "has bf16": "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    }


class Lookups(torch.nn.Module):
    """Engines read at the first input, at the second with -1 as the last position, and at a sum, which torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)
        self.register_buffer("rows", torch.randn(6, 8))

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, shift: torch.Tensor) -> Any:
        return self.table(tokens[:, None]).relu(), self.rows[places].relu(), self.table(tokens + shift).relu()


@scenario
def positions() -> Any:
    """Positions out of range: OpenVINO would read elsewhere."""
    torch.manual_seed(0)
    model = Lookups().eval()
    n = {0: batch(9)}
    example = (torch.tensor([1, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1]))
    hybrid = intarsia.compile(model, example, dynamic_shapes=(n, n, None))
    program = intarsia.export(hybrid)
    intarsia.save(program, "lookups.pt2")
    intarsia.save(program, "lookups.pte")
    before, after = intarsia.load("lookups.pt2"), intarsia.load("lookups.pte")
    engines = program.graph.find_nodes(op="call_function", target=torch.ops.intarsia.run_engine.default)

    def call(tokens: list[int], places: list[int], shift: int) -> tuple[torch.Tensor, ...]:
        return torch.tensor(tokens), torch.tensor(places, dtype=torch.int32), torch.tensor([shift])

    right = [call([0, 9, 3], [-6, 5, -1], 0), call([0], [2], 9), call([9], [0], -9)]
    wrong = {
        "above": call([3, 10], [0, 0], 0),
        "below": call([-1, 3], [0, 0], 1),
        "back": call([3, 3], [0, -7], 0),
        "on": call([3, 3], [6, 0], 0),
        "computed": call([3, 4], [0, 0], 6),
        "computed below": call([3, 4], [0, 0], -4),
    }
    return {
        "engines": len(engines),
        "equal": [torch.equal(*pair) for inputs in right for pair in zip(before(*inputs), after(*inputs), strict=True)],
        "told": {name: message(after, *inputs) for name, inputs in wrong.items()},
        "told before": {name: message(before, *inputs) for name, inputs in wrong.items()},
        "flat": [refusal(run_flat, "lookups.pte", "forward", list(inputs)) for inputs in wrong.values()],
    }


def refusal(function: Callable[..., Any], *args: Any) -> str:
    """What ExecuTorch's own runtime says."""
    try:
        function(*args)
    except RuntimeError as error:
        return str(error)
    return "no error"


@scenario
def methods_on_one_state() -> Any:
    """Reading, writing and reading again: neither method's activations reach the state."""
    programs = intarsia.export(compile_cache())
    intarsia.save(programs, "cache.pt2")
    intarsia.save(programs, "cache.pte")
    before, after = intarsia.load("cache.pt2"), intarsia.load("cache.pte")
    errors = []
    for step in range(4):
        x, position, rows = torch.randn(1, 8), torch.tensor([step]), torch.randn(30, 8)
        for one, other in (
            (before.read(rows), after.read(rows)),
            (before.write(x, position), after.write(x, position)),
            (before.read(rows), after.read(rows)),
        ):
            errors.append((one - other).abs().max().item())
    return {
        "errors": errors,
        "plain": plain_runtime(),
        "methods": list(after),
        "call": message(after),
        "unknown": message(getattr, after, "rea"),
    }


def plain_runtime() -> list[float]:
    """The same with ExecuTorch's own runtime and flat inputs."""
    from executorch.runtime import Runtime

    file, program = Runtime.get().load_program("cache.pte"), intarsia.load("cache.pt2")
    read, write = (file.load_method(name) for name in ("read", "write"))
    errors = []
    for step in (1, 3):
        x, position, rows = torch.randn(1, 8), torch.tensor([step]), torch.randn(30, 8)
        for method, expected, inputs in (
            (read, program.read, [rows]),
            (write, program.write, [x, position]),
            (read, program.read, [rows]),
        ):
            errors.append((method.execute(inputs)[0] - expected(*inputs)).abs().max().item())
    return errors


class Selection(torch.nn.Module):
    """Rows and columns at numbers in tensors, which torch reads from there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        return self.layer(x[i]), x[:, j[0]] * 2, x[j.squeeze()] + 1


@scenario
def computed_numbers() -> Any:
    """Parts that a number selects which nobody bounded."""
    torch.manual_seed(0)
    model = Selection().eval()
    x = torch.randn(4, 3)
    example = x, torch.tensor(2), torch.tensor([1], dtype=torch.int32)
    hybrid = intarsia.compile(model, example, torch_executed_ops={"aten.mul"})
    intarsia.save(hybrid, "numbers.pte")
    program = intarsia.load("numbers.pte")
    errors = []
    for i, j in [(0, 0), (3, 2), (-1, -3), (-4, -1)]:
        inputs = x, torch.tensor(i), torch.tensor([j], dtype=torch.int32)
        errors += [
            (one - other).abs().max().item() for one, other in zip(program(*inputs), model(*inputs), strict=True)
        ]
    beyond = message(program, x, torch.tensor(4), torch.tensor([0], dtype=torch.int32))
    return {"errors": errors, "beyond": beyond}


@scenario
def tensors_without_dimensions() -> Any:
    """Engines that take and give them."""

    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> Any:
            return torch.relu(x * factor), torch.cat([x, x]).sum()

    hybrid = intarsia.compile(Scale(), (torch.ones(3, 4), torch.tensor(2.0)))
    program = intarsia.export(hybrid)
    intarsia.save(program, "scale.pt2")
    intarsia.save(program, "scale.pte")
    inputs = torch.randn(3, 4), torch.tensor(0.5)
    before, after = intarsia.load("scale.pt2")(*inputs), intarsia.load("scale.pte")(*inputs)
    return [[torch.equal(one, other), list(other.shape)] for one, other in zip(before, after, strict=True)]


@scenario
def positions_of_inputs() -> Any:
    """Inputs in another order, one input twice, and outputs that nobody takes."""

    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.relu(2 * x + y), torch.relu(x - y)

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    found = {}
    for name, order, given in (("swapped", (1, 0), (y, x)), ("twice", (0, 0), (x, x))):
        program = intarsia.export(intarsia.compile(Two(), (x, y)))
        (call,) = program.graph.find_nodes(op="call_function", target=torch.ops.intarsia.run_engine.default)
        inputs = program.graph.find_nodes(op="placeholder")[-2:]
        call.args = ([inputs[i] for i in order], *call.args[1:])
        program.graph_module.recompile()
        intarsia.save(program, f"{name}.pte")
        expected = Two()(*given)
        found[name] = [torch.equal(*pair) for pair in zip(intarsia.load(f"{name}.pte")(x, y), expected, strict=True)]
    return {**found, "unused": unused_output(x, y, Two())}


def unused_output(x: torch.Tensor, y: torch.Tensor, model: torch.nn.Module) -> bool:
    """Whether the second output is right when nobody takes the first."""
    program = intarsia.export(intarsia.compile(model, (x, y)))
    output = program.graph.output_node()
    _, second = output.args[0]
    output.args = ((second, second),)
    program.graph_signature.output_specs[0].arg.name = second.name
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    intarsia.save(program, "unused.pte")
    return bool(torch.equal(intarsia.load("unused.pte")(x, y)[0], model(x, y)[1]))


@scenario
def the_edge() -> Any:
    """ExecuTorch's own manager, with what its users do there."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeProgramManager
    from executorch.exir.pass_base import ExportPass

    from intarsia.executorch import backend_config, to_edge

    class Count(ExportPass):
        seen = 0

        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            Count.seen += 1
            return super().call_operator(op, args, kwargs, meta)

    hybrids = compile_cache()
    portable = to_edge(hybrids, [], [Count()], constant_methods={"length": 4})
    partly = to_edge(hybrids, {"read": [XnnpackPartitioner()]}, generate_etrecord=True)
    return {
        "types": [isinstance(portable, EdgeProgramManager), sorted(portable.methods), Count.seen > 0],
        "constants": sorted(portable.config_methods),
        "delegates": [ids(manager.to_executorch(backend_config())) for manager in (portable, partly)],
        "record": partly._etrecord is not None,
    }


@scenario
def plans() -> Any:
    """State of several methods, lowered without a word on memory, after passes and partitioners of users."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.pass_base import ExportPass
    from executorch.exir.passes import MemoryPlanningPass

    from intarsia.executorch import to_edge

    programs = intarsia.export(compile_cache())
    intarsia.save(programs, "planned.pt2")
    before = intarsia.load("planned.pt2")
    edge = to_edge(programs, [])
    made = {
        "at once": edge,
        "transformed": to_edge(programs, []).transform([ExportPass()]),
        "partitioned": to_edge(programs, []).to_backend(XnnpackPartitioner()),
    }
    errors = {}
    for name, manager in made.items():
        manager.to_executorch().save("planned.pte")
        before.reset()
        errors[name] = compare_steps(before, intarsia.load("planned.pte"))
    one, other = MemoryPlanningPass(share_mutable_buffers=True), MemoryPlanningPass(share_mutable_buffers=True)
    configs = {
        "own": ExecutorchBackendConfig(),
        "by method": ExecutorchBackendConfig(memory_planning_pass={"read": one, "write": other}),
    }
    told = {name: message(to_edge(programs, []).to_executorch, config) for name, config in configs.items()}
    single = to_edge({"write": programs["write"]}, []).to_executorch(ExecutorchBackendConfig())
    return {"errors": errors, "told": told, "single": ids(single)}


def compare_steps(before: Any, after: Any) -> float:
    """The largest error of reading, writing and reading again."""
    errors = []
    for step in range(3):
        x, position, rows = torch.randn(1, 8), torch.tensor([step]), torch.randn(30, 8)
        for name, inputs in (("read", (rows,)), ("write", (x, position)), ("read", (rows,))):
            errors.append((getattr(before, name)(*inputs) - getattr(after, name)(*inputs)).abs().max().item())
    return max(errors)


def ids(manager: Any) -> dict[str, list[str]]:
    plans = manager.executorch_program.execution_plan
    return {plan.name: sorted({one.id for one in plan.delegates}) for plan in plans if plan.delegates}


@scenario
def refusals() -> Any:
    """What cannot be saved, or is no file of ours; each with the message."""
    from intarsia.executorch import to_edge

    class Write(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * 2

    @torch.library.custom_op("intarsia_tests::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    unknown.register_fake(torch.empty_like)

    class Unknown(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return unknown(x)

    x = torch.ones(3, 4)
    Path("old.pte").write_bytes(b"what was there")
    unbounded = torch.export.export(torch.nn.ReLU(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    layers = intarsia.export(compile_layers())
    intarsia.save(layers, "without.pt2", payloads=False)
    told = {
        "write": message(intarsia.save, torch.export.export(Write(), (x,)), "old.pte"),
        "unknown": message(intarsia.save, torch.export.export(Unknown(), (x,)), "old.pte"),
        "unbounded": message(intarsia.save, unbounded, "old.pte"),
        "payloads": message(intarsia.save, layers, "old.pte", payloads=False),
        "without payloads": message(intarsia.save, intarsia.load("without.pt2"), "old.pte"),
        "method": message(to_edge, compile_layers(), {"forwards": []}),
        "folder": message(intarsia.save, layers, "nowhere/model.pte"),
    }
    return {**told, "old": Path("old.pte").read_bytes()[:14].decode(errors="replace")}


@scenario
def engines_as_source() -> Any:
    """Engines of OpenVINO, and of a backend that ExecuTorch has no runtime for, as the operators that they were of."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    from intarsia.executorch import to_edge

    model = Cache().eval()
    hybrids = compile_cache(model)
    intarsia.save(hybrids, "source.pte", engines="source")
    program, errors = intarsia.load("source.pte"), []
    with torch.no_grad():
        for step in (2, 0):
            x, position, rows = torch.randn(1, 8), torch.tensor([step]), torch.randn(30, 8)
            errors.append((program.read(rows) - model.read(rows)).abs().max().item())
            errors.append((program.write(x, position) - model.write(x, position)).abs().max().item())
            errors.append((program.read(rows) - model.read(rows)).abs().max().item())
    other, layers = build_standin()
    given = {"read": [XnnpackPartitioner()]}
    claimed = to_edge(hybrids, given, engines="source").to_executorch()
    intarsia.save(other, "standin.pte", engines="source")
    x = torch.randn(3, 8)
    return {
        "errors": errors,
        "delegates": delegates_of("source.pte"),
        "claimed": ids(claimed),
        "standin": (intarsia.load("standin.pte")(x) - layers(x)).abs().max().item(),
        "compiled standin": message(intarsia.save, other, "standin.pte"),
        "edge": message(to_edge, other),
        "no form": message(intarsia.save, other, "standin.pte", engines="sources"),
        "pt2": message(intarsia.save, other, "standin.pt2", engines="source"),
        "edge form": message(to_edge, other, engines="compile"),
    }


def build_standin() -> tuple[torch.fx.GraphModule, torch.nn.Module]:
    """A hybrid with an engine of a backend that is not OpenVINO, and its model, which it needs."""
    from intarsia.capture import capture
    from intarsia.core.backend import BuiltEngine
    from intarsia.engines.build import EngineBuilder
    from intarsia.engines.methods import build_methods
    from intarsia.partition import Wishes, partition_methods
    from intarsia.surgery import export

    class Backend:
        name = "standin"

        def check_options(self, options: Any) -> None:
            """It takes any."""

        def build(self, program: Any, options: Any) -> BuiltEngine:
            return BuiltEngine(b"compiled", None, "1", "any", {})

    model = Layers().eval()
    program = capture(model, (torch.randn(3, 8),))
    backend: Any = Backend()
    builder = EngineBuilder({"standin": backend}, export, {"standin": {}})
    wishes = Wishes({"standin": lambda node: None})
    return build_methods(lambda failed: partition_methods({"": program}, wishes, failed), builder)[""], model


@scenario
def partitioners() -> Any:
    """Partitioners that are none, or whose compile specs name a method."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

    from intarsia.executorch import to_edge

    class Named(Partitioner):  # type: ignore[misc]
        """Takes nothing, and says which method it is for."""

        def __init__(self, method: str) -> None:
            self.delegation_spec = DelegationSpec("Named", [CompileSpec("method_name", method.encode())])

        def partition(self, exported_program: Any) -> Any:
            return PartitionResult(exported_program, {})

    hybrids = compile_cache()
    shared = Named("read")
    return {
        "shared": message(to_edge, hybrids, [shared]),
        "swapped": message(to_edge, hybrids, {"read": [Named("write")]}),
        "each its own": message(to_edge, hybrids, {name: [Named(name)] for name in hybrids}),
        "shared without a name": message(to_edge, hybrids, [XnnpackPartitioner()]),
        "none": message(to_edge, hybrids, [3]),
        "no list": message(to_edge, hybrids, {"read": shared}),
        "constant": message(to_edge, hybrids, [], constant_methods={"read": 3}),
        "description": message(to_edge, hybrids, [], constant_methods={"intarsia_description": 3}),
    }


@scenario
def control_flow() -> Any:
    """Bodies of operators: with kernels in them, and with an engine."""

    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.cond(x.sum() > 0, self.one, self.other, (x,)))

        def one(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu()

        def other(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(self.layer(x))

    torch.manual_seed(0)
    model = Branching().eval()
    hybrid = intarsia.compile(model, (torch.randn(2, 8),))
    x, errors = torch.rand(2, 8), []
    for engines in ("compiled", "source"):
        intarsia.save(hybrid, "branching.pte", engines=engines)
        program = intarsia.load("branching.pte")
        with torch.no_grad():
            errors += [(program(given) - model(given)).abs().max().item() for given in (x, -x)]
    return {"errors": errors, "engines": len(intarsia.coverage(hybrid).engines)}


@scenario
def computed_sizes() -> Any:
    """Sizes that a value decides."""

    class First(torch.nn.Module):
        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            size = count.item()
            torch._check(size >= 0)
            torch._check(size <= x.shape[0])
            return x[:size] + 1

    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return x * factor.item()

    x, count = torch.arange(8.0), torch.tensor(3)
    dynamic = ({0: torch.export.Dim("n", min=1)}, None)
    intarsia.save(torch.export.export(First(), (x, count)), "first.pte")
    intarsia.save(torch.export.export(Scale(), (x, count)), "scale_by.pte")
    return {
        "bounded": intarsia.load("first.pte")(x, torch.tensor(2)).tolist(),
        "number": intarsia.load("scale_by.pte")(x, torch.tensor(2)).tolist(),
        "unbounded": message(intarsia.save, torch.export.export(First(), (x, count), dynamic_shapes=dynamic), "no.pte"),
    }


@scenario
def claimed_engines() -> Any:
    """A partitioner that takes what it does not know."""
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

    from intarsia.executorch import to_edge

    class Greedy(BackendDetails):  # type: ignore[misc]
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return PreprocessResult(processed_bytes=b"greedy")

    class GreedyPartitioner(Partitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            for node in exported_program.graph.nodes:
                if node.op == "call_function":
                    node.meta["delegation_tag"] = "greedy"
            return PartitionResult(exported_program, {"greedy": DelegationSpec("Greedy", [])})

    return message(to_edge, compile_layers(), [GreedyPartitioner()])


@scenario
def arity() -> Any:
    """Delegates in a plan that was tampered with."""
    from intarsia.executorch import backend_config, to_edge
    from intarsia.formats.engines.calls import EngineReader
    from intarsia.formats.pte.arity import check_arity

    program = intarsia.export(compile_layers())
    engines = EngineReader().read(program)

    def tampered(change: Callable[[Any, Any], Any]) -> str:
        lowered = to_edge(program).to_executorch(backend_config())
        plan = next(one for one in lowered.executorch_program.execution_plan if one.name == "forward")
        calls = [one.instr_args for one in plan.chains[0].instructions if hasattr(one.instr_args, "delegate_index")]
        change(plan, calls[0].args)
        return message(check_arity, plan, engines)

    return {
        "nothing": tampered(lambda plan, args: None),
        "number": tampered(lambda plan, args: args.pop()),
        "order": tampered(lambda plan, args: args.reverse()),
        "dtype": tampered(
            lambda plan, args: setattr(
                plan.values[args[0]].val, "scalar_type", type(plan.values[args[0]].val.scalar_type).INT
            )
        ),
        "shape": tampered(lambda plan, args: plan.values[args[0]].val.sizes.__setitem__(1, 9)),
        "room": tampered(lambda plan, args: plan.values[args[1]].val.sizes.__setitem__(0, 3)),
        "layout": tampered(lambda plan, args: setattr(plan.values[args[0]].val, "dim_order", [1, 0])),
    }


@scenario
def command_line() -> Any:
    """What `inspect` and `check` tell of files, and what is said of engines of another version."""
    from typer.testing import CliRunner

    from intarsia.cli.application import app
    from intarsia.engines.openvino import OpenVINOBackend
    from intarsia.formats.pte import combination

    intarsia.save(compile_nested(), "one.pte")
    intarsia.save(compile_cache(), "several.pte")
    Path("damaged.pte").write_bytes(Path("one.pte").read_bytes()[:-200])

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, list(arguments), prog_name="intarsia")
        shown = json.loads(result.stdout) if "--json" in arguments else result.output.splitlines()
        return [result.exit_code, shown]

    told = {name: run("inspect", "--json", f"{name}.pte") for name in ("one", "several")}
    told["drawn"] = run("inspect", "several.pte")
    told["check"] = run("check", "one.pte")
    told["json"] = run("check", "--json", "one.pte")
    told["damaged"] = run("check", "damaged.pte")
    found, combination._version = (
        combination._version,
        lambda package: {"executorch": "", "openvino": "2025.4.1"}[package],
    )
    told["without"] = run("check", "one.pte")
    combination._version = found
    accepts, OpenVINOBackend.accepts = OpenVINOBackend.accepts, lambda *_: "it was built for a Z80"
    told["other"] = run("check", "one.pte")
    told["load"] = message(intarsia.load, "one.pte")
    OpenVINOBackend.accepts = accepts
    return told


@scenario
def verification() -> Any:
    """What `verify`, `run` and `bench` tell of files, against the models that they were made of."""
    from typer.testing import CliRunner

    from intarsia.cli.application import app

    intarsia.save(compile_nested(), "nested.pte")
    intarsia.save(compile_cache(), "cached.pte")
    torch.manual_seed(0)
    nested = Nested().eval()
    torch.manual_seed(0)
    cache = Cache().eval()
    right = intarsia.verify("nested.pte", nested)
    with torch.no_grad():
        nested.layer.bias.add_(0.1)
    wrong = intarsia.verify(intarsia.load("nested.pte"), nested)
    example = {"write": ((torch.randn(1, 8), torch.tensor([1])), {})}
    several = intarsia.verify("cached.pte", cache, example=example)
    with torch.no_grad():
        cache.cache.add_(1)
    unlike = intarsia.verify("cached.pte", cache, example=example)
    commands = {name: CliRunner().invoke(app, [name, "nested.pte", "--json"]) for name in ("run", "bench", "verify")}
    return {
        "right": right.to_json(),
        "wrong": wrong.to_json(),
        "several": several.to_json(),
        "unlike": unlike.to_json(),
        "alone": message(intarsia.verify, "nested.pte"),
        "commands": {name: [result.exit_code, result.output] for name, result in commands.items()},
        "graph": CliRunner().invoke(app, ["export", "nested.pte", "-o", "new.pt2"]).output,
    }


@scenario
def foreign_files() -> Any:
    """Files that are cut, changed, of other tools and of other versions; none may reach native code."""
    from executorch.exir import to_edge_transform_and_lower

    from intarsia.executorch import backend_config, to_edge
    from intarsia.formats.pte import contents, loading
    from intarsia.formats.pte.library import lowering

    intarsia.save(compile_layers(), "whole.pte")
    data = Path("whole.pte").read_bytes()
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    with lowering():
        Path("foreign.pte").write_bytes(to_edge_transform_and_lower(program).to_executorch().buffer)
    contents.FORMAT_VERSION = 99
    intarsia.save(program, "newer.pte")
    contents.FORMAT_VERSION = 1
    to_edge(compile_layers()).to_executorch(backend_config()).save("edge.pte")
    edge = Path("edge.pte").read_bytes()
    small = Path("newer.pte").read_bytes()
    changed = {
        "cut": data[: len(data) // 2],
        "short": data[:20],
        "last byte": data[:-1],
        "seal": data[:-48],
        "small seal": small[:-48],
        "longer": data + b"0",
        "longer edge": edge + bytes(100),
        "empty": b"",
        "other": b"\x93NUMPY" + bytes(100),
        "zip": b"PK\x03\x04" + bytes(100),
        "changed": data[:64] + bytes(200) + data[264:],
        "noise": b"\x3c\0\0\0ET12" + bytes(range(256)),
    }
    for name, content in changed.items():
        Path(f"{name}.pte").write_bytes(content)
    Path("whole.pt2").write_bytes(data)
    runtime, loading.import_executorch = loading.import_executorch, refuse_native
    told = {name: message(intarsia.load, f"{name}.pte") for name in [*changed, "foreign", "newer", "missing", "."]}
    told["verify"] = message(intarsia.load, "edge.pte", verify=True)
    told["ending"] = message(intarsia.load, "whole.pt2")
    told["rebuild"] = message(intarsia.load, "whole.pte", engines="rebuild")
    loading.import_executorch = runtime
    x = torch.randn(5, 8)
    loaded = [intarsia.load("edge.pte"), intarsia.load("whole.pte", verify=True)]
    return {
        **told,
        "flips": [*flips(data), *flips(small)],
        "equal": torch.equal(*(one(x) for one in loaded)),
        "replaced": replaced(loaded[1]),
    }


def refuse_native(module: str) -> Any:
    raise AssertionError(f"native code was loaded: {module}")


def flips(data: bytes) -> list[str]:
    """The messages about a file with one flipped bit: in its header, its contents or its seal."""
    from intarsia.formats.pte.contents import read_pte

    told = set()
    for place in (0, 7, *range(8, 64, 3), *range(64, len(data), 211), *range(len(data) - 48, len(data))):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        Path("flipped.pte").write_bytes(flipped)
        told.add(message(read_pte, Path("flipped.pte")))
    return sorted(told)


def replaced(program: Any) -> str:
    """What a program of a file says whose place another file took."""
    intarsia.save(compile_layers(), "whole.pte")
    return message(program.reset)


@scenario
def differences() -> Any:
    """What `intarsia diff` tells of pairs of files, without the text of progress, and its exit codes."""
    from typer.testing import CliRunner

    from intarsia.cli.application import app

    x = torch.ones(2, 8)
    for name, longest in (("bound8", 8), ("bound9", 9)):
        shapes = {"x": {0: torch.export.Dim("rows", max=longest)}}
        hybrid = intarsia.compile(Layers().eval(), (x,), dynamic_shapes=shapes)
        intarsia.save(hybrid, f"{name}.pte")
        intarsia.save(hybrid, f"{name}.pt2", test_vectors=[((x,), {})])
    pairs = [("bound8.pt2", "bound8.pte"), ("bound8.pte", "bound8.pte"), ("bound8.pt2", "bound9.pte")]
    results = [CliRunner().invoke(app, ["diff", *pair]) for pair in pairs]
    return [(result.exit_code, result.stdout.splitlines()) for result in results]


def main(results: Path) -> None:
    found: dict[str, Any] = {}
    for name, function in SCENARIOS.items():
        try:
            found[name] = {"found": function()}
        except Exception:  # noqa: BLE001 - whatever it is goes to the test
            found[name] = {"raised": traceback.format_exc()}
        results.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
