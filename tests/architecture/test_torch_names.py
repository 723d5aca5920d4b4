"""Private names of torch are used in one module only, where each use is explained."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "intarsia"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "_torch.py")


def private_torch_names(code: str) -> list[str]:
    """Dotted names under torch that code imports or reaches, and that have a private part."""
    return [name for node in ast.walk(ast.parse(code)) for name in _names(node) if _is_private(name)]


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield _dotted(node)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_private(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "torch" and any(part.startswith("_") and not part.endswith("__") for part in rest)


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(SOURCE)) for path in MODULES])
def test_no_private_torch_name(path: Path) -> None:
    assert private_torch_names(path.read_text()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch._ops",
        "import torch.utils._pytree as pytree",
        "from torch._export import verifier",
        "from torch.fx.graph import _PyTreeCodeGen",
        "torch._C.foo()",
        "def f():\n    return torch.export._unlift.GuardsFn",
    ],
)
def test_the_search_finds_each_way_to_reach_one(code: str) -> None:
    assert private_torch_names(code)


@pytest.mark.parametrize("code", ["import torch.fx", "from intarsia import _torch", "torch.__version__", "x._private"])
def test_the_search_leaves_the_rest_alone(code: str) -> None:
    assert private_torch_names(code) == []
