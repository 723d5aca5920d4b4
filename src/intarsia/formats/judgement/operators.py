"""What the nodes of a graph in a file may call. torch looks the names up by attribute, whatever they lead to."""

from __future__ import annotations

import re

from intarsia._torch import higher_order_operators, text_arguments
from intarsia.formats.archive.refusal import Refused, quoted

_OPERATOR = re.compile(r"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_HIGHER_ORDER = "torch.ops.higher_order."
# Functions, besides operators, that torch writes: arithmetic with sizes, and switches of modes.
_FUNCTIONS = frozenset(
    [
        *(
            f"_operator.{name}"
            for name in [
                "abs",
                "add",
                "and_",
                "eq",
                "floordiv",
                "ge",
                "getitem",
                "gt",
                "le",
                "lshift",
                "lt",
                "mod",
                "mul",
                "ne",
                "neg",
                "not_",
                "or_",
                "pos",
                "pow",
                "rshift",
                "sub",
                "truediv",
            ]
        ),
        *(f"math.{name}" for name in ["ceil", "floor", "trunc"]),
        *(
            f"torch.{name}"
            for name in ["_sym_sqrt", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum"]
        ),
        "torch._C._set_grad_enabled",
        "torch.autograd.grad_mode.set_grad_enabled",
        "torch.amp.autocast_mode._enter_autocast",
        "torch.amp.autocast_mode._exit_autocast",
        "torch.fx.experimental.symbolic_shapes.cast_symbool_to_symint_guardless",
        *(
            f"torch._functorch.predispatch.{name}"
            for name in [
                "_add_batch_dim",
                "_remove_batch_dim",
                "_vmap_increment_nesting",
                "_vmap_decrement_nesting",
                "lazy_load_decompositions",
            ]
        ),
    ]
)
# Operators that take graphs. Others look names up, read assembler text or run what is no graph.
_GRAPH_OPERATORS = frozenset(
    [
        "associative_scan",
        "auto_functionalized",
        "auto_functionalized_v2",
        "cond",
        "flex_attention",
        "hints_wrapper",
        "invoke_subgraph",
        "map_impl",
        "out_dtype",
        "scan",
        "strict_mode",
        "tag_activation_checkpoint",
        "while_loop",
        "while_loop_stack_output",
        "with_effects",
        "wrap",
        "wrap_activation_checkpoint",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    ]
)
# Texts among an operator's arguments that lead out of the process.
_PLACES = frozenset(["file", "file_name", "file_path", "filename", "filepath", "fname", "path", "uri", "url"])
_REFUSED_NAMESPACES = frozenset(["debugprims", "prim"])


def find_operator(target: str) -> str | None:
    """The operator that a node of a file calls, as `namespace::name`, when this process does not know it, else None.

    Raises:
        Refused: It is neither an operator nor a function that torch writes, or it reads or writes files.

    Example:
        >>> find_operator("torch.ops.aten.relu.default"), find_operator("torch.ops.my.double.default")
        (None, 'my::double')
    """
    if target in _FUNCTIONS or _is_graph_operator(target):
        return None
    match = _OPERATOR.fullmatch(target)
    if match is None or match[1] in _REFUSED_NAMESPACES or match[1] == "higher_order":
        raise Refused(f"a call of {quoted(target)}", "an operator of torch.ops, or a function that torch writes")
    namespace, name, overload = match.groups()
    arguments = text_arguments(f"{namespace}::{name}", "" if overload == "default" else overload)
    if arguments is None:
        return f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
    if not _PLACES.isdisjoint(arguments):
        raise Refused(f"a call of {quoted(target)}, which opens a file that it is told", "no such operator")
    return None


def _is_graph_operator(target: str) -> bool:
    name = target.removeprefix(_HIGHER_ORDER)
    return name != target and name in _GRAPH_OPERATORS and name in higher_order_operators()
