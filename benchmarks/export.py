"""Time and memory of `export`, side by side with the fewest conceivable steps and with `torch.export.export`.

    python benchmarks/export.py synthetic [--partitions 667] [--nodes 5]
    python benchmarks/export.py scaling
    python benchmarks/export.py minilm
    python benchmarks/export.py memory

Prints ratios from one run, medians of several rounds. "Floor" is the fewest conceivable steps: one forward walk that
builds a new graph with a map from old node to new, one placeholder for each weight, and one `ExportedProgram(...)`; it
handles nothing but the graphs of this file.
"""

from __future__ import annotations

import argparse
import gc
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import Dim, ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

import intarsia
from intarsia._torch import new_fake_mode

aten = torch.ops.aten
OPERATORS = (aten.add.Tensor, aten.mul.Tensor, aten.relu.default)


def build_hybrid(partitions: int, nodes: int) -> GraphModule:
    """A chain of partitions, each with a weight of its own and `nodes` operators."""
    mode = new_fake_mode()
    shape = mode.from_tensor(torch.empty(4, 16), static_shapes=True)
    root, graph = torch.nn.Module(), Graph()
    value = graph.placeholder("x")
    value.meta["val"] = shape
    for index in range(partitions):
        root.add_module(f"part_{index}", _build_partition(nodes, shape, mode))
        value = graph.call_module(f"part_{index}", (value,))
        value.meta["val"] = shape
        if index % 3 == 0:
            value = graph.call_function(aten.neg.default, (value,))
            value.meta["val"] = shape
    graph.output((value,))
    return GraphModule(root, graph)


def _build_partition(nodes: int, shape: torch.Tensor, mode: Any) -> GraphModule:
    owner, graph = torch.nn.Module(), Graph()
    owner.weight = torch.nn.Parameter(torch.randn(16))
    value, weight = graph.placeholder("a"), graph.get_attr("weight")
    value.meta["val"] = shape
    weight.meta["val"] = mode.from_tensor(owner.weight, static_shapes=True)
    for index in range(nodes):
        target = OPERATORS[index % 3]
        value = graph.call_function(target, (value,) if target is aten.relu.default else (value, weight))
        value.meta["val"] = shape
    graph.output(value)
    return GraphModule(owner, graph)


def fewest_steps(hybrid: GraphModule) -> ExportedProgram:
    """The floor: it knows what `build_hybrid` makes, and nothing else."""
    graph = Graph()
    specs, state, weights = [], {}, {}
    (given,) = hybrid.graph.find_nodes(op="placeholder")
    for name, partition in hybrid.named_children():
        for node in partition.graph.find_nodes(op="get_attr"):
            placed = graph.placeholder(f"p_{name}_{node.target}")
            placed.meta = dict(node.meta)
            weights[node] = placed
            state[f"{name}.{node.target}"] = getattr(partition, node.target)
            specs.append(InputSpec(InputKind.PARAMETER, TensorArgument(placed.name), f"{name}.{node.target}"))
    image = graph.placeholder("x")
    image.meta = dict(given.meta)
    specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument("x"), None))
    values = {given: image}
    for node in hybrid.graph.nodes:
        if node.op == "call_module":
            values[node] = _copy_partition(graph, getattr(hybrid, node.target), values[node.args[0]], weights)
        elif node.op == "call_function":
            values[node] = graph.node_copy(node, values.__getitem__)
    (last,) = hybrid.graph.output_node().args[0]
    graph.output((values[last],))
    result = TensorArgument(values[last].name)
    call = ModuleCallSignature(
        [TensorArgument("x")], [result], pytree.tree_structure(((0,), {})), pytree.tree_structure((0,)), ["x"]
    )
    signature = ExportGraphSignature(specs, [OutputSpec(OutputKind.USER_OUTPUT, result, None)])
    return ExportedProgram({}, graph, signature, state, {}, [ModuleCallEntry("", call)])


def _copy_partition(graph: Graph, partition: GraphModule, given: Node, weights: dict[Node, Node]) -> Node:
    values = dict(weights)
    for node in partition.graph.nodes:
        if node.op == "placeholder":
            values[node] = given
        elif node.op == "call_function":
            values[node] = graph.node_copy(node, values.__getitem__)
    return values[partition.graph.output_node().args[0]]


def measure(functions: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each function; the functions take turns, so that a slow minute meets them all."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, kept in zip(functions, times, strict=True):
            gc.collect()
            start = time.perf_counter()
            function()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def run_synthetic(partitions: int, nodes: int, rounds: int) -> None:
    """Floor, export and retrace of a chain of partitions."""
    hybrid = build_hybrid(partitions, nodes)
    count = sum(node.op == "call_function" for node in intarsia.export(hybrid).graph.nodes)
    example = (torch.randn(4, 16),)
    floor, export, retrace = measure(
        [
            lambda: fewest_steps(hybrid),
            lambda: intarsia.export(hybrid),
            lambda: torch.export.export(hybrid, example),
        ],
        rounds,
    )
    print(f"{count} nodes, {partitions} partitions; medians of {rounds} rounds")
    print(f"  floor   {floor:8.3f} s    1.0")
    print(f"  export  {export:8.3f} s  {export / floor:5.1f} times the floor")
    print(f"  retrace {retrace:8.3f} s  {retrace / export:5.1f} times the export")


def run_scaling(rounds: int) -> None:
    """Floor and export at growing sizes, with few and with many nodes a partition; the retrace where it ends soon."""
    sizes = (225, 900, 3600, 14400)
    print("nodes  a partition   floor s  export s  export/floor  retrace/export")
    for nodes in (3, 100):
        exports = {}
        for size in sizes:
            hybrid = build_hybrid(max(size * 3 // (nodes * 3 + 1), 1), nodes)
            functions = [lambda h=hybrid: fewest_steps(h), lambda h=hybrid: intarsia.export(h)]
            floor, exports[size] = measure(functions, rounds)
            retrace = ""
            if size <= 3600:
                (seconds,) = measure([lambda h=hybrid: torch.export.export(h, (torch.randn(4, 16),))], 1)
                retrace = f"{seconds / exports[size]:8.1f}"
            ratio = exports[size] / floor
            print(f"{size:5} {nodes:12} {floor:9.3f} {exports[size]:9.3f} {ratio:13.2f}  {retrace:>14}", flush=True)
        power = math.log(exports[14400] / exports[900]) / math.log(16)
        print(f"from 900 to 14400 nodes, time grows as nodes to the power {power:.2f}")


def run_minilm(rounds: int) -> None:
    """Export and retrace of the demo's hybrid."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import minilm

    hybrid = minilm.compile_encoder(minilm.load_encoder())
    example = minilm.tokenize(minilm.SENTENCES)
    size = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=256)}
    shapes = dict.fromkeys(example, size)
    export, retrace = measure(
        [
            lambda: intarsia.export(hybrid),
            lambda: torch.export.export(hybrid, (), example, dynamic_shapes=shapes),
        ],
        rounds,
    )
    print(f"MiniLM hybrid; medians of {rounds} rounds")
    print(f"  export  {export:8.3f} s")
    print(f"  retrace {retrace:8.3f} s  {retrace / export:5.1f} times the export")


def run_memory(size_mb: int) -> None:
    """Peak memory that export and retrace add, with weights of `size_mb` megabytes in the partitions."""
    hybrid = build_hybrid(16, 12)
    for _, partition in hybrid.named_children():
        partition.ballast = torch.nn.Parameter(torch.ones(size_mb * 2**20 // 4 // 16))
        with partition.graph.inserting_before(partition.graph.output_node()):
            total = partition.graph.call_function(aten.sum.default, (partition.graph.get_attr("ballast"),))
            made = partition.graph.call_function(aten.add.Tensor, (partition.graph.output_node().args[0], total))
        partition.graph.output_node().args = (made,)
        partition.recompile()
    base = _peak_mb()
    intarsia.export(hybrid)
    exported = _peak_mb()
    torch.export.export(hybrid, (torch.randn(4, 16),))
    print(f"{size_mb} MB of weights: export adds {exported - base:.0f} MB to the peak, ", end="")
    print(f"the retrace after it {_peak_mb() - exported:.0f} MB more")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["synthetic", "scaling", "minilm", "memory"])
    parser.add_argument("--partitions", type=int, default=667)
    parser.add_argument("--nodes", type=int, default=5, help="operators in each partition")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mb", type=int, default=2048)
    options = parser.parse_args()
    if options.what == "synthetic":
        run_synthetic(options.partitions, options.nodes, options.rounds)
    elif options.what == "scaling":
        run_scaling(options.rounds)
    elif options.what == "minilm":
        run_minilm(options.rounds)
    else:
        run_memory(options.size_mb)


if __name__ == "__main__":
    main()
