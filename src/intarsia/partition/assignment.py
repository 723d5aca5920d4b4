"""Which backends each operator of some graphs may go to, of what a caller chose for operators and modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from intarsia.core.choice import MODEL, BackendChoice
from intarsia.errors import PartitionError, near_match, shorten
from intarsia.partition.operators import is_operator, module_path, operator_name, short_name, wanted_name

NOT_CHOSEN = "no backend is named for it"
CHOSEN_TORCH = "named for torch in backend"


class Assignment:
    """The choice, by operator and by module path.

    What is told of an operator goes before what is told of a module, with an overload before without; and what is told
    of a module before what is told of one that holds it.

    Args:
        choice: What the caller chose.
        graphs: The graphs of all methods; what is chosen for has to be in one of them.
        modules: Paths of the model's modules, where they are known, for the message about one that calls no operator.

    Raises:
        PartitionError: A key of the choice is no operator and no module path of the graphs, or two mean the same and
            tell different orders.
    """

    def __init__(self, choice: BackendChoice, graphs: Iterable[torch.fx.Graph], modules: Collection[str] = ()) -> None:
        nodes = [node for graph in graphs for node in graph.nodes if is_operator(node)]
        names = dict.fromkeys(map(operator_name, nodes))
        packets = {name.rpartition(".")[0] for name in names} - {MODEL}  # "cond" has no overload
        paths = dict.fromkeys(path for node in nodes for path in _outward(module_path(node)))
        self._operators: dict[str, Sequence[str]] = {}
        self._modules: dict[str, Sequence[str]] = {}
        for key, order in choice.orders.items():
            name = wanted_name("backend", key) if key != MODEL else MODEL
            path = key.strip() if isinstance(key, str) else None
            if name in names or name in packets:
                _add(self._operators, name, order)
            elif path == MODEL or path in paths:
                _add(self._modules, path, order)
            elif path in modules:
                raise _idle(name)
            else:
                raise _unmatched(name, [*names, *paths], packets)

    def candidates(self, node: torch.fx.Node) -> tuple[Sequence[str], str]:
        """Names of the backends that an operator may go to, in order; and why it stays in torch if there are none."""
        name = operator_name(node)
        orders = [self._operators.get(key) for key in (name, name.rpartition(".")[0])]
        orders += [self._modules.get(path) for path in _outward(module_path(node))]
        order = next((order for order in orders if order is not None), None)
        return (order, CHOSEN_TORCH) if order is not None else ((), NOT_CHOSEN)


def _add(orders: dict[str, Sequence[str]], name: str, order: Sequence[str]) -> None:
    """Note an order, of which there is one: an operator and its name are two keys of a mapping, and mean the same."""
    if orders.setdefault(name, order) != order:
        raise PartitionError(
            "backend",
            found=f"two orders for {name!r}: {', '.join(orders[name]) or 'torch'}, and {', '.join(order) or 'torch'}",
            expected="one",
            fix="Leave out one of the keys that mean it.",
        )


def _outward(path: str) -> list[str]:
    """A module's path, and those of the modules that hold it, up to the model's."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]


def _idle(path: str) -> PartitionError:
    return PartitionError(
        "backend",
        found=f"{path!r}, a module that calls no operator of the captured graph",
        expected="modules that call one",
        fix="Leave out the key.",
    )


def _unmatched(name: str, known: list[str], packets: Iterable[str]) -> PartitionError:
    return PartitionError(
        "backend",
        found=f"{name!r}, which is neither an operator of the captured graph nor the path of a module that calls one",
        expected="operators as coverage prints them, module paths as named_modules tells them, or '' for the rest",
        fix=short_name(name, known)
        or near_match(name, sorted({*known, *packets}))
        or f"It has {shorten(', '.join(sorted(filter(None, known))), 400)}.",
    )
