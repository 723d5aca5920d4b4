"""What importing costs: help is answered without torch; the library registers its operator."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["intarsia.cli", "intarsia.errors"])
def test_the_command_line_is_imported_without_torch(module: str) -> None:
    run(f"import sys, {module}; sys.exit('torch' in sys.modules)")


def test_help_is_shown_without_torch() -> None:
    run(
        "import sys, intarsia.cli\n"
        "sys.argv = ['intarsia', '--help']\n"
        "try: intarsia.cli.main()\n"
        "except SystemExit as ended: sys.exit(ended.code or 'torch' in sys.modules)"
    )


@pytest.mark.parametrize("order", ["intarsia, torch", "torch, intarsia"])
def test_importing_the_library_registers_the_engine_operator(order: str) -> None:
    run(f"import {order}; torch.ops.intarsia.run_engine.default")


@pytest.mark.parametrize(
    "module",
    ["_torch", "core.signature", "core.writes", "surgery", "runtime.program", "formats.saving", "formats.loading"],
)
def test_a_module_can_be_the_first_that_is_imported(module: str) -> None:
    run(f"import intarsia.{module}, torch; torch.ops.intarsia.run_engine.default")
