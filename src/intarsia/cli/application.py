"""The application: its commands, its exit codes, and what becomes of an error."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from intarsia.cli.benching import bench_file
from intarsia.cli.checking import check_file
from intarsia.cli.comparing import compare_files
from intarsia.cli.compiling import compile_target
from intarsia.cli.doctor import examine_installation
from intarsia.cli.exporting import export_hybrid
from intarsia.cli.faults import tell_fault, tell_interruption
from intarsia.cli.inspecting import inspect_file
from intarsia.cli.running import run_file
from intarsia.cli.verifying import verify_file

READER_GONE = 141
"""What a shell answers for a command that SIGPIPE ended: 1 would say that something was checked and wrong."""


def _discard_output() -> None:
    """Let the flushes at Python's end meet no closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


class _ReportingGroup(TyperGroup):
    """Commands whose faults end as one message and exit code 2, and whose interruption ends with exit code 130."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # After a fault one adds `--debug` to the end of the line.
        debug = ["--debug"] if "--debug" in args else []
        return super().parse_args(ctx, [*debug, *(arg for arg in args if arg != "--debug")])

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke_telling(ctx)
        except BrokenPipeError as error:
            _discard_output()
            raise typer.Exit(READER_GONE) from error

    def _invoke_telling(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # here, where it can still be told that there is no room
        except KeyboardInterrupt as error:
            tell_interruption(ctx.invoked_subcommand)
            raise typer.Exit(130) from error
        except Exception as error:
            # Those that typer raises to end a command carry its exit code.
            if hasattr(error, "exit_code") or isinstance(error, BrokenPipeError):
                raise
            tell_fault(error, debug=bool(ctx.params.get("debug")))
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_ReportingGroup,
    help="Compile, inspect and check PyTorch programs that mix compiled engines and torch operators.",
    epilog="Exit codes: 0 right, 1 checked and wrong, 2 cannot be done as asked, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its frames leave an option's help a third of the line
)
app.command("compile")(compile_target)
app.command("export")(export_hybrid)
app.command("inspect")(inspect_file)
app.command("check")(check_file)
app.command("diff")(compare_files)
app.command("verify")(verify_file)
app.command("run")(run_file)
app.command("bench")(bench_file)
app.command("doctor")(examine_installation)


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer passes a flag's value so
    if value:
        for package in ("intarsia", "torch"):
            typer.echo(f"{package} {version(package)}")
        raise typer.Exit


@app.callback()
def common_options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show versions and exit."),
    ] = False,
) -> None:
    """Options of all commands."""
